"""A crew without tensors: every rank of the topology, in a process per core."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from afd.launch.crew import Meeting, Process, scheduler_config
from afd.simulate.config import HostConfig, Simulation
from afd_sched.scheduler import SchedulerConfig

_MOST_PROCESSES = 8


class SimulatedWorkers:
    """See afd.launch.crew.Crew."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.engine = simulation.engine
        self.topology = simulation.topology

    def scheduler(self) -> SchedulerConfig:
        """See Crew; no token ends a simulated request."""
        return scheduler_config(self.engine, self.topology, self._simulation.context_length, ())

    def processes(self, meeting: Meeting) -> Iterator[Process]:
        """See Crew; ranks are dealt in turn, so that each process has its share of both roles."""
        ranks = self.topology.ranks
        count = min(ranks, len(os.sched_getaffinity(0)), _MOST_PROCESSES)
        for first in range(count):
            own = tuple(range(first, ranks, count))
            config = HostConfig(
                simulation=self._simulation,
                ranks=own,
                endpoint=meeting.endpoint,
                keys={r: k for r in own if (k := meeting.keys_of(r)) is not None},
                lifeline_fd=meeting.lifeline_fd,
                timeline_fds={r: fd for r in own if (fd := meeting.timeline.fd(r)) >= 0},
            )
            fds = meeting.timeline.fds(own)
            name = f"the process of {len(own)} simulated ranks from {first}"
            yield Process(name, "afd.simulate", msgspec.json.encode(config), fds, None)

    def raise_abort(self, rank: int) -> None:
        """See Crew; simulated ranks wait for nobody."""

    def close(self) -> None:
        """See Crew; there is no memory to free."""
