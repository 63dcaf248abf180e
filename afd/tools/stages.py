"""Progress of a conversion: a bar per stage on a terminal, else a plain line per stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.progress import Progress

Advance = Callable[[], None]


class Stages:
    """Announces named stages; ``progress`` draws them if it is on a terminal."""

    def __init__(self, progress: Progress | None = None, lines: TextIO | None = None) -> None:
        """``lines``: where the plain lines go, standard error by default."""
        self._bars = progress if progress is not None and progress.console.is_terminal else None
        self._lines = lines or sys.stderr

    @contextmanager
    def stage(self, name: str, steps: int | None = None) -> Iterator[Advance]:
        """Runs one stage of ``steps`` steps; yields the function that counts one of them."""
        if self._bars is None:
            print(f"{name} ...", file=self._lines, flush=True)
            yield lambda: None
            return
        bars = self._bars
        task = bars.add_task(name, total=steps)
        try:
            yield lambda: bars.advance(task)
        finally:
            bars.remove_task(task)
