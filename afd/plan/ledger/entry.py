"""One published number beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOTE_ABOVE = 0.05


@dataclass(frozen=True)
class Entry:
    """One published number. ``ours`` None means arithmetic cannot reach it; the note says why."""

    name: str
    reference: str
    published: float
    ours: float | None
    note: str = ""
    kind: str = "arithmetic"

    @property
    def difference(self) -> float | None:
        """Relative, ours against published; absolute where the published value is zero."""
        if self.ours is None:
            return None
        if self.published == 0:
            return self.ours
        return self.ours / self.published - 1

    def as_row(self) -> dict[str, Any]:
        note = self.note
        if not note and (self.difference is None or abs(self.difference) > NOTE_ABOVE):
            note = "differs by more than 5 %"
        return {
            "name": self.name, "reference": self.reference, "published": self.published,
            "ours": self.ours, "difference": self.difference, "kind": self.kind, "note": note,
        }  # fmt: skip
