"""Spans survive their process; clocks that differ are told from clocks that are one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_sched.clocks import Clocks
from afd_sched.messages import Pong
from afd_sched.spans import RECORD, Phase, Recorder, read_records


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("afd-test")
    yield fd
    os.close(fd)


def test_a_full_memory_keeps_the_first_spans_and_says_so(memory: int) -> None:
    os.ftruncate(memory, 3 * RECORD.itemsize + 7)
    recorder = Recorder(memory)
    assert read_records(memory)[0].tolist() == []
    for step in range(5):
        recorder.step = step
        recorder.span(Phase.SWEEP, 10 + step, 30, layer=2, lane=1, rows=4, detail=2**40)
        records, full = read_records(memory)
        assert len(records) == min(step + 1, 3) and full == (step >= 2)
    assert records.tolist()[1] == (Phase.SWEEP, 1, 2, 1, 11, 19, 4, 2**31 - 1)


def test_reading_takes_no_memory_and_writing_only_what_it_writes(memory: int) -> None:
    os.ftruncate(memory, 2**30)
    read_records(memory)
    assert os.fstat(memory).st_blocks == 0
    Recorder(memory).span(Phase.STEP, 1, 2)
    assert 0 < os.fstat(memory).st_blocks * 512 < 2**20


def test_the_spans_of_a_killed_process_are_there(memory: int) -> None:
    os.ftruncate(memory, 2**20)
    program = (
        "import os, signal, sys\n"
        "from afd_sched.spans import Phase, Recorder\n"
        "recorder = Recorder(int(sys.argv[1]))\n"
        "for i in range(20000): recorder.span(Phase.PLAN, i, i + 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(memory)], pass_fds=[memory])
    assert done.returncode == -signal.SIGKILL
    records, full = read_records(memory)
    assert len(records) == 20000 and not full
    assert records["begin_ns"].tolist() == list(range(20000))


@given(
    offset=st.integers(-(10**15), 10**15),
    trips=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1),
)
def test_an_offset_is_known_to_half_its_round_trip(
    offset: int, trips: list[tuple[int, int]]
) -> None:
    clocks, now = Clocks(), 10**16
    for there, back in trips:
        clocks.pong(Pong(3, now, now + there + offset), now + there + back)
        now += there + back + 1
    best = clocks.offsets[3]
    assert best.round_trip_ns == min(there + back for there, back in trips)
    assert abs(best.offset_ns - offset) <= best.round_trip_ns / 2 + 1
    if offset == 0:
        assert best.shift_ns == 0
    # Off by less than the round trip explains, or by that much at most.
    assert abs(best.shift_ns - offset) <= best.round_trip_ns + 2


def test_an_answer_from_before_its_question_is_nonsense() -> None:
    clocks = Clocks()
    clocks.pong(Pong(0, 100, 5), 99)
    assert clocks.offsets == {}
