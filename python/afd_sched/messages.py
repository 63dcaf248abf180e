"""Every message of the control plane, as tagged MessagePack arrays.

Bulk integers travel as one little-endian binary field (``ints.py``), never as lists of objects.
``PROTOCOL_VERSION`` is sent in every Hello; a different one is refused by name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

PROTOCOL_VERSION = 2

# What the receiver keeps in arrays is bounded here, so that no message can overflow one.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = Count
Rank = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Pages = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: array-like, tagged with the class name, immutable."""


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """How to pick tokens and when to stop; names and defaults follow SGLang.

    ``stop`` strings are watched by the front end, which sends an Abort when one appears.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: TopK = -1
    seed: Count = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()


# ----------------------------------------------------------------- front end -> coordinator


class Generate(Message, frozen=True):
    """Start a request. ``uid`` is chosen by the front end and grows; ids are int32 bytes. A higher
    ``priority`` goes first, if the scheduler has priorities."""

    uid: Id
    input_ids: bytes
    sampling: SamplingParams
    priority: int = 0


class Abort(Message, frozen=True):
    """End a request early; tokens already on their way are dropped."""

    uid: Id


class Stop(Message, frozen=True):
    """End the receiving process in an orderly way (also coordinator -> worker)."""


class RankLost(Message, frozen=True):
    """Launcher -> coordinator: the process of ``rank`` is gone (``reason`` is a sentence)."""

    rank: Rank
    reason: str


class GetStats(Message, frozen=True):
    """Front end -> coordinator: send one Stats, then ``restart`` the step times."""

    restart: bool = False


# ----------------------------------------------------------------- coordinator -> front end


class Started(Message, frozen=True):
    """Every rank is ready; limits that requests are checked against, in tokens."""

    kv_tokens_per_rank: int
    max_total_tokens: int


class Tokens(Message, frozen=True):
    """New tokens of one committed step.

    ``uids`` int64, ``tokens`` int32, ``finished`` int8 (see FinishReason): one entry per token.
    """

    step: int
    uids: bytes
    tokens: bytes
    finished: bytes


class Rejected(Message, frozen=True):
    """The request was not run; ``reason`` is a sentence for the user."""

    uid: int
    reason: str


class Failed(Message, frozen=True):
    """The run cannot go on; every open request ends with ``reason``. ``rank`` is -1 if none."""

    rank: int
    reason: str


class Stats(Message, frozen=True):
    """Counters since start; times in milliseconds, one JSON object of plain numbers."""

    values: dict[str, float]


# ----------------------------------------------------------------- coordinator -> workers


class Admit(msgspec.Struct, array_like=True, frozen=True):
    """A request enters a slot. ``tokens`` (int32 bytes) are its prompt and, after a retraction,
    what it had generated; the pages of the first ``cached_tokens`` are full already, and the slot
    begins after them."""

    slot: int
    uid: int
    tokens: bytes
    temperature: float
    top_p: float
    top_k: int
    seed: int
    cached_tokens: int = 0


class StepPlan(Message, frozen=True):
    """What one attention rank does in ``step``, as a delta to its slot table (see replica.py).

    Applied in this order: ``retired`` slots (int32) are dropped; ``admitted`` enter; ``pages`` are
    appended ((slot, page) pairs, int32). Then the step runs, rows in uid order:
      - a slot listed in ``extend`` ((slot, n_tokens) pairs, int32) runs its next n prompt tokens,
        and samples if that completes the prompt;
      - a slot whose prompt is not complete and that is not listed rests;
      - every other slot decodes one token, taken from the worker's token pool.
    """

    step: int
    lanes: int
    retired: bytes = b""
    admitted: tuple[Admit, ...] = ()
    pages: bytes = b""
    extend: bytes = b""


class FfnStep(Message, frozen=True):
    """One launch of an FFN rank: which attention ranks (int32 bytes) take part, how many lanes."""

    step: int
    lanes: int
    attention_ranks: bytes


class Ping(Message, frozen=True):
    """Answer with a Pong at once; ``sent_ns`` is the coordinator's clock."""

    sent_ns: Count


# ----------------------------------------------------------------- workers -> coordinator


class Hello(Message, frozen=True):
    """First message of a worker or front end: ``role`` is "attention", "ffn" or "frontend"; rank is
    global, -1 for a front end."""

    version: int
    role: str
    rank: Rank
    pid: Count


class Ready(Message, frozen=True):
    """The worker has loaded its weights. ``pages`` is its KV capacity (0 for FFN ranks)."""

    rank: Rank
    pages: Pages


class StepResult(Message, frozen=True):
    """Sampled tokens of a step (int32, in row order, sampling rows only) and where time went."""

    step: Count
    rank: Rank
    tokens: bytes
    busy_us: Count
    wait_us: Count
    bytes_out: Count
    bytes_back: Count


class FfnResult(Message, frozen=True):
    """An FFN rank finished a step."""

    step: Count
    rank: Rank
    busy_us: Count
    wait_us: Count


class Pong(Message, frozen=True):
    """The Ping's ``sent_ns`` and the worker's own clock (time.monotonic_ns)."""

    rank: Rank
    sent_ns: Count
    clock_ns: Count


class WorkerFailed(Message, frozen=True):
    """A worker cannot go on; it ends after this message."""

    rank: Rank
    reason: str


ToCoordinator = (
    Generate
    | Abort
    | Stop
    | RankLost
    | GetStats
    | Hello
    | Ready
    | StepResult
    | FfnResult
    | Pong
    | WorkerFailed
)
ToFrontend = Started | Tokens | Rejected | Failed | Stats
ToWorker = StepPlan | FfnStep | Ping | Stop
