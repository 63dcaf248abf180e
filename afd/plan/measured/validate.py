"""Compares the model with measured rows; refits it with a workload left out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from afd.plan.hardware import Hardware
from afd.plan.layouts import Estimate
from afd.plan.measured.fit import fit_calibration
from afd.plan.measured.replay import benches_for, estimate, recalibrated
from afd.plan.measured.rows import Row, impossible_because, read_rows
from afd.plan.model_spec import load_model
from afd.plan.times.calibration import Calibration


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
    result = validate_rows(possible, hardware, calibration, kv_bytes_per_element, use_tables)
    result["flagged"] = flagged
    if leave_one_out:
        result["leave_one_workload_out"] = _leave_one_out(
            possible, hardware, kv_bytes_per_element, use_tables
        )
    return result


def validate_rows(
    rows: list[Row],
    hardware: Hardware,
    calibration: Calibration | None,
    kv_bytes_per_element: float,
    use_tables: bool,
) -> dict[str, Any]:
    """Errors of rows that are all possible: each, over all, and by system."""
    benches = benches_for(rows, hardware, calibration, kv_bytes_per_element, use_tables)
    return _summary([_compared(row, estimate(benches[row.workload], row)) for row in rows])


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"rows": rows, **errors_summary([r["error"] for r in rows])}
    for system in ("afd", "colocated"):
        result[system] = errors_summary([r["error"] for r in rows if r["system"] == system])
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
    rows: list[Row], hardware: Hardware, kv_bytes_per_element: float, use_tables: bool
) -> dict[str, Any]:
    """Refits without each (model, context) in turn and predicts the rows that were left out."""
    benches = benches_for(rows, hardware, None, kv_bytes_per_element, use_tables)
    out = []
    for workload in sorted({row.workload for row in rows}):
        kept = [row for row in rows if row.workload != workload]
        if not kept:
            continue
        fitted = fit_calibration(kept, hardware, kv_bytes_per_element, use_tables, benches)
        bench = recalibrated(benches[workload], fitted)
        left = [row for row in rows if row.workload == workload]
        out += [_compared(row, estimate(bench, row)) for row in left]
    return _summary(out)
