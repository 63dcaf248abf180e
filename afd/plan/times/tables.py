"""Measured kernel tables of the ``aiconfigurator-core`` package, when it is installed.

Latencies are in ms for attention and MoE (the package's Rust engine adds them to step times in ms
unscaled; only its DeepEP and all-to-all tables carry ``_us`` in their column names). Attention
depends on the KV bytes alone, so points of all batches and lengths share one curve.

Expert times are those of its DeepGEMM rows, the kernel of the runs we calibrate on, with the
popularity its models assume (rank^-1.01) and without. ``num_tokens`` counts the tokens of all
ranks. The other kernels of the package are left out: they also route and quantise the tokens of
all ranks on every rank (0.04 µs a token against 0.006), which an engine that dispatches routed
rows does not do.
"""

from __future__ import annotations

import importlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afd.plan.errors import ExtraMissingError
from afd.plan.hardware import Hardware
from afd.plan.model_spec import ModelSpec
from afd.plan.skew import busiest_rank_factor
from afd.plan.times.calibration import Calibration
from afd.plan.times.experts import ExpertTerm
from afd.plan.times.kernels import KernelTimes, Term, last_wave_factor

FRAMEWORKS = ("vllm", "sglang", "trtllm")
SYSTEM_OF = {"GB200 NVL72": "gb200", "GB300 NVL72": "gb300", "HGX B200": "b200_sxm",
             "HGX H200": "h200_sxm", "HGX H100": "h100_sxm"}  # fmt: skip
TABLE_SKEW_EXPONENT = 1.01
KV_TYPES = {2.0: "bfloat16", 1.0: "fp8"}


@dataclass(frozen=True)
class Curve:
    """A monotone piecewise-linear curve through (load, µs) points, sorted by load."""

    loads: tuple[float, ...]
    us: tuple[float, ...]

    def at(self, load: float) -> float:
        """Linear inside, the last segment's slope beyond the last point."""
        if len(self.loads) == 1 or load <= self.loads[0]:
            return self.us[0]
        i = min(bisect_left(self.loads, load), len(self.loads) - 1)
        slope = (self.us[i] - self.us[i - 1]) / (self.loads[i] - self.loads[i - 1])
        return self.us[i - 1] + slope * (load - self.loads[i - 1])


@dataclass(frozen=True)
class ExpertCurves:
    """Expert stages of one rank by tokens of all ranks, a curve per rank count.

    ``even`` has equally popular experts, ``hot`` the busiest rank under ``TABLE_SKEW_EXPONENT``;
    ``launch_us`` is what is left when hardly any work is.
    """

    even: Mapping[int, Curve]
    hot: Mapping[int, Curve]
    launch_us: float

    def at(self, tokens: float, ranks: int, busiest: float, busiest_of_table: float) -> float:
        """µs; between and beyond the two popularities linear in the busiest rank's rows."""
        even, hot = _between(self.even, ranks, tokens), _between(self.hot, ranks, tokens)
        if busiest_of_table <= 1:
            return even * busiest
        return even + max(0.0, hot - even) * (busiest - 1) / (busiest_of_table - 1)


def _between(curves: Mapping[int, Curve], ranks: int, tokens: float) -> float:
    """Between the two nearest rank counts, linear in log2; held constant beyond the outermost."""
    counts = sorted(curves)
    low = max((c for c in counts if c <= ranks), default=counts[0])
    high = min((c for c in counts if c >= ranks), default=counts[-1])
    below = curves[low].at(tokens)
    if low == high:
        return below
    share = math.log2(ranks / low) / math.log2(high / low)
    return below + share * (curves[high].at(tokens) - below)


@dataclass(frozen=True)
class Tables:
    """Attention time by resident tokens of one layer, and expert stages; either may be missing."""

    attention: Curve | None
    experts: ExpertCurves | None
    source: str


def tables_installed() -> bool:
    """Whether both the tables and what reads them can be imported."""
    return all(find_spec(p) is not None for p in ("aiconfigurator_core", "pyarrow"))


def load_tables(
    model: ModelSpec, hardware: Hardware, kv_bytes_per_element: float = 2.0
) -> Tables | None:
    """The package's tables for this model's shapes, or None where it has none for this chip."""
    for package in ("aiconfigurator_core", "pyarrow"):
        if find_spec(package) is None:
            raise ExtraMissingError(package, "reading measured kernel tables")
    system = SYSTEM_OF.get(hardware.name)
    spec = find_spec("aiconfigurator_core")
    if system is None or spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system
    attention = _attention_curve(root, model, kv_bytes_per_element)
    experts = _expert_curves(root, model)
    if attention is None and experts is None:
        return None
    return Tables(attention, experts, f"aiconfigurator-core tables, {system}")


