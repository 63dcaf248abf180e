"""A model check of the word protocol: the roles' and the waits' own code, every interleaving.

Two parts make one proof. A wait under the least helpful company is as good as a step that becomes
possible when its word is reached (``word``); with waits as such steps the roles keep their word
for every size below. Small sizes are also searched as a whole.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.megamoe.native import MAY_COMPILE, built

pytestmark = MAY_COMPILE


@pytest.fixture(scope="module")
def program() -> Path:
    return built("megamoe-model") / "megamoe-model"


def _search(program: Path, arguments: str) -> tuple[int, str]:
    done = subprocess.run([program, *arguments.split()], capture_output=True, text=True)
    return done.returncode, done.stdout


def _holds(program: Path, arguments: str, at_least: int) -> None:
    code, said = _search(program, arguments)
    assert code == 0, said
    states = re.search(r"(\d+) states, \d+ steps: every property holds", said)
    assert states and int(states[1]) >= at_least, said


def test_two_by_two_ranks_two_lanes_two_layers_three_steps(program: Path) -> None:
    """No reuse before it was read, no read before it was written, no deadlock."""
    _holds(program, "2 2 2 2 3 atomic-waits", at_least=5000)


def test_no_wake_up_is_lost_on_any_word_of_theirs(program: Path) -> None:
    """Once for each of the twelve words, whose waits alone are taken apart."""
    _holds(program, "2 2 2 2 3 each-word", at_least=12 * 5000)


@pytest.mark.parametrize("arguments", ["word 1 4", "word 2 2", "word 1 2 abort"])
def test_no_wake_up_is_lost_on_a_word(program: Path, arguments: str) -> None:
    """Whatever numbers of a word each of its waiters chooses, and with an abort at any moment."""
    _holds(program, arguments, at_least=1000)


@pytest.mark.parametrize("arguments", ["1 1 2 2 3", "1 2 1 1 2", "2 1 1 1 2", "1 1 1 1 2 abort"])
def test_roles_and_waits_together(program: Path, arguments: str) -> None:
    _holds(program, arguments, at_least=10_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["2 2 1 1 1", "word 2 3", "word 3 2", "word 2 2 abort", "1 2 1 1 1 abort"]
)
def test_larger_searches(program: Path, arguments: str) -> None:
    _holds(program, arguments, at_least=50_000)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("2 2 2 2 3 atomic-waits early-pub", "IN was read before it was written"),
        ("2 2 2 2 3 atomic-waits early-done", "OUT was read before it was written"),
        ("2 2 2 2 3 atomic-waits late-read", "IN was read before it was written"),
        ("2 2 2 2 3 each-word one-flag", "deadlock: nobody will wake rank 0"),
        ("1 1 1 1 2 no-second-look", "deadlock: nobody will wake rank 0"),
        ("1 1 1 1 2 no-wake", "deadlock: nobody will wake rank 0, rank 1"),
        ("1 2 1 1 2 one-flag", "deadlock: nobody will wake rank 0, rank 2"),
        ("word 2 2 one-flag", "deadlock: nobody will wake waiter"),
    ],
)
def test_a_planted_error_is_found(program: Path, arguments: str, sentence: str) -> None:
    """``one-flag`` is how waits once were: a late waiter's flag sent an earlier one to sleep on a
    word that had been published. The steps that lead there name the words as the code does."""
    code, said = _search(program, arguments)
    assert code == 1 and sentence in said and "a property fails" in said
    step = r"^(rank|waiter) \d+ (loads|stores|sleeps on) (PUB|DONE\[\d\]) of rank \d"
    assert re.search(step, said, re.MULTILINE)
