"""Tables and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from afd.plan.layouts import Estimate


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A plain table; numbers right-aligned, floats to four digits."""
    cells = [[_cell(v) for v in row] for row in rows]
    widths = [max([len(name)] + [len(row[i]) for row in cells]) for i, name in enumerate(header)]
    right = [
        bool(rows) and all(isinstance(r[i], int | float) or r[i] is None for r in rows)
        for i in range(len(header))
    ]
    lines = [list(header), ["-" * w for w in widths], *cells]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right,
                                                                     strict=True)).rstrip()
        for line in lines
    )  # fmt: skip


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value)


ESTIMATE_HEADER = (
    "layout", "cut", "lanes", "batch/GPU", "step ms", "tok/s/GPU", "regime",
)  # fmt: skip


def estimate_row(e: Estimate) -> tuple[Any, ...]:
    """One line of a layout table."""
    return (e.layout, e.cut, e.lanes, e.batch_per_gpu, round(e.step_ms, 3),
            round(e.tokens_per_s_per_gpu, 1), e.regime)  # fmt: skip


def terms(e: Estimate) -> str:
    """Every term of an estimate with its source."""
    rows = [(name, us, source_of(e, name)) for name, us in e.terms_us.items()]
    return table(("term", "us per layer and lane", "source"), rows)


def source_of(e: Estimate, name: str) -> str:
    """Where a term's value came from, as the tables name it."""
    if name in e.sources:
        return e.sources[name]
    if name in ("T_a",):
        return "sum of the above"
    if name == "dense moved":
        return e.sources["T_dense"]
    if name in ("period", "exposed", "boundary in its way"):
        return "pipeline model"
    if name in ("dispatch", "combine"):
        return e.sources.get("T_c", "")
    return e.sources.get("T_e", e.sources.get("T_moe", ""))
