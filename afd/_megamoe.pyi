"""The compiled extension: symmetric buffers, the two sides of the boundary, and the CPU kernels.

Arrays are numpy, C-contiguous unless a row stride is said to be allowed; a wrong dtype, shape or
layout raises ``ValueError`` that names the argument. Every call that can block releases the GIL.
"""

from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

PROTOCOL_VERSION: Final[int]

class Wire(Enum):
    """What crosses the boundary: ``FP8`` e4m3 and block scales out, BF16 back."""

    FP8 = 0
    BF16 = 1
    FP32 = 2

class ScaleFormat(Enum):
    """Block scales of the FP8 wire; UE8M0 is a power of two, stored as its exponent (uint8)."""

    FP32_PER_128 = 0
    UE8M0_PER_128 = 1
    UE8M0_PER_32 = 2

class ReturnMode(Enum):
    """What comes back: a row per top-k slot, or one per token and FFN rank, which adds the rows of
    its experts in float32, in their order."""

    SLOT = 0
    REDUCED = 1

class WeightType(Enum):
    """Storage type of packed weights and of the KV cache; activations are always float32 on CPU.
    ``FP8`` (e4m3 with block scales) is for experts alone."""

    BF16 = 0
    FP32 = 1
    FP8 = 2

class MegamoeError(RuntimeError): ...

class Aborted(MegamoeError):
    """The abort word was raised while waiting. ``culprit`` is the rank that caused it, or -1."""

    culprit: int

class Deadline(MegamoeError):
    """A wait outlasted its deadline; the message says rank, word, expected and seen."""

class HandshakeError(MegamoeError):
    """The two sides disagree; the message names the field and both values."""

class BadExpertId(MegamoeError):
    """A routed id is outside [-1, experts); the message names rank, layer and token."""

class AmxMismatch(MegamoeError):
    """The processor's AMX tiles failed their check when the level was chosen; the message names
    the way out."""

# ------------------------------------------------------------------------------ threads, weights

class Pool:
    """``threads`` workers, the caller included; kernels of one pool must not run concurrently."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Matrix:
    """A weight [rows, cols] (y = x @ W.T), packed once for the tile kernel."""

    def __init__(self, rows: int, cols: int, dtype: WeightType) -> None: ...
    def load(self, first_row: int, weight: NDArray[np.generic]) -> None:
        """Packs ``weight`` [n, cols] (float32, or bfloat16 viewed as uint16) as rows
        [first_row, first_row + n); converts to this matrix's dtype, round to nearest even."""
    def gather(self, rows: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """out[i] = W[rows[i]] as float32: an embedding lookup that shares the packed weight."""
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...

def linear(
    pool: Pool,
    x: NDArray[np.float32],
    weight: Matrix,
    out: NDArray[np.float32],
    accumulate: bool = False,
) -> None:
    """out[n, rows] (+)= x[n, cols] @ W.T, float32 accumulation in one order whatever n is, so a
    row's result is bit-identical in any batch. Row strides of x and out may exceed their widths."""

def isa_level(name: str | None = None) -> str:
    """The instruction-set level in use; with a name, forces it first (for tests). Matrices keep the
    level they were made at. ``AFD_ISA`` in the environment names a process's first level; raises
    ValueError for one that is unknown or that this machine cannot execute, AmxMismatch."""

def isa_levels() -> list[str]:
    """The levels this machine can execute, lowest first."""

# ---------------------------------------------------------------------- attention-side operations

class KvCache:
    """Paged keys and values: [layers][pages][kv_heads][page_size][head_dim], zero-filled lazily."""

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: WeightType,
    ) -> None: ...
    def store(
        self,
        layer: int,
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        locations: NDArray[np.int64],
    ) -> None:
        """k, v [n, kv_heads * head_dim] (row strides allowed); location = page *
        page_size + offset."""
    @property
    def nbytes(self) -> int: ...

def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32]
) -> None:
    """Normalises each row of x [n, len(weight)]; row strides allowed; out may be x."""

def add_rms_norm(
    residual: NDArray[np.float32],
    delta: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    out: NDArray[np.float32],
) -> None:
    """residual += delta, then out = rms_norm(residual): one pass."""

def head_norm(x: NDArray[np.float32], weight: NDArray[np.float32], eps: float) -> None:
    """RMS-normalises every head of x [n, heads * len(weight)] in place (Qwen3's QK-norm)."""

