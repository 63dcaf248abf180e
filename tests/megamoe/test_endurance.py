"""Ranks that stop for good, and steps that never do."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.megamoe.native import MAY_COMPILE, built, instrumented

pytestmark = MAY_COMPILE


def _run(name: str, *arguments: str, sanitizer: str = "thread") -> str:
    program = built(name, sanitizer) / name
    done = subprocess.run(instrumented(program, *arguments), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return done.stdout


def _faults(said: str) -> tuple[int, int, int]:
    """How many, how many of them while an FFN rank reads IN, and the waits that they ended."""
    found = re.match(r"(\d+) faults, (\d+) where IN is read, (\d+) waits ended by them, ", said)
    assert found, said
    return int(found[1]), int(found[2]), int(found[3])


def test_a_rank_dead_at_any_point_ends_every_wait_once_somebody_aborts() -> None:
    """Each of two attention and two FFN ranks stops before each start of a wait, use of a row,
    store and wake-up: the others are told because of whom."""
    points = {}
    for mode in ("slot", "reduced"):
        points[mode], readers, waits = _faults(_run("megamoe-faults", "abort", mode, "1", "0"))
        # Two steps, layers and lanes of two ranks' two tokens, each with two experts.
        assert readers == 2 * 2 * 2 * 2 * 2 * 2
        assert points[mode] > 200 + readers and waits > points[mode]
    # In each step, layer and lane three of four tokens have both experts on one FFN rank, which
    # then writes one row of OUT less.
    assert points["slot"] - points["reduced"] == 2 * 2 * 2 * 3


@pytest.mark.parametrize(("mode", "every"), [("slot", 19), ("reduced", 47)])
def test_a_rank_dead_at_a_point_ends_every_wait_by_its_deadline(mode: str, every: int) -> None:
    """Nobody aborts: who waits for the dead rank names it, the word, expected and seen."""
    faults, readers, waits = _faults(_run("megamoe-faults", "deadline", mode, str(every), "3"))
    assert readers > 0 and faults >= 6 and waits > faults


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["slot", "reduced"])
def test_a_rank_dead_at_any_point_ends_every_wait_by_its_deadline(mode: str) -> None:
    faults, readers, waits = _faults(_run("megamoe-faults", "deadline", mode, "1", "0"))
    assert readers > 0 and faults > 200 and waits > faults


def _wraps(said: str) -> None:
    first, last = map(int, re.findall(r"numbers from (\d+) to (\d+)", said)[0])
    assert last < first


def test_words_wrap_in_the_middle_of_a_run() -> None:
    _wraps(_run("megamoe-soak", "2000", "1000"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_steps_without_a_reset() -> None:
    _wraps(_run("megamoe-soak", "1000000", "500000", sanitizer=""))
