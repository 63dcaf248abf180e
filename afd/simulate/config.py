"""What is simulated, and what one of its processes is told."""

from __future__ import annotations

import msgspec

from afd.config import EngineConfig, Topology
from afd_sched.security import PeerKeys


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved simulation. ``batch`` requests run on each attention rank, each of ``prompt``
    tokens and ``new_tokens`` more, ``context_length`` in all; ``pages`` of KV per rank; ``steps``
    are measured. ``model`` and ``profile`` are names that the planner knows, or paths."""

    engine: EngineConfig
    topology: Topology
    model: str
    profile: str
    batch: int
    prompt: int
    new_tokens: int
    context_length: int
    pages: int
    steps: int

    @property
    def requests(self) -> int:
        """Requests that run at once."""
        return self.batch * self.topology.attention_ranks


class HostConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds ``ranks``; ``keys`` by rank, none on a local path;
    ``timeline_fds`` by rank, none without a timeline."""

    simulation: Simulation
    ranks: tuple[int, ...]
    endpoint: str
    keys: dict[int, PeerKeys]
    lifeline_fd: int
    timeline_fds: dict[int, int]
