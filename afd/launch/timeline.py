"""A launch's timeline: memory for every process's spans while it runs, files once it has ended.

launcher ── descriptor ─► process ── spans ─► shared memory ─► trace.json, measurements.csv
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from afd.config import EngineConfig, Topology
from afd.errors import ConfigError
from afd.launch.measured import write_measured
from afd.launch.trace import Track, write_trace
from afd_sched.spans import Phase, read_records

COORDINATOR = -1
# 800,000 spans of a process; memory is taken as it is written.
_LIMIT_BYTES = 32 * 2**20


def _writable(name: str, flag: str) -> Path:
    path = Path(name)
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from error
    return path


class Timeline:
    """``fd(rank)`` is a process's memory; ``write`` makes the files that were asked for."""

    def __init__(self, config: EngineConfig, topology: Topology) -> None:
        """Raises ConfigError for a file that cannot be written, before anything runs."""
        self._trace = _writable(config.timeline, "--timeline") if config.timeline else None
        self._measured = (
            _writable(config.measurements, "--measurements") if config.measurements else None
        )
        self._topology = topology
        self._fds: dict[int, int] = {}
        if self.wanted:
            for rank in (COORDINATOR, *range(topology.ranks)):
                self._fds[rank] = os.memfd_create("afd-timeline")
                os.ftruncate(self._fds[rank], _LIMIT_BYTES)

    @property
    def wanted(self) -> bool:
        """Whether anybody asked for one."""
        return self._trace is not None or self._measured is not None

    def fd(self, rank: int) -> int:
        """The memory of a rank, or of COORDINATOR; -1 if nobody asked for a timeline."""
        return self._fds.get(rank, -1)

    def fds(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of several ranks, to be inherited."""
        return tuple(fd for rank in ranks if (fd := self.fd(rank)) >= 0)

    def write(self) -> None:
        """After every process has ended, once; raises ConfigError if a file cannot be written."""
        if not self._fds:
            return
        try:
            tracks = self._tracks()
            if self._trace is not None:
                write_trace(self._trace, tracks)
            if self._measured is not None:
                write_measured(self._measured, tracks, self._topology)
        except OSError as error:
            raise ConfigError(f"the timeline cannot be written: {error}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Frees the memory; may be called again."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _tracks(self) -> list[Track]:
        coordinator, full = read_records(self._fds[COORDINATOR])
        is_clock = coordinator["phase"] == Phase.CLOCK
        shifts = _shifts(coordinator[is_clock])
        tracks = [Track(COORDINATOR, "coordinator", coordinator[~is_clock], 0, full)]
        for rank in range(self._topology.ranks):
            records, full = read_records(self._fds[rank])
            name = self._topology.describe(rank)
            tracks.append(Track(rank, name, records, shifts.get(rank, 0), full))
        return tracks


def _shifts(clocks: np.ndarray[tuple[int], np.dtype[np.void]]) -> dict[int, int]:
    from afd_sched.clocks import Offset

    return {
        int(clock["step"]): Offset(int(clock["begin_ns"]), int(clock["duration_ns"])).shift_ns
        for clock in clocks
    }
