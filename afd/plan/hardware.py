"""A device and its fabric, as data."""

from __future__ import annotations

from dataclasses import dataclass

from afd.plan.data import load, take
from afd.plan.errors import PlanError


@dataclass(frozen=True)
class Hardware:
    """Peak figures of one accelerator and of the links between them; see ``configs/hardware``.

    ``gpus_per_node`` is the unit in which M and N are counted; ``max_gpus`` one scale-up domain;
    ``calibration`` names the shipped kernel calibration for it.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    fp8_flops_per_s: float
    bf16_flops_per_s: float
    link_bytes_per_s: float
    link_latency_us: float
    gpus_per_node: int
    max_gpus: int
    processors: int
    boundary_processors: int
    role: str = "gpu"
    note: str = ""
    calibration: str = "roofline"

    def __post_init__(self) -> None:
        for field, kind in self.__annotations__.items():
            value = getattr(self, field)
            wanted = {"str": str, "int": int}.get(kind, (int, float))
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise PlanError(f"hardware {self.name}: {field} must be a {kind}, not {value!r}")
        for field in ("memory_bytes", "memory_bytes_per_s", "fp8_flops_per_s", "bf16_flops_per_s",
                      "link_bytes_per_s", "gpus_per_node", "max_gpus", "processors"):  # fmt: skip
            if not getattr(self, field) > 0:
                raise PlanError(f"hardware {self.name}: {field} must be above zero")


def load_hardware(name: str) -> Hardware:
    """A shipped profile by name (``gb200`` …), a TOML by path, or ``cpu``: measured now."""
    if name.lower() == "cpu":
        from afd.plan.times.cpu import measure_cpu

        return measure_cpu()
    table = load("hardware", "hardware", name.lower() if not name.endswith(".toml") else name)
    where = f"hardware {name}"
    fields = Hardware.__dataclass_fields__
    values = {}
    for key, field in fields.items():
        if key in table:
            values[key] = table[key]
        elif key not in ("role", "note", "calibration"):
            values[key] = take(table, key, where)
        else:
            values[key] = field.default
    return Hardware(**values)
