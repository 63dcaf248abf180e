"""How long a simulated step takes: from a hardware profile by the planner, or from a plain table.

A profile is a shipped name (``gb200``, or its longer name ``gb200-nvl72``) or a TOML file of the
same fields. A ``[service]`` table in it goes before the planner: ``step_ms``, or ``ta_us``,
``te_us``, ``tc_us`` (per layer and lane) and ``head_us`` (per step, default 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from afd.errors import ConfigError
from afd.plan.bench import make_bench
from afd.plan.data import load, names
from afd.plan.errors import PlanError
from afd.plan.hardware import Hardware
from afd.plan.layouts import Bench, Workload, disaggregated
from afd.plan.model_spec import ModelSpec
from afd.plan.pipeline import exposed_us, step_us
from afd.plan.profiles import load_hardware


@dataclass(frozen=True, slots=True)
class StepTime:
    """A decode step of an attention rank, and how much of it waits for the experts (µs)."""

    step_us: float
    wait_us: float


class ServiceTimes(Protocol):
    """Decode steps of one layout."""

    def step(self, batch: int, context_tokens: int, lanes: int) -> StepTime:
        """``batch`` requests of ``context_tokens`` on average, on every attention rank."""
        ...


class ServiceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module; either ``step_ms`` or the three terms."""

    step_ms: float | None = None
    ta_us: float | None = None
    te_us: float | None = None
    tc_us: float | None = None
    head_us: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A named profile; ``hardware`` None if it is nothing but a table."""

    name: str
    gpus_per_node: int
    hardware: Hardware | None
    service: ServiceTable | None


@dataclass(frozen=True)
class FixedStep:
    """The same time for every step."""

    time: StepTime

    def step(self, batch: int, context_tokens: int, lanes: int) -> StepTime:
        """See ServiceTimes."""
        return self.time


@dataclass(frozen=True)
class FixedTerms:
    """The planner's pipeline over given terms (see afd.plan.pipeline)."""

    model: ModelSpec
    ta_us: float
    te_us: float
    tc_us: float
    head_us: float

    def step(self, batch: int, context_tokens: int, lanes: int) -> StepTime:
        """See ServiceTimes."""
        terms = (self.ta_us, self.te_us, self.tc_us, lanes)
        dense_layers = self.model.layers - self.model.moe_layers
        total = step_us(*terms, self.model.moe_layers) + dense_layers * lanes * self.ta_us
        waits = exposed_us(*terms) * lanes * self.model.moe_layers
        return StepTime(total + self.head_us, waits)


class PlannedStep:
    """The planner's estimate of the layout at each batch and context."""

    def __init__(self, bench: Bench, attention_nodes: int, ffn_nodes: int) -> None:
        self._bench = bench
        self._nodes = (attention_nodes, ffn_nodes)
        self._cached = lru_cache(maxsize=4096)(self._estimate)

    def step(self, batch: int, context_tokens: int, lanes: int) -> StepTime:
        """See ServiceTimes."""
        return self._cached(batch, context_tokens, lanes)

    def _estimate(self, batch: int, context_tokens: int, lanes: int) -> StepTime:
        bench = self._bench.at_context(context_tokens)
        estimate = disaggregated(bench, *self._nodes, batch, lanes)
        waits = estimate.terms_us["exposed"] * lanes * bench.model.moe_layers
        return StepTime(estimate.step_ms * 1000, waits)


def _slug(name: str) -> str:
    return "-".join(name.lower().split())


def _table(name: str) -> tuple[str, dict[str, Any]]:
    """(name that load_hardware takes, the file's values)."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"--simulate {name}: there is no such file")
        return name, load("hardware", "hardware", name)
    known = {short: load("hardware", "hardware", short) for short in names("hardware")}
    for short, values in known.items():
        if name.lower() in (short, _slug(str(values.get("name", short)))):
            return short, values
    listed = ", ".join(
        _slug(str(values.get("name", short)))
        for short, values in known.items()
        if values.get("role", "gpu") == "gpu"
    )
    raise ConfigError(f"--simulate {name}: unknown profile; known: {listed}, or a TOML file")


def load_profile(name: str) -> Profile:
    """See the module; raises ConfigError naming what is wrong with it."""
    try:
        short, values = _table(name)
        service = None
        if "service" in values:
            service = msgspec.convert(values["service"], ServiceTable)
        only_a_table = service is not None and "memory_bytes" not in values
        hardware = None if only_a_table else load_hardware(short)
    except PlanError as error:
        raise ConfigError(f"--simulate {name}: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"--simulate {name}: [service]: {error}") from error
    per_node = values.get("gpus_per_node", 1)
    if not isinstance(per_node, int) or per_node < 1:
        raise ConfigError(f"--simulate {name}: gpus_per_node must be at least 1")
    if hardware is not None and hardware.role != "gpu":
        raise ConfigError(f"--simulate {name}: {hardware.name} keeps no KV cache")
    return Profile(str(values.get("name", name)), per_node, hardware, service)


def service_times(
    profile: Profile, model: ModelSpec, attention_nodes: int, ffn_nodes: int, context_tokens: int
) -> ServiceTimes:
    """The times of a layout; raises ConfigError for a table that says too little."""
    table = profile.service
    if table is None:
        if profile.hardware is None:
            raise ConfigError(f"profile {profile.name} has neither hardware figures nor [service]")
        bench = make_bench(model, profile.hardware, Workload(context_tokens))
        return PlannedStep(bench, attention_nodes, ffn_nodes)
    if table.step_ms is not None and table.step_ms > 0:
        return FixedStep(StepTime(table.step_ms * 1000, 0.0))
    if table.ta_us is None or table.te_us is None or table.tc_us is None:
        raise ConfigError(
            f"profile {profile.name}: [service] needs step_ms above 0, or ta_us, te_us and tc_us"
        )
    return FixedTerms(model, table.ta_us, table.te_us, table.tc_us, table.head_us)
