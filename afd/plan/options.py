"""From a command's options to a bench, limits and layouts that can be."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from afd.plan.bench import make_bench
from afd.plan.cuts import Cut
from afd.plan.data import load
from afd.plan.errors import DoesNotFitError, PlanError
from afd.plan.hardware import Hardware
from afd.plan.layouts import Bench, Workload
from afd.plan.memory import require_batch_fits, require_ffn_fits
from afd.plan.model_spec import ModelSpec, load_model
from afd.plan.profiles import load_hardware
from afd.plan.search import Limits
from afd.plan.times.calibration import Calibration, load_calibration
from afd.plan.times.tables import load_tables, tables_installed


def tables_wanted(choice: str, model: ModelSpec | None, hardware: Hardware) -> bool:
    """``auto`` takes the tables when they are installed and have this chip and shape."""
    if choice == "roofline" or (choice == "auto" and not tables_installed()):
        return False
    if model is None:
        return True
    found = load_tables(model, hardware) is not None
    if choice == "tables" and not found:
        raise PlanError(f"the kernel tables hold nothing for {model.name} on {hardware.name}")
    return found


def calibration_from(path: Path | None) -> Calibration | None:
    """A calibration file over the shipped roofline one; None without a path. Raises PlanError."""
    if path is None:
        return None
    table_ = load("calibration", "calibration", str(path))
    base = load_calibration("roofline")
    unknown = sorted(set(table_) - set(Calibration.__dataclass_fields__))
    if unknown:
        raise PlanError(f"{path}: unknown field {unknown[0]!r}")
    for key, value in table_.items():
        wanted = {"source": str, "dense_us": dict}.get(key, (int, float))
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise PlanError(f"{path}: field {key!r} has the wrong type: {value!r}")
    return replace(base, **table_)


def _expert_counts(path: Path | None, model: ModelSpec) -> tuple[float, ...]:
    if path is None:
        return ()
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
        values = tuple(float(c) for c in counts)
    except (ValueError, TypeError) as error:
        raise PlanError(f"{path}: must be a JSON list of numbers: {error}") from error
    if len(values) != model.experts:
        raise PlanError(
            f"{path}: {len(values)} counts, but {model.name} has {model.experts} experts"
        )
    return values


def bench_from(options: argparse.Namespace) -> Bench:
    """The bench the workload flags describe, at the first context."""
    model = load_model(options.model)
    hardware = load_hardware(options.hardware)
    if hardware.role != "gpu":
        raise PlanError(
            f"{hardware.name} keeps no KV cache, so it serves nothing alone; see `afd-plan project`"
        )
    workload = Workload(
        options.context[0], options.kv_bytes, options.context_cv, options.skew,
        _expert_counts(options.expert_counts, model),
    )  # fmt: skip
    return make_bench(
        model, hardware, workload, calibration_from(options.calibration),
        use_tables=tables_wanted(options.kernels, model, hardware),
        measurements=options.measurements,
    )  # fmt: skip


def limits_from(options: argparse.Namespace, bench: Bench) -> Limits:
    """What the flags allow; the GPUs must be one scale-up domain."""
    gpus = bench.hardware.max_gpus if options.gpus is None else options.gpus
    if gpus < 1:
        raise PlanError("--gpus must be at least 1")
    if gpus > bench.hardware.max_gpus:
        raise PlanError(
            f"--gpus {gpus}: one {bench.hardware.name} domain has "
            f"{bench.hardware.max_gpus}; plan one domain and replicate it"
        )
    cuts = tuple(Cut) if "all" in options.cut else tuple(Cut(c) for c in options.cut)
    return Limits(gpus, options.slo_tpot_ms, tuple(options.lanes), cuts,
                  options.survive_node_loss)  # fmt: skip


def require_fits(bench: Bench, limits: Limits, ratio: tuple[int, int], cut: Cut,
                  batch: int | None = None) -> None:  # fmt: skip
    """Raises where M:N takes more GPUs than allowed or a side's memory does not hold its part."""
    m, n = ratio
    gpus = (m + n) * bench.hardware.gpus_per_node
    if gpus > limits.gpus:
        raise PlanError(f"{m}:{n} takes {gpus} GPUs and {limits.gpus} are allowed")
    ffn_gpus = n * bench.hardware.gpus_per_node
    require_ffn_fits(bench.model, bench.hardware, cut, ffn_gpus, bench.rule)
    if batch is not None:
        load = bench.workload
        require_batch_fits(bench.model, bench.hardware, cut, load.context_tokens,
                           load.kv_bytes_per_element, batch)  # fmt: skip


def default_ratios(bench: Bench, limits: Limits) -> list[tuple[int, int]]:
    """Every M beside the smallest N whose GPUs hold the experts, for the first cut allowed."""
    nodes = limits.gpus // bench.hardware.gpus_per_node
    if nodes < 2:
        raise PlanError(f"{limits.gpus} GPUs are not two nodes of {bench.hardware.gpus_per_node}")
    for n in range(1, nodes):
        try:
            require_fits(bench, limits, (1, n), limits.cuts[0])
            return [(m, n) for m in range(1, nodes - n + 1)]
        except DoesNotFitError as error:
            refused = error
    raise refused


def possible_ratios(bench: Bench, limits: Limits) -> list[tuple[int, int]]:
    """``default_ratios``, or none where no M:N can be."""
    try:
        return default_ratios(bench, limits)
    except PlanError:
        return []
