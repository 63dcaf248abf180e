"""The ledger: published numbers of the two references beside what this arithmetic gives."""

from __future__ import annotations

from typing import Any

from afd.plan.ledger import fastafd, qfirst
from afd.plan.ledger.entry import NOTE_ABOVE


def ledger() -> dict[str, Any]:
    """All entries of both references."""
    rows = [entry.as_row() for source in (fastafd, qfirst) for entry in source.entries()]
    within = [r for r in rows if r["difference"] is not None and abs(r["difference"]) <= NOTE_ABOVE]
    return {"rows": rows, "within_5_percent": len(within), "total": len(rows)}
