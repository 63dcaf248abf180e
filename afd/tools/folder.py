"""A folder that exists either whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afd.tools.errors import UpcycleError


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder beside ``target`` that takes its name when the block succeeds.

    If the block raises, the temporary folder is removed. If another process has made ``target``
    meanwhile, that one stays and ours is discarded. Raises UpcycleError if the disk refuses.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    except OSError as error:
        raise UpcycleError(f"{target.parent} cannot be written: {error.strerror}") from error
    try:
        yield building
        _share(building)
        try:
            building.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_space(target.parent) from error
        raise UpcycleError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def sole_builder(target: Path) -> Iterator[None]:
    """Holds the lock of everyone who builds ``target``; removes what a killed builder left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("a") as lock:
        # The kernel lets go of it when the holder dies, however it dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in target.parent.glob(f"{_prefix(target)}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises UpcycleError if the disk under ``folder`` has less than ``needed_bytes`` free."""
    if shutil.disk_usage(folder).free < needed_bytes:
        raise no_space(folder, needed_bytes)


def no_space(folder: Path, needed_bytes: int | None = None) -> UpcycleError:
    """The error for a full disk."""
    needed = "" if needed_bytes is None else f" ({needed_bytes / 1e6:.0f} MB are needed)"
    return UpcycleError(
        f"the disk under {folder} is full{needed}; free some space or choose another folder"
    )


def _prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _share(folder: Path) -> None:
    # mkdtemp and safetensors make private files; a checkpoint is as public as the umask allows.
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)
