"""Standard error as the commands write it."""

from __future__ import annotations

import sys

from rich.console import Console

# Columns; more than any line that a command writes has.
_NEVER_WRAPPED = 10_000


def stderr_console() -> Console:
    """Wraps on a terminal alone: a file or a pipe has no width, and a sentence is one line there,
    whatever ``COLUMNS`` says of a terminal elsewhere."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else _NEVER_WRAPPED)
