"""What the model says of a measured row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from afd.plan.bench import make_bench
from afd.plan.hardware import Hardware
from afd.plan.layouts import Bench, Estimate, Workload, colocated, disaggregated
from afd.plan.measured.rows import Row
from afd.plan.measurements import Measured
from afd.plan.model_spec import load_model
from afd.plan.times.calibration import Calibration
from afd.plan.times.kernels import KernelTimes, Roofline
from afd.plan.times.tables import TableTimes

Benches = dict[tuple[str, float], Bench]


def benches_for(
    rows: Iterable[Row],
    hardware: Hardware,
    calibration: Calibration | None,
    kv_bytes_per_element: float,
    use_tables: bool,
) -> Benches:
    """One bench per workload of the rows."""
    workloads = sorted({row.workload for row in rows})
    of_model = {
        name: make_bench(
            load_model(name), hardware, Workload(1.0, kv_bytes_per_element), calibration,
            use_tables=use_tables,
        )
        for name in {name for name, _ in workloads}
    }  # fmt: skip
    return {(name, context): of_model[name].at_context(context) for name, context in workloads}


def recalibrated(bench: Bench, calibration: Calibration) -> Bench:
    """The same bench with other parameters, fallback kernels included."""
    return replace(
        bench, calibration=calibration, kernels=_with_calibration(bench.kernels, calibration)
    )


def _with_calibration(kernels: KernelTimes, calibration: Calibration) -> KernelTimes:
    if isinstance(kernels, Roofline):
        return replace(kernels, calibration=calibration)
    if isinstance(kernels, TableTimes):
        inner = _with_calibration(kernels.fallback, calibration)
        return replace(kernels, calibration=calibration, fallback=inner)
    if isinstance(kernels, Measured):
        return replace(kernels, fallback=_with_calibration(kernels.fallback, calibration))
    return kernels


def estimate(bench: Bench, row: Row) -> Estimate:
    """The layout a row measured."""
    if row.system == "colocated":
        return colocated(bench, row.expert_parallel, row.batch)
    return disaggregated(
        bench, row.attention_nodes, row.ffn_nodes, row.batch, row.lanes,
        expert_parallel=row.expert_parallel or None,
    )  # fmt: skip
