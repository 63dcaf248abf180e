"""A process's spans of time, for a timeline: fixed records in memory that the launcher made.

The launcher keeps the other end of the descriptor, so the records outlive a process that is killed.
Times are CLOCK_MONOTONIC, one clock for every process of a machine; see clocks.py for others.
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

RECORD: Final = np.dtype(
    [
        ("phase", "<u2"),
        ("lane", "<i2"),
        ("layer", "<i4"),
        ("step", "<i8"),
        ("begin_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("rows", "<i4"),
        ("detail", "<i4"),
    ]
)
_PACK = struct.Struct("<Hhiqqqii")
_MOST = 2**31 - 1
_CHUNK_RECORDS = 16384


class Phase(IntEnum):
    """What a rank does; 0 is a record that was not written.

    ``rows`` and ``detail`` of a record: requests or tokens, and what the comment says.
    """

    STEP = 1  # prompt tokens of the step, or 0
    ATTEND = 2
    SWEEP = 3  # mean context
    ROUTE = 4
    DISPATCH = 5
    WAIT = 6
    COMBINE = 7
    HEAD = 8
    SAMPLE = 9
    FFN_WAIT = 10
    FFN_TILES = 11  # tiles
    COMMIT = 12
    PLAN = 13  # prompt tokens of the step, or 0
    PUBLISH = 14
    # Not a span: step holds a rank, begin_ns its clock's offset, duration_ns the round trip.
    CLOCK = 15


class Recorder:
    """Writes records until its memory is full; ``step`` goes into each."""

    def __init__(self, fd: int) -> None:
        """``fd``: shared memory of any size, zeroed; stays open."""
        self.step = -1
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._at = 0
        self._last = len(self._map) - _PACK.size

    def span(
        self,
        phase: Phase,
        begin_ns: int,
        end_ns: int,
        layer: int = -1,
        lane: int = -1,
        rows: int = 0,
        detail: int = 0,
    ) -> None:
        """One phase of the current step."""
        if self._at > self._last:
            return
        length_ns = end_ns - begin_ns
        details = (min(rows, _MOST), min(detail, _MOST))
        _PACK.pack_into(
            self._map, self._at, phase, lane, layer, self.step, begin_ns, length_ns, *details
        )
        self._at += _PACK.size


def read_records(fd: int) -> tuple[NDArray[np.void], bool]:
    """(the records of RECORD, whether the memory is full)."""
    # Not by mmap: reading a hole of shared memory through one fills it.
    chunk = _CHUNK_RECORDS * RECORD.itemsize
    parts: list[NDArray[np.void]] = []
    for start in range(0, os.fstat(fd).st_size, chunk):
        data = os.pread(fd, chunk, start)
        part = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
        empty = np.flatnonzero(part["phase"] == 0)
        if len(empty):
            return np.concatenate([*parts, part[: empty[0]]]), False
        parts.append(part)
    return np.concatenate([*parts, np.zeros(0, RECORD)]), True