def rope(
    x: NDArray[np.float32],
    positions: NDArray[np.int32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    head_dim: int,
) -> None:
    """Rotates the first 2 * cos.shape[1] elements of every head of x [n, heads * head_dim] in
    place,     half-split convention (rotate_half); cos, sin are [max_positions, rotary_dim / 2]."""

def paged_attention(
    pool: Pool,
    cache: KvCache,
    layer: int,
    q: NDArray[np.float32],
    row_slot: NDArray[np.int32],
    row_length: NDArray[np.int32],
    page_table: NDArray[np.int32],
    scale: float,
    out: NDArray[np.float32],
    lse: NDArray[np.float32],
) -> None:
    """Row i (q [n, heads * head_dim], row stride allowed) attends to the first ``row_length[i]``
    cached positions of slot ``row_slot[i]``, whose pages are ``page_table[slot]``. Covers decode
    (one row per slot) and extend (consecutive rows of a slot, growing lengths).
    out [n, heads * head_dim]; lse [n, heads], natural log; length 0 gives out = 0, lse = -inf.
    The reduction order depends on the row alone."""

def merge_attention(
    out_a: NDArray[np.float32],
    lse_a: NDArray[np.float32],
    out_b: NDArray[np.float32],
    lse_b: NDArray[np.float32],
    head_dim: int,
) -> None:
    """Merges two partial attentions into (out_a, lse_a), stable at any magnitude; an empty shard is
    lse = -inf with its vector unread (Q-First, the combine)."""

def silu_mul(gate_up: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out[n, width] = silu(gate_up[:, :width]) * gate_up[:, width:]."""

def route_softmax(
    logits: NDArray[np.float32],
    renormalize: bool,
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
) -> None:
    """Softmax over all experts, then the top ids.shape[1]; ties go to the lower id."""

def route_sigmoid(
    logits: NDArray[np.float32],
    bias: NDArray[np.float32],
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
) -> None:
    """MiniMax-M2: choose by sigmoid(logit) + bias, weigh by sigmoid(logit) over the chosen,
    sum 1."""

def sample(
    logits: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_k: NDArray[np.int32],
    top_p: NDArray[np.float32],
    seed: NDArray[np.uint64],
    position: NDArray[np.int64],
    out: NDArray[np.int32],
) -> None:
    """One token per row. temperature 0 is greedy (lowest id among equals); top_k <= 0 is off.
    The random number is a counter hash of (seed, position): the same in any batch, order or
    replay."""

# ------------------------------------------------------------------------------- the data plane

class Layout:
    """Regions of one launch's symmetric memory, from the shapes both sides agree on."""

    def __init__(
        self,
        *,
        attention_ranks: int,
        ffn_ranks: int,
        lanes: int,
        max_tokens: int,
        hidden: int,
        top_k: int,
        experts: int,
        moe_layers: int,
        wire: Wire,
        scale_format: ScaleFormat = ...,
        return_mode: ReturnMode = ...,
    ) -> None: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    def describe(self) -> str:
        """The region map, one line per region: name, offset, bytes."""

class Domain:
    """This process's mapping of the symmetric memory behind ``fd`` (a memfd of layout.total_bytes).

    The creator (``create=True``) resets the words and writes the handshake; others compare theirs
    with it and raise HandshakeError. Nothing of an older ``generation`` [0, 2^24) is ever mistaken
    for this one's.
    """

    def __init__(
        self, fd: int, layout: Layout, create: bool = False, generation: int = 0
    ) -> None: ...
    def raise_abort(self, culprit: int) -> None:
        """Wakes every waiting rank with Aborted; ``culprit`` is a global rank or -1."""
    def close(self) -> None:
        """Further use, also by sides opened over it, raises MegamoeError; calls under way end
        unharmed. The memory is unmapped with the last side."""

class Experts:
    """The experts one process holds, packed; layer is the index among MoE layers."""

    def __init__(
        self, *, moe_layers: int, expert_ids: list[int], hidden: int, width: int, dtype: WeightType
    ) -> None: ...
    def load(
        self,
        layer: int,
        expert: int,
        gate: NDArray[np.generic],
        up: NDArray[np.generic],
        down: NDArray[np.generic],
    ) -> None:
        """gate, up [width, hidden]; down [hidden, width]; float32 or bfloat16 viewed as uint16."""
    def load_fp8(
        self,
        layer: int,
        expert: int,
        gate: NDArray[np.uint8],
        up: NDArray[np.uint8],
        down: NDArray[np.uint8],
        gate_scales: NDArray[np.float32],
        up_scales: NDArray[np.float32],
        down_scales: NDArray[np.float32],
        block: tuple[int, int],
    ) -> None:
        """For ``dtype`` FP8: e4m3fn codes of the shapes above, kept as they are; weight = code *
        scale. Scales [ceil(rows / block rows), ceil(columns / block columns)]; a block has a
        multiple of 16 rows and of 128 columns. ValueError for another block, or a NaN code."""
    def forward(
        self,
        pool: Pool,
        layer: int,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """The colocated path: out[n, hidden] = sum over slots, ascending; ids -1 are skipped.
        Bit for bit what a boundary with an FP32 wire gives. Raises BadExpertId."""
    @property
    def nbytes(self) -> int: ...

def fp8_encode(
    x: NDArray[np.float32],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32] | NDArray[np.uint8],
    format: ScaleFormat = ...,
) -> None:
    """The FP8 wire's rows, for references and tests: x [n, hidden] as e4m3fn codes [n, hidden] and
    scales [n, ceil(hidden / block)] = block maximum / 448 (1 for a block of zeros), for UE8M0
    rounded up to a power of two 2^(scale - 127)."""

def fp8_decode(
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32] | NDArray[np.uint8],
    out: NDArray[np.float32],
    format: ScaleFormat = ...,
) -> None:
    """out [n, hidden] = e4m3fn(codes) * scale of the block."""

class AttentionSide:
    """Attention rank's half of the boundary: dispatch publishes and returns, combine waits.

    A lane carries one dispatch at a time; another before its combine raises ValueError, as does a
    (step, layer) not later than the lane's last: a replay needs a new generation. Both raise
    Aborted or Deadline where they wait, MegamoeError once the domain is closed. ``owner``: see
    FfnSide; with it, this side compares its table too.
    """

    def __init__(
        self, domain: Domain, rank: int, deadline_ms: int, owner: NDArray[np.int32] | None = None
    ) -> None: ...
    def dispatch(
        self,
        step: int,
        layer: int,
        lane: int,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """x [n, hidden] (row stride allowed), ids and weights [n, top_k]; 0 <= n <= max_tokens.
        Raises BadExpertId before anything is published."""
    def combine(self, step: int, layer: int, lane: int, out: NDArray[np.float32]) -> None:
        """out[n, hidden] = sum over the token's returned rows, by ascending slot (their first, if
        reduced), float32; row stride allowed."""
    @property
    def wait_ns(self) -> int: ...
    @property
    def bytes_out(self) -> int:
        """Bytes the FFN ranks read of what was combined so far: each row and its scales once per
        rank that owns one of its experts, the ids by every rank, the weights of routed copies."""
    @property
    def bytes_back(self) -> int:
        """Bytes of the rows they wrote back."""

class FfnSide:
    """FFN rank's half: one ``serve`` a step walks every MoE layer and lane. ``owner``
    [attention_ranks, experts], or [experts] for all of them, says which FFN rank (0-based among FFN
    ranks) serves an expert for an attention rank, so an expert may lie on several; ``experts``
    holds those that some attention rank is sent here for. The first side to open enters the table
    into the handshake, the others compare.
    """

    def __init__(
        self,
        domain: Domain,
        rank: int,
        owner: NDArray[np.int32],
        experts: Experts,
        pool: Pool,
        deadline_ms: int,
    ) -> None: ...
    def serve(self, step: int, lanes: int, attention_ranks: NDArray[np.int32]) -> None:
        """``attention_ranks`` take part in the step. Raises Aborted, Deadline, BadExpertId;
        ValueError for a step not later than the last one served for one of them."""
    def serve_watched(
        self, step: int, lanes: int, attention_ranks: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """``serve``, and a row for each lane of each layer: layer, lane, when it was waited for,
        computed and published (time.monotonic_ns), tokens of all ranks, tiles."""
    @property
    def wait_ns(self) -> int: ...
    @property
    def expert_tokens(self) -> NDArray[np.int64]:
        """Routed copies served so far, [moe_layers, experts]; zero for experts not owned."""
