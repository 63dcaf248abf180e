"""The engine's configuration: what a user asks for, and what one worker process is told.

Each is resolved once (``launch/resolve.py``), frozen, printed and passed whole.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from afd.models.config import ModelConfig
from afd_sched.policy import SchedulePolicy
from afd_sched.security import PeerKeys


class Role(Enum):
    """What a worker does."""

    ATTENTION = "attention"
    FFN = "ffn"


class Dtype(Enum):
    """Storage type of weights and KV cache; activations are float32 on the CPU target."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class DtypeChoice(Enum):
    """What ``--dtype`` takes; AUTO is bfloat16 for bfloat16 and FP8 checkpoints, else float32."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class WireType(Enum):
    """What crosses the boundary; see the extension's Wire."""

    FP8 = "fp8"
    BF16 = "bf16"
    FP32 = "fp32"


class WireScales(Enum):
    """Block scales of the FP8 wire: their format, and the elements that share one."""

    FP32_128 = "fp32-128"
    UE8M0_128 = "ue8m0-128"
    UE8M0_32 = "ue8m0-32"


class ReturnMode(Enum):
    """What comes back from the experts: a row per top-k slot, or one per token and FFN rank."""

    SLOT = "slot"
    REDUCED = "reduced"


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a launch: attention ranks 0 .. A-1, then FFN ranks A .. A+F-1."""

    attention_nodes: int
    ffn_nodes: int
    workers_per_node: int

    @property
    def attention_ranks(self) -> int:
        """Number of attention ranks."""
        return self.attention_nodes * self.workers_per_node

    @property
    def ffn_ranks(self) -> int:
        """Number of FFN ranks; 0 when colocated."""
        return self.ffn_nodes * self.workers_per_node

    @property
    def ranks(self) -> int:
        """Number of worker processes."""
        return self.attention_ranks + self.ffn_ranks

    def role(self, rank: int) -> Role:
        """The role of a global rank."""
        return Role.ATTENTION if rank < self.attention_ranks else Role.FFN

    def describe(self, rank: int) -> str:
        """ "attention rank 1" or "FFN rank 2", as messages name them; ranks are global."""
        return f"{'attention' if self.role(rank) is Role.ATTENTION else 'FFN'} rank {rank}"


class BoundaryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides of the boundary agree on. ``deadline_ms`` bounds one wait."""

    wire: WireType
    num_lanes: int
    max_lane_tokens: int
    deadline_ms: int
    wire_scales: WireScales = WireScales.FP32_128
    return_mode: ReturnMode = ReturnMode.SLOT


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``max_rows``: most rows (tokens) of one rank in one step. ``kv_tokens`` None: as much as
    fits. ``memory_fd`` is -1 when colocated; ``lifeline_fd`` reads EOF once the launcher is gone.
    """

    rank: int
    topology: Topology
    boundary: BoundaryConfig
    model: ModelConfig
    model_path: str
    dtype: Dtype
    max_running_requests: int
    max_rows: int
    context_length: int
    page_size: int
    kv_tokens: int | None
    mem_fraction: float
    threads: int
    endpoint: str
    memory_fd: int
    lifeline_fd: int
    log_level: str
    keys: PeerKeys | None = None
    timeline_fd: int = -1

    @property
    def role(self) -> Role:
        """This worker's role."""
        return self.topology.role(self.rank)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for; flags, presets and ``LLM`` arguments have these names.

    ``max_running_requests`` and ``chunked_prefill_size`` (tokens) are per attention rank and step.
    ``kv_tokens`` per attention rank; None takes what ``mem_fraction_static`` of the free memory
    holds. ``threads`` per worker; None shares the cores out. ``host``: where the control plane
    listens, None for a private folder. ``max_queued_requests``: how many may wait for a slot,
    None for any number. ``timeline``, ``measurements``: files to write at the end, see
    launch/timeline.py. Time-outs are in seconds.
    """

    model: str = "smollm2-moe"
    tokenizer_path: str | None = None
    skip_tokenizer_init: bool = False
    m: int = 1
    n: int = 1
    workers_per_node: int = 1
    num_lanes: int = 2
    wire: WireType = WireType.FP8
    wire_scales: WireScales = WireScales.FP32_128
    return_mode: ReturnMode = ReturnMode.SLOT
    dtype: DtypeChoice = DtypeChoice.AUTO
    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    page_size: int = 16
    kv_tokens: int | None = None
    context_length: int | None = None
    mem_fraction_static: float = 0.8
    overlap: bool = True
    disable_radix_cache: bool = False
    schedule_policy: SchedulePolicy = SchedulePolicy.FCFS
    max_queued_requests: int | None = None
    enable_priority_scheduling: bool = False
    host: str | None = None
    timeline: str | None = None
    measurements: str | None = None
    threads: int | None = None
    download_dir: str | None = None
    start_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    log_level: str = "warning"
