"""Compares the model with measured rows; refits it with a workload left out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from afd.plan.calibration import Calibration
from afd.plan.fit import fit_calibration
from afd.plan.hardware import Hardware
from afd.plan.layouts import Estimate
from afd.plan.model_spec import load_model
from afd.plan.replay import Benches, benches_for, estimate, recalibrated
from afd.plan.rows import Row, impossible_because, read_rows


def split_rows(
    rows: list[Row], hardware: Hardware, kv_bytes_per_element: float
) -> tuple[list[Row], list[dict[str, Any]]]:
    """(possible rows, flagged rows with the reason)."""
    possible, flagged = [], []
    for row in rows:
        why = impossible_because(row, load_model(row.model), hardware, kv_bytes_per_element)
        if why is None:
            possible.append(row)
        else:
            flagged.append({**asdict(row), "reason": why})
    return possible, flagged


def errors_summary(errors: list[float]) -> dict[str, float | None]:
    """Median, 90th percentile and worst of absolute errors; None where there is no row."""
    if not errors:
        return {"median_abs_error": None, "p90_abs_error": None, "worst_abs_error": None}
    a = np.abs(np.array(errors))
    return {
        "median_abs_error": float(np.median(a)),
        "p90_abs_error": float(np.quantile(a, 0.9)),
        "worst_abs_error": float(a.max()),
    }


def validate(
    path: Path,
    hardware: Hardware,
    calibration: Calibration | None = None,
    kv_bytes_per_element: float = 2.0,
    leave_one_out: bool = False,
    use_tables: bool = False,
) -> dict[str, Any]:
    """Errors of predicted throughput, row by row and in sum; flagged rows are left out."""
    possible, flagged = split_rows(read_rows(path), hardware, kv_bytes_per_element)
    benches = benches_for(possible, hardware, calibration, kv_bytes_per_element, use_tables)
    out = [_compared(row, estimate(benches[row.workload], row)) for row in possible]
    result: dict[str, Any] = {"rows": out, **errors_summary([r["error"] for r in out])}
    for system in ("afd", "colocated"):
        result[system] = errors_summary([r["error"] for r in out if r["system"] == system])
    result["flagged"] = flagged
    if leave_one_out:
        result["leave_one_workload_out"] = _leave_one_out(
            possible, benches, hardware, kv_bytes_per_element, use_tables
        )
    return result


def _compared(row: Row, got: Estimate) -> dict[str, Any]:
    return {
        **asdict(row),
        "measured": row.tokens_per_s_per_gpu,
        "predicted": got.tokens_per_s_per_gpu,
        "error": got.tokens_per_s_per_gpu / row.tokens_per_s_per_gpu - 1,
        "measured_step_ms": row.implied_step_ms,
        "predicted_step_ms": got.step_ms,
        "regime": got.regime,
    }


def _leave_one_out(
    rows: list[Row],
    benches: Benches,
    hardware: Hardware,
    kv_bytes_per_element: float,
    use_tables: bool,
) -> dict[str, Any]:
    """Refits without each (model, context) in turn and predicts the rows that were left out."""
    out = []
    for workload in sorted({row.workload for row in rows}):
        kept = [row for row in rows if row.workload != workload]
        if not kept:
            continue
        fitted = fit_calibration(kept, hardware, kv_bytes_per_element, use_tables, benches)
        bench = recalibrated(benches[workload], fitted)
        left = [row for row in rows if row.workload == workload]
        out += [_compared(row, estimate(bench, row)) for row in left]
    summary: dict[str, Any] = errors_summary([r["error"] for r in out])
    for system in ("afd", "colocated"):
        summary[system] = errors_summary([r["error"] for r in out if r["system"] == system])
    summary["rows"] = out
    return summary
