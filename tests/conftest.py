"""What tests of every part need of the machine, and no more than that of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from afd.launch.listen import socket_folder


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A private folder whose path is short enough for sockets; ``tmp_path`` may be too long."""
    folder = socket_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def plain_output() -> Iterator[None]:
    """Commands write for no terminal in particular, whatever the one around these tests wants."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        yield
