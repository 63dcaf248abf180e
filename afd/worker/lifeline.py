"""A worker must not outlive its launcher: it holds the read end of a pipe whose only writer is the
launcher, so EOF means that the launcher is gone, however it went."""

from __future__ import annotations

import os
import threading

_ORPHANED_EXIT_CODE = 3


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    # The main thread may be inside a kernel call; nothing here holds state worth saving.
    os._exit(_ORPHANED_EXIT_CODE)


def end_with_launcher(fd: int) -> None:
    """Ends this process as soon as ``fd`` reads EOF."""
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()
