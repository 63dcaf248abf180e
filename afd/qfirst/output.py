"""What the commands print and draw with."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afd.qfirst.errors import ExtraMissingError, QFirstError

COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#475569")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first is left-aligned, the rest right-aligned."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join([cells[0].ljust(widths[0]), *rest]).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *(line(r) for r in rows)])


def require_matplotlib(path: Path | None) -> None:
    """Says before any work, and only if ``path`` is asked for, that a plot cannot be drawn."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg"):
        raise QFirstError(f"--plot {path}: the suffix must be .png or .svg")
    if find_spec("matplotlib") is None:
        raise ExtraMissingError("matplotlib", "a plot", "plan")


def figure(rows: int, width: float = 10.0, row_height: float = 3.2) -> tuple[Any, list[Any]]:
    """A matplotlib figure of ``rows`` axes; no window system is touched."""
    module = importlib.import_module("matplotlib.figure")
    made = module.Figure(figsize=(width, row_height * rows), layout="constrained")
    return made, list(made.subplots(rows, 1, squeeze=False)[:, 0])
