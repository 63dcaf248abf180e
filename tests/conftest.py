"""What tests of every part need of the machine, and no more than that of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from afd.launch.listen import socket_folder

# No example is judged by its clock, which a busy machine slows. The profile in force stays the
# parent, so that what Hypothesis chooses under CI stays chosen.
settings.register_profile(
    "untimed",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


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
