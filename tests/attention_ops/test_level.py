"""The instruction-set level that a process starts at."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from afd import _megamoe as ops

SHOW = "from afd import _megamoe; print(_megamoe.isa_level())"


def started(level: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh process, with the level in its environment if there is one."""
    environment = {k: v for k, v in os.environ.items() if k != "AFD_ISA"}
    if level is not None:
        environment["AFD_ISA"] = level
    return subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("level", [None, *ops.isa_levels()])
def test_the_environment_names_a_process_s_first_level(level: str | None) -> None:
    assert started(level).stdout.strip() == (level or ops.isa_levels()[-1])


def test_an_unknown_level_is_one_sentence() -> None:
    done = started("sse9")
    assert done.returncode != 0
    assert "unknown level 'sse9'; known: portable" in done.stderr.splitlines()[-1]
