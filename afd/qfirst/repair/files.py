"""Files that are either whole or the old ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path`` that takes its place when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    mask = os.umask(0)
    os.umask(mask)
    try:
        yield partial
        partial.chmod(0o666 & ~mask)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes ``text`` as UTF-8 by replacement."""
    with replace_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
