"""The ledger: published numbers of the two references beside what this arithmetic gives."""

from __future__ import annotations

from collections.abc import Callable
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


def ledger() -> dict[str, Any]:
    """All entries of both references."""
    from afd.plan.ledger.fastafd import entries as fastafd
    from afd.plan.ledger.qfirst import entries as qfirst

    sources: tuple[Callable[[], list[Entry]], ...] = (fastafd, qfirst)
    rows = [entry.as_row() for source in sources for entry in source()]
    within = [r for r in rows if r["difference"] is not None and abs(r["difference"]) <= NOTE_ABOVE]
    return {"rows": rows, "within_5_percent": len(within), "total": len(rows)}
