"""Hardware by name: a shipped profile, a file, or this machine."""

from __future__ import annotations

from afd.plan.data import load, take
from afd.plan.hardware import Hardware
from afd.plan.times.cpu import measure_cpu


def load_hardware(name: str) -> Hardware:
    """A shipped profile by name (``gb200`` …), a TOML by path, or ``cpu``: measured now."""
    if name.lower() == "cpu":
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
