"""The protocol's C++ stress program under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.megamoe.native import built


def _run(program: Path, seed: int, rounds: int) -> None:
    done = subprocess.run([program, str(seed), str(rounds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert f"{rounds} rounds agree" in done.stdout


def _program(sanitizer: str) -> Path:
    return built("megamoe-stress", sanitizer) / "megamoe-stress"


def test_no_data_race_in_the_protocol() -> None:
    _run(_program("thread"), seed=1, rounds=20)


@pytest.mark.slow
def test_no_data_race_in_a_long_run() -> None:
    _run(_program("thread"), seed=10_000, rounds=1000)


@pytest.mark.slow
def test_no_bad_access_or_undefined_behaviour() -> None:
    _run(_program("address,undefined"), seed=1, rounds=200)
