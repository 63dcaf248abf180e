"""The processes behind the ranks, as a launch sees them: real workers, or simulated ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from afd._megamoe import Domain
from afd.boundary.open import boundary_layout
from afd.config import EngineConfig, Role, Topology, WorkerConfig
from afd.launch.resolve import ResolvedConfig
from afd.launch.timeline import Timeline
from afd_sched.links import worker_identity
from afd_sched.scheduler import SchedulerConfig
from afd_sched.security import PeerKeys


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of a launch meet: the coordinator's endpoint, each peer's keys (none on a
    local path), the pipe that ends with the launcher, and the timeline's memory."""

    endpoint: str
    keys: dict[bytes, PeerKeys]
    lifeline_fd: int
    timeline: Timeline

    def keys_of(self, rank: int) -> PeerKeys | None:
        """A worker's keys."""
        return self.keys.get(worker_identity(rank))


@dataclass(frozen=True, slots=True)
class Process:
    """``python -m module`` with ``config`` on standard input; ``rank`` None if it holds several."""

    name: str
    module: str
    config: bytes
    fds: tuple[int, ...]
    rank: int | None


class Crew(Protocol):
    """Everything about a launch that depends on what its ranks are."""

    @property
    def engine(self) -> EngineConfig:
        """What was asked for."""
        ...

    @property
    def topology(self) -> Topology:
        """Who is which rank."""
        ...

    def scheduler(self) -> SchedulerConfig:
        """What the coordinator plans for."""
        ...

    def processes(self, meeting: Meeting) -> Iterator[Process]:
        """What to start; called once."""
        ...

    def raise_abort(self, rank: int) -> None:
        """Wakes every rank that waits for another; ``rank`` is who failed, -1 if nobody."""
        ...

    def close(self) -> None:
        """After the processes have ended; may be called again."""
        ...


def scheduler_config(
    engine: EngineConfig, topology: Topology, context_length: int, eos_token_ids: tuple[int, ...]
) -> SchedulerConfig:
    """The scheduler's part of a configuration."""
    return SchedulerConfig(
        attention_ranks=topology.attention_ranks,
        ffn_ranks=topology.ffn_ranks,
        num_lanes=engine.num_lanes,
        max_running_requests=engine.max_running_requests,
        chunked_prefill_size=engine.chunked_prefill_size,
        page_size=engine.page_size,
        context_length=context_length,
        eos_token_ids=eos_token_ids,
        overlap=engine.overlap,
        radix_cache=not engine.disable_radix_cache,
        schedule_policy=engine.schedule_policy,
        max_queued_requests=engine.max_queued_requests,
        priority_scheduling=engine.enable_priority_scheduling,
    )


class Workers:
    """One process a rank, over symmetric memory that this launcher made."""

    def __init__(self, config: ResolvedConfig) -> None:
        self._config = config
        self.engine = config.engine
        self.topology = config.topology
        self._domain: Domain | None = None
        self._memory_fd = -1

    def scheduler(self) -> SchedulerConfig:
        """See Crew."""
        config = self._config
        return scheduler_config(
            config.engine, config.topology, config.context_length, config.model.eos_token_ids
        )

    def processes(self, meeting: Meeting) -> Iterator[Process]:
        """See Crew."""
        config = self._config
        if self.topology.ffn_ranks:
            layout = boundary_layout(config.model, config.boundary, self.topology)
            self._memory_fd = os.memfd_create("afd-symmetric")
            os.ftruncate(self._memory_fd, layout.total_bytes)
            self._domain = Domain(self._memory_fd, layout, create=True)
        fds = (self._memory_fd,) if self._memory_fd >= 0 else ()
        for rank in range(self.topology.ranks):
            worker = msgspec.json.encode(self._worker(rank, meeting))
            own = (*fds, *meeting.timeline.fds((rank,)))
            yield Process(self.topology.describe(rank), "afd.worker", worker, own, rank)

    def raise_abort(self, rank: int) -> None:
        """See Crew."""
        if self._domain is not None:
            self._domain.raise_abort(rank)

    def close(self) -> None:
        """See Crew."""
        if self._domain is not None:
            self._domain.close()
            self._domain = None
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    def _worker(self, rank: int, meeting: Meeting) -> WorkerConfig:
        config, engine = self._config, self.engine
        attention = self.topology.role(rank) is Role.ATTENTION
        return WorkerConfig(
            rank=rank,
            topology=config.topology,
            boundary=config.boundary,
            model=config.model,
            model_path=config.model_path,
            dtype=config.dtype,
            max_running_requests=engine.max_running_requests,
            max_rows=config.max_rows,
            context_length=config.context_length,
            page_size=engine.page_size,
            kv_tokens=engine.kv_tokens,
            mem_fraction=engine.mem_fraction_static,
            threads=config.attention_threads if attention else config.ffn_threads,
            endpoint=meeting.endpoint,
            keys=meeting.keys_of(rank),
            memory_fd=self._memory_fd,
            lifeline_fd=meeting.lifeline_fd,
            timeline_fd=meeting.timeline.fd(rank),
            log_level=engine.log_level,
        )
