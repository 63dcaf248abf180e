"""Fits the calibration: least squares of log step time with a weak prior on each parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afd.plan.hardware import Hardware
from afd.plan.measured.replay import Benches, benches_for, estimate, recalibrated
from afd.plan.measured.rows import Row
from afd.plan.model_spec import load_model
from afd.plan.times.calibration import FITTED, Calibration, load_calibration, model_key

Vector = NDArray[np.float64]

# What one would guess before any row is seen, and how far (in log) a guess may be off when one
# row's error is 3 %: near-peak bandwidth, 70 % of peak FLOPs and link, Zipf-like routing, about a
# dozen launches of 5 µs each, a processor that draws twice its share, a kernel start of four link
# latencies. The tables' expert times hold half of the launches and the fill of the tile pipeline.
PRIOR = {
    "attention_efficiency": (0.93, 0.15),
    "expert_efficiency": (0.7, 0.1),
    "skew_exponent": (0.9, 0.05),
    "colocated_moe_us": (60.0, 0.3),
    "ep_doubling_us": (3.0, 0.7),
    "processor_bandwidth_share": (2.0, 0.2),
    "ffn_start_us": (20.0, 0.5),
    "dense_us": (60.0, 0.3),
}
TABLES_PRIOR = {
    **PRIOR,
    "expert_efficiency": (0.7, 0.3),
    "colocated_moe_us": (30.0, 0.5),
    "ffn_start_us": (10.0, 0.7),
}
ROW_ERROR = 0.03


def fit_calibration(
    rows: list[Row],
    hardware: Hardware,
    kv_bytes_per_element: float = 2.0,
    use_tables: bool = False,
    benches: Benches | None = None,
) -> Calibration:
    """The global parameters of ``FITTED`` and one dense time per model that has rows.

    ``benches`` are those of the rows' workloads where the caller has them already.
    """
    base = load_calibration("tables" if use_tables else "roofline")
    prior = TABLES_PRIOR if use_tables else PRIOR
    free = [name for name in FITTED if not (use_tables and name == "skew_exponent")]
    models = sorted({model_key(load_model(row.model).name) for row in rows})
    guesses = [prior[name] for name in free] + [prior["dense_us"]] * len(models)
    start = np.log([g[0] for g in guesses])
    weight = np.array([ROW_ERROR / g[1] for g in guesses])
    measured = np.log([row.implied_step_ms for row in rows])
    if benches is None:
        benches = benches_for(rows, hardware, base, kv_bytes_per_element, use_tables)
    workloads = {row.workload for row in rows}

    def unpack(x: Vector) -> Calibration:
        values = [float(v) for v in np.exp(x)]
        dense = dict(zip(models, values[len(free) :], strict=True))
        fitted: dict[str, Any] = dict(zip(free, values, strict=False))
        return replace(base, **fitted, dense_us={**base.dense_us, **dense})

    def residuals(x: Vector) -> Vector:
        calibration = unpack(x)
        at = {key: recalibrated(benches[key], calibration) for key in workloads}
        steps = [estimate(at[row.workload], row).step_ms for row in rows]
        return np.concatenate([np.log(steps) - measured, weight * (x - start)])

    return unpack(_least_squares(residuals, start))


def _least_squares(
    residuals: Callable[[Vector], Vector], start: Vector, rounds: int = 40
) -> Vector:
    """Levenberg–Marquardt with numerical derivatives; few parameters, smooth residuals."""
    x, damping = start.copy(), 1e-3
    r = residuals(x)
    for _ in range(rounds):
        step = 1e-5
        jacobian = np.stack(
            [(residuals(x + step * unit) - r) / step for unit in np.eye(len(x))], axis=1
        )
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ r
        before = float(r @ r)
        while damping < 1e8:
            move = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            candidate = residuals(x + move)
            if candidate @ candidate < before:
                x, r, damping = x + move, candidate, max(damping / 5, 1e-9)
                break
            damping *= 4
        if damping >= 1e8 or before - float(r @ r) < 1e-9:
            break
    return x
