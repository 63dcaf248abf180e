"""Measured kernel tables of the ``aiconfigurator-core`` package, when it is installed.

Latencies are in ms for attention and MoE (the package's Rust engine adds them to step times in ms
unscaled; only its DeepEP and all-to-all tables carry ``_us`` in their column names). Attention
depends on the KV bytes alone, so points of all batches and lengths share one curve.

The package's expert tables are not used: on every rank they also price routing and quantising the
tokens of all ranks, which an engine that dispatches routed rows does not do. On the GB200 rows they
raise the worst error from 8 % to 18 % (EP64).
"""

from __future__ import annotations

import importlib
from bisect import bisect_left
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afd.plan.calibration import Calibration
from afd.plan.errors import ExtraMissingError
from afd.plan.hardware import Hardware
from afd.plan.kernels import ExpertTerm, KernelTimes, Term, last_wave_factor
from afd.plan.model_spec import ModelSpec

FRAMEWORKS = ("vllm", "sglang", "trtllm")
SYSTEM_OF = {"GB200 NVL72": "gb200", "GB300 NVL72": "gb300", "HGX B200": "b200_sxm",
             "HGX H200": "h200_sxm", "HGX H100": "h100_sxm"}  # fmt: skip


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
class Tables:
    """Attention time by resident tokens of one layer."""

    attention: Curve
    source: str


def tables_installed() -> bool:
    """Whether both the tables and what reads them can be imported."""
    return all(find_spec(p) is not None for p in ("aiconfigurator_core", "pyarrow"))


def load_tables(model: ModelSpec, hardware: Hardware) -> Tables | None:
    """The package's tables for this model's shapes, or None where it has none for this chip."""
    for package in ("aiconfigurator_core", "pyarrow"):
        if find_spec(package) is None:
            raise ExtraMissingError(package, "reading measured kernel tables")
    system = SYSTEM_OF.get(hardware.name)
    spec = find_spec("aiconfigurator_core")
    if system is None or spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system
    attention = _attention_curve(root, model)
    if attention is None:
        return None
    return Tables(attention, f"aiconfigurator-core tables, {system}")


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


def _attention_curve(root: Path, model: ModelSpec) -> Curve | None:
    if model.latent_kv_elements:
        return None
    rows = _records(
        root,
        "attention/{framework}/*/generation_attention_perf.parquet",
        {"num_heads": model.query_heads, "num_key_value_heads": model.kv_heads,
         "head_dim": model.head_dim, "window_size": 0, "kv_cache_dtype": "bfloat16"},
    )  # fmt: skip
    by_load: dict[float, list[float]] = {}
    for row in rows:
        tokens = row["batch_size"] * (row["isl"] + row["step"])
        if row["isl"] + row["step"] >= 1024:
            by_load.setdefault(float(tokens), []).append(row["latency"] * 1e3)
    return _curve({k: sorted(v)[len(v) // 2] for k, v in by_load.items()})


def _curve(points: dict[float, float]) -> Curve | None:
    if not points:
        return None
    ordered = sorted(points.items())
    top = 0.0
    rising = []
    for load, us in ordered:
        top = max(top, us)  # timing noise must not make more work look faster
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
    kv_heads: int

    def attention(self, batch: float, context_tokens: float, processors: int) -> Term:
        """Table time over the efficiency, times the last-wave factor."""
        tail = last_wave_factor(
            batch * self.kv_heads, processors, self.calibration.processor_bandwidth_share
        )
        us = self.tables.attention.at(batch * context_tokens)
        us = us * tail / self.calibration.attention_efficiency
        return Term(us, self.tables.source)

    def dense(self, batch: float) -> Term:
        return self.fallback.dense(batch)

    def experts(
        self, tokens_per_rank: float, ranks: int, busiest: float, link_bytes: float
    ) -> ExpertTerm:
        return self.fallback.experts(tokens_per_rank, ranks, busiest, link_bytes)

    def head(self, batch: float) -> Term:
        return self.fallback.head(batch)
