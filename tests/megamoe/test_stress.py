"""The C++ programs whose ranks are threads, under the sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from afd._megamoe import WeightType, isa_level
from tests.megamoe.native import MAY_COMPILE, built, instrumented
from tests.megamoe.reference import takes_pairs

pytestmark = MAY_COMPILE


def _run(program: Path, seed: int, rounds: int) -> str:
    done = subprocess.run(
        instrumented(program, str(seed), str(rounds)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert f"{rounds} rounds agree" in done.stdout
    return done.stdout


def _program(name: str, sanitizer: str) -> Path:
    return built(name, sanitizer) / name


def _races(program: Path, *arguments: str) -> str:
    """The thread sanitizer's first report; the run must end by it."""
    # Of both accesses' stacks, however many the older thread has made since.
    remembered = "halt_on_error=1 exitcode=66 history_size=7"
    options = {**os.environ, "TSAN_OPTIONS": remembered}
    done = subprocess.run(
        instrumented(program, *arguments), capture_output=True, text=True, env=options, timeout=120
    )
    assert done.returncode == 66, done.stdout + done.stderr[-8000:]
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    return done.stderr


def test_no_data_race_in_the_protocol() -> None:
    said = _run(_program("megamoe-stress", "thread"), seed=1, rounds=40)
    assert int(said.split()[-4]) >= 3  # of the rounds whose pools share all of their work


def test_a_missing_release_is_caught() -> None:
    """The word is stored relaxed: an FFN rank reads IN unordered with the rank that wrote it."""
    report = _races(_program("megamoe-stress-MISSING_RELEASE", "thread"), "1", "20")
    assert "AttentionSide" in report and "::dispatch(" in report
    assert "FfnSide" in report


def test_an_early_buffer_reuse_is_caught() -> None:
    """IN or OUT is used again one number early, while the other side is at it."""
    report = _races(_program("megamoe-stress-EARLY_REUSE", "thread"), "1", "20")
    assert "AttentionSide" in report and "FfnSide" in report


@pytest.mark.skipif(
    not takes_pairs(WeightType.BF16, isa_level()), reason="this machine rounds no row to pairs"
)
def test_a_room_that_two_threads_of_a_pool_share_is_caught() -> None:
    """All tasks that decode rows, to round them to bf16 pairs, do so in the first one's room."""
    report = _races(_program("megamoe-stress-SHARED_ROOM", "thread"), "1", "200")
    assert report.count("ExpertBank::gather<") >= 2
    assert "WireRows::decode_row" in report and "Pool::take" in report


def test_no_data_race_in_the_simt_kernels() -> None:
    """Between CUDA threads of a block, or between ranks."""
    _run(_program("megamoe-simt-stress", "thread"), seed=1, rounds=10)


def test_a_missing_barrier_is_caught() -> None:
    """The runner orders CUDA threads by their barriers alone."""
    report = _races(_program("megamoe-simt-stress", "thread"), "missing-barrier")
    assert "missing_barrier" in report


@pytest.mark.slow
def test_no_data_race_in_a_long_run() -> None:
    _run(_program("megamoe-stress", "thread"), seed=10_000, rounds=1000)
    _run(_program("megamoe-simt-stress", "thread"), seed=10_000, rounds=200)


def test_no_bad_access_or_undefined_behaviour() -> None:
    _run(_program("megamoe-stress", "address,undefined"), seed=1, rounds=20)
    _run(_program("megamoe-simt-stress", "address,undefined"), seed=1, rounds=5)


@pytest.mark.slow
def test_no_bad_access_or_undefined_behaviour_in_a_long_run() -> None:
    _run(_program("megamoe-stress", "address,undefined"), seed=2, rounds=200)
    _run(_program("megamoe-simt-stress", "address,undefined"), seed=2, rounds=100)
