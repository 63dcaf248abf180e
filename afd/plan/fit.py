"""Fits the calibration: least squares of log step time with a weak prior on each parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from afd.plan.bench import make_bench
from afd.plan.calibration import FITTED, Calibration, load_calibration, model_key
from afd.plan.hardware import Hardware
from afd.plan.kernels import KernelTimes, Roofline
from afd.plan.layouts import Workload, colocated, disaggregated
from afd.plan.model_spec import load_model
from afd.plan.rows import Row
from afd.plan.tables import TableTimes

Vector = NDArray[np.float64]

# What one would guess before any row is seen, and how far (in log) a guess may be off when one
# row's error is 3 %: near-peak bandwidth, 70 % of peak FLOPs and link, Zipf-like routing, about a
# dozen launches of 5 µs each.
PRIOR = {
    "attention_efficiency": (0.93, 0.15),
    "expert_efficiency": (0.7, 0.1),
    "skew_exponent": (0.9, 0.05),
    "colocated_moe_us": (60.0, 0.3),
    "dense_us": (60.0, 0.3),
}
ROW_ERROR = 0.03


def fit_calibration(
    rows: list[Row],
    hardware: Hardware,
    kv_bytes_per_element: float = 2.0,
    use_tables: bool = False,
) -> Calibration:
    """Four global parameters and one dense time per model that has rows."""
    base = load_calibration("tables" if use_tables else "roofline")
    models = sorted({model_key(row.model) for row in rows})
    guesses = [PRIOR[name] for name in FITTED] + [PRIOR["dense_us"]] * len(models)
    start = np.log([g[0] for g in guesses])
    weight = np.array([ROW_ERROR / g[1] for g in guesses])
    measured = np.log([row.implied_step_ms for row in rows])
    benches = {
        row.workload: make_bench(
            load_model(row.model), hardware, Workload(row.context_tokens, kv_bytes_per_element),
            base, use_tables=use_tables,
        )
        for row in rows
    }  # fmt: skip

    def unpack(x: Vector) -> Calibration:
        values = np.exp(x)
        attention, experts, skew, moe_us = (float(v) for v in values[: len(FITTED)])
        dense = {m: float(v) for m, v in zip(models, values[len(FITTED) :], strict=True)}
        return replace(
            base,
            attention_efficiency=attention,
            expert_efficiency=experts,
            skew_exponent=skew,
            colocated_moe_us=moe_us,
            dense_us={**base.dense_us, **dense},
        )

    def residuals(x: Vector) -> Vector:
        calibration = unpack(x)
        steps = []
        for row in rows:
            bench = benches[row.workload]
            bench = replace(
                bench, calibration=calibration,
                kernels=_with_calibration(bench.kernels, calibration),
            )  # fmt: skip
            if row.system == "colocated":
                steps.append(colocated(bench, row.expert_parallel, row.batch).step_ms)
            else:
                lanes = 2 if row.batch > 1 else 1
                steps.append(
                    disaggregated(
                        bench, row.attention_nodes, row.ffn_nodes, row.batch, lanes
                    ).step_ms
                )
        return np.concatenate([np.log(steps) - measured, weight * (x - start)])

    return unpack(_least_squares(residuals, start))


def _with_calibration(kernels: KernelTimes, calibration: Calibration) -> KernelTimes:
    """The same kernel source with other parameters, fallbacks included."""
    if isinstance(kernels, Roofline):
        return replace(kernels, calibration=calibration)
    if isinstance(kernels, TableTimes):
        inner = _with_calibration(kernels.fallback, calibration)
        return replace(kernels, calibration=calibration, fallback=inner)
    return kernels


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
