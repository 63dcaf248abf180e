"""A device and its fabric, as data."""

from __future__ import annotations

from dataclasses import dataclass

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
