"""The boundary in NumPy, float64 inside, rounding where the wire rounds: the tests' oracle."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from afd._megamoe import ScaleFormat, Wire

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_E4M3_MAX = np.float32(448)
_BLOCKS = {
    ScaleFormat.FP32_PER_128: 128,
    ScaleFormat.UE8M0_PER_128: 128,
    ScaleFormat.UE8M0_PER_32: 32,
}


@dataclass(frozen=True)
class Weights:
    """Experts of every MoE layer: gate, up [layers, experts, width, hidden]; down transposed."""

    gate: F32
    up: F32
    down: F32

    def has(self, expert: int) -> bool:
        """Whether there are weights to load."""
        return True

    @classmethod
    def random(
        cls, rng: np.random.Generator, layers: int, experts: int, hidden: int, width: int
    ) -> Weights:
        """Weights under which activations keep about unit size."""
        wide = (layers, experts, width, hidden)
        narrow = (layers, experts, hidden, width)
        return cls(
            gate=(rng.standard_normal(wide) / np.sqrt(hidden)).astype(np.float32),
            up=(rng.standard_normal(wide) / np.sqrt(hidden)).astype(np.float32),
            down=(rng.standard_normal(narrow) / np.sqrt(width)).astype(np.float32),
        )


def fp8(
    x: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> tuple[NDArray[np.uint8], F32]:
    """Codes [n, hidden] and scales [n, blocks] as the FP8 wire defines them; UE8M0 scales as the
    powers of two that they stand for."""
    n, hidden = x.shape
    size = _BLOCKS[scale_format]
    codes = np.empty((n, hidden), np.uint8)
    scales = np.empty((n, -(-hidden // size)), np.float32)
    for b in range(scales.shape[1]):
        block = x[:, b * size : (b + 1) * size]
        scale = np.abs(block).max(axis=1) / _E4M3_MAX
        scale[scale == 0] = 1
        if scale_format is not ScaleFormat.FP32_PER_128:
            exponent = np.ceil(np.log2(scale.astype(np.float64)))
            scale = np.exp2(np.clip(exponent, -126, 127)).astype(np.float32)
        scales[:, b] = scale
        # ml_dtypes overflows to NaN where the wire saturates; the scale leaves nothing past 448.
        ratio = np.clip(block / scale[:, None], -_E4M3_MAX, _E4M3_MAX)
        codes[:, b * size : (b + 1) * size] = ratio.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes, scales


def from_fp8(
    codes: NDArray[np.uint8], scales: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> F32:
    """The FP32 rows that codes and scales stand for."""
    values: F32 = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values *= np.repeat(scales, _BLOCKS[scale_format], axis=1)[:, : codes.shape[1]]
    return values


def bf16(x: NDArray[np.floating]) -> F32:
    """x rounded to bfloat16, nearest even."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def received(x: F32, wire: Wire, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128) -> F32:
    """What an FFN rank sees of a published row."""
    if wire is Wire.FP8:
        return from_fp8(*fp8(x, scale_format), scale_format)
    return bf16(x) if wire is Wire.BF16 else x


def expert(x: F64, gate: F32, up: F32, down: F32) -> F64:
    """down @ (silu(gate @ x) * (up @ x)) for each row of x."""
    g = x @ gate.T.astype(np.float64)
    hidden: F64 = g / (1 + np.exp(-g)) * (x @ up.T.astype(np.float64))
    out: F64 = hidden @ down.T.astype(np.float64)
    return out


def moe(
    weights: Weights,
    layer: int,
    x: F32,
    ids: NDArray[np.int32],
    routing: F32,
    wire: Wire,
    scale_format: ScaleFormat = ScaleFormat.FP32_PER_128,
    reduced_over: NDArray[np.int32] | None = None,
) -> tuple[F64, F64]:
    """The combined output [n, hidden] and, per element, the sum of its slots' magnitudes.

    ``reduced_over`` [experts]: the FFN ranks that add up their slots before they round; without
    it every slot is rounded by itself.
    """
    seen = received(x, wire, scale_format).astype(np.float64)
    slots = np.zeros((ids.shape[1], *x.shape), np.float64)
    for slot in range(ids.shape[1]):
        for e in np.unique(ids[:, slot]):
            if e < 0:
                continue
            rows = ids[:, slot] == e
            y = expert(seen[rows], weights.gate[layer, e], weights.up[layer, e],
                       weights.down[layer, e])  # fmt: skip
            slots[slot, rows] = y * routing[rows, slot, None]
    size = np.abs(slots).sum(axis=0)
    if wire is Wire.FP32:
        return slots.sum(axis=0), size
    if reduced_over is None:
        return bf16(slots).astype(np.float64).sum(axis=0), size
    owner = np.where(ids >= 0, reduced_over[ids], -1).T[:, :, None]
    sums = [(slots * (owner == rank)).sum(axis=0) for rank in np.unique(reduced_over)]
    return np.sum([bf16(rank) for rank in sums], axis=0, dtype=np.float64), size


def assert_matches(actual: F32, expected: F64, size: F64, wire: Wire) -> None:
    """Within FP32 noise of the reference; on a narrow wire a few elements may round the other way,
    by one bfloat16 unit of each slot."""
    error = np.abs(actual - expected)
    noise = 4e-6 * size + 1e-5 * size.mean(axis=1, keepdims=True)
    if wire is Wire.FP32:
        assert (error <= noise).all()
        return
    assert (error <= noise + size * 2.0**-7).all()
    assert np.count_nonzero(error > noise) <= 0.02 * error.size + 1
