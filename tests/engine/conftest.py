"""Checkpoints on disk, written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.engine.cases import SPECS


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Maps a name of SPECS to its folder."""
    written: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in written:
            written[name] = write_checkpoint(tmp_path_factory.mktemp(name), SPECS[name])
        return written[name]

    return get