def _records(root: Path, pattern: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the first framework's newest table that match ``wanted``."""
    parquet = importlib.import_module("pyarrow.parquet")
    for framework in FRAMEWORKS:
        found: list[dict[str, Any]] = []
        for path in sorted(root.glob(pattern.format(framework=framework))):
            filters = [(k, "==", v) for k, v in wanted.items()]
            found = parquet.read_table(path, filters=filters).to_pylist() or found
        if found:
            return found
    return []


def _attention_curve(root: Path, model: ModelSpec, kv_bytes_per_element: float) -> Curve | None:
    kv_type = KV_TYPES.get(kv_bytes_per_element)
    if model.latent_kv_elements or model.windowed_layers or kv_type is None:
        return None
    rows = _records(
        root,
        "attention/{framework}/*/generation_attention_perf.parquet",
        {"num_heads": model.query_heads, "num_key_value_heads": model.kv_heads,
         "head_dim": model.head_dim, "window_size": 0, "kv_cache_dtype": kv_type},
    )  # fmt: skip
    return _curve(
        (row["batch_size"] * (row["isl"] + row["step"]), row["latency"] * 1e3)
        for row in rows if row["isl"] + row["step"] >= 1024
    )  # fmt: skip


def _expert_curves(root: Path, model: ModelSpec) -> ExpertCurves | None:
    if model.expert_bytes_per_element != 1:
        return None
    rows = _records(
        root,
        "moe/{framework}/*/moe_perf.parquet",
        {"kernel_source": "deepgemm", "moe_dtype": "fp8_block", "moe_tp_size": 1,
         "hidden_size": model.hidden, "inter_size": model.expert_width,
         "num_experts": model.experts, "topk": model.experts_per_token},
    )  # fmt: skip
    curves: list[dict[int, Curve]] = []
    for distribution in ("balanced", f"power_law_{TABLE_SKEW_EXPONENT}"):
        points: dict[int, list[tuple[float, float]]] = {}
        for row in rows:
            if row["distribution"] == distribution:
                at = points.setdefault(row["moe_ep_size"], [])
                at.append((row["num_tokens"], row["latency"] * 1e3))
        found = {ranks: _curve(at) for ranks, at in points.items()}
        curves.append({ranks: curve for ranks, curve in found.items() if curve is not None})
    even, hot = curves
    if not even or not hot:
        return None
    launch_us = min(curve.us[0] for curve in even.values())
    return ExpertCurves(even, hot, launch_us)


def _curve(points: Iterable[tuple[float, float]]) -> Curve | None:
    """The median of each load's times, made monotone: noise must not make more work look faster."""
    by_load: dict[float, list[float]] = {}
    for load, us in points:
        by_load.setdefault(float(load), []).append(us)
    if not by_load:
        return None
    top, rising = 0.0, []
    for load, times in sorted(by_load.items()):
        top = max(top, sorted(times)[len(times) // 2])
        rising.append((load, top))
    return Curve(tuple(p[0] for p in rising), tuple(p[1] for p in rising))


@dataclass(frozen=True)
class TableTimes:
    """``KernelTimes`` from the tables; what they lack comes from the roofline.

    The tables are of single launches on an idle chip; ``attention_efficiency`` carries them to a
    step.
    """

    fallback: KernelTimes
    tables: Tables
    calibration: Calibration
    model: ModelSpec

    def attention(self, batch: float, context_tokens: float, processors: int) -> Term:
        """Table time over the efficiency, times the last-wave factor."""
        if self.tables.attention is None:
            return self.fallback.attention(batch, context_tokens, processors)
        tail = last_wave_factor(
            batch * self.model.kv_heads, processors, self.calibration.processor_bandwidth_share
        )
        us = self.tables.attention.at(batch * context_tokens)
        us = us * tail / self.calibration.attention_efficiency
        return Term(us, self.tables.source)

    def dense(self, batch: float) -> Term:
        return self.fallback.dense(batch)

    def experts(
        self, tokens_per_rank: float, ranks: int, busiest: float, link_bytes: float
    ) -> ExpertTerm:
        """Table time of the busiest rank, split into launches, reading weights and the rest.

        Rows move at the mean rank's load: with the busiest one's, the measured rows would ask for
        1.6 times the link's peak.
        """
        roof = self.fallback.experts(tokens_per_rank, ranks, 1.0, link_bytes)
        curves = self.tables.experts
        if curves is None:
            return self.fallback.experts(tokens_per_rank, ranks, busiest, link_bytes)
        of_table = busiest_rank_factor(
            self.model.experts, self.model.experts_per_token, ranks, TABLE_SKEW_EXPONENT
        )
        us = curves.at(tokens_per_rank * ranks, ranks, busiest, of_table)
        work_us = max(0.0, us - curves.launch_us)
        weights_us = min(work_us, roof.weights_us)
        return ExpertTerm(
            weights_us, work_us - weights_us, roof.wire_us, self.tables.source, curves.launch_us,
            wire_source=roof.source,
        )  # fmt: skip

    def head(self, batch: float) -> Term:
        return self.fallback.head(batch)

    def transfer(self, tokens: float, out_bytes: float, back_bytes: float) -> tuple[Term, Term]:
        return self.fallback.transfer(tokens, out_bytes, back_bytes)
