"""Puts model, hardware, calibration and kernel source together."""

from __future__ import annotations

from pathlib import Path

from afd.plan.hardware import Hardware
from afd.plan.layouts import Bench, Workload
from afd.plan.measurements import Measured, read_measurements
from afd.plan.memory import DEFAULT_RULE, MemoryRule
from afd.plan.model_spec import ModelSpec
from afd.plan.times.calibration import Calibration, load_calibration
from afd.plan.times.kernels import KernelTimes, Roofline
from afd.plan.times.tables import Tables, TableTimes, load_tables


def make_bench(
    model: ModelSpec,
    hardware: Hardware,
    workload: Workload,
    calibration: Calibration | None = None,
    rule: MemoryRule = DEFAULT_RULE,
    use_tables: bool = False,
    measurements: Path | None = None,
) -> Bench:
    """Kernel sources in order of trust: the user's measurements, tables, roofline."""
    tables = None
    if use_tables:
        tables = load_tables(model, hardware, workload.kv_bytes_per_element)
    if calibration is None:
        calibration = load_calibration(calibration_name(hardware, tables))
    kernels: KernelTimes = Roofline(model, hardware, calibration, workload.kv_bytes_per_element)
    if tables is not None:
        kernels = TableTimes(kernels, tables, calibration, model)
    if measurements is not None:
        kernels = Measured(kernels, read_measurements(measurements))
    return Bench(model, hardware, calibration, kernels, workload, rule)


def calibration_name(hardware: Hardware, tables: Tables | None) -> str:
    """The shipped calibration that goes with these kernel sources.

    That of the tables assumes expert times that include their launches, so attention tables alone
    go with the roofline's.
    """
    if tables is not None and tables.experts is not None:
        return "tables"
    return hardware.calibration
