"""The boundary in torch, float64 inside, rounding where the wire and the kernels round: the tests'
oracle.

torch's own conversions to and from float8_e4m3fn, float8_e8m0fnu and bfloat16 do the rounding. Two
things they do not define: torch before 2.13 made NaN of what e4m3 cannot hold, where the wire
saturates, so values are clamped first; and to float8_e8m0fnu torch rounds to nearest, where the
wire rounds a scale up, so only powers of two are converted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd._megamoe import ScaleFormat, WeightType, Wire
from tests.megamoe.weights import F32, F64, Weights

_E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max
_BLOCKS = {
    ScaleFormat.FP32_PER_128: 128,
    ScaleFormat.UE8M0_PER_128: 128,
    ScaleFormat.UE8M0_PER_32: 32,
}


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 as float8_e4m3fn, nearest even, saturating."""
    return x.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)


def e4m3_values(codes: NDArray[np.uint8]) -> F32:
    """What codes stand for."""
    values: F32 = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    return values


def ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """The float8_e8m0fnu at or above a positive float32, from 2^-126 on."""
    mantissa, exponent = torch.frexp(scale.double())  # mantissa in [0.5, 1)
    up = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-126, 127)
    # An infinity has no exponent; the largest power of two stands for it.
    up = torch.where(scale.isinf(), 127, up)
    return torch.ldexp(torch.ones_like(scale), up).to(torch.float8_e8m0fnu)


def _fp8(x: torch.Tensor, scale_format: ScaleFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes as float8_e4m3fn, and scales as float32 or float8_e8m0fnu."""
    codes, scales = [], []
    for block in x.split(_BLOCKS[scale_format], dim=1):
        largest = block.nan_to_num(0, torch.inf, -torch.inf).abs().amax(1, keepdim=True)
        scale = largest / torch.full_like(largest, _E4M3_MAX)
        scale = torch.where(scale == 0, 1, scale)
        if scale_format is not ScaleFormat.FP32_PER_128:
            scales.append(ue8m0(scale))
            scale = scales[-1].float()
        else:
            scales.append(scale)
        codes.append(e4m3(block / scale))
    return torch.cat(codes, 1), torch.cat(scales, 1)


def fp8(
    x: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | NDArray[np.uint8]]:
    """Codes [n, hidden] and scales [n, blocks] as they lie on the FP8 wire: float32, or exponents.
    NaN counts as zero in its block's scale."""
    codes, scales = _fp8(torch.from_numpy(x), scale_format)
    if scale_format is not ScaleFormat.FP32_PER_128:
        scales = scales.view(torch.uint8)
    return codes.view(torch.uint8).numpy(), scales.numpy()


def _from_fp8(codes: torch.Tensor, scales: torch.Tensor, scale_format: ScaleFormat) -> torch.Tensor:
    wide = scales.float().repeat_interleave(_BLOCKS[scale_format], dim=1)
    return codes.float() * wide[:, : codes.shape[1]]


def from_fp8(
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32] | NDArray[np.uint8],
    scale_format: ScaleFormat = ScaleFormat.FP32_PER_128,
) -> F32:
    """The FP32 rows that codes and scales stand for."""
    scale = torch.from_numpy(scales)
    if scale_format is not ScaleFormat.FP32_PER_128:
        scale = scale.view(torch.float8_e8m0fnu)
    rows = _from_fp8(torch.from_numpy(codes).view(torch.float8_e4m3fn), scale, scale_format)
    values: F32 = rows.numpy()
    return values


def bf16(x: torch.Tensor) -> torch.Tensor:
    """x rounded to bfloat16 by way of float32, nearest even; in x's dtype."""
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


def received(x: F32, wire: Wire, scale_format: ScaleFormat) -> torch.Tensor:
    """What an FFN rank sees of published rows, in float64."""
    rows = torch.from_numpy(x)
    if wire is Wire.FP8:
        rows = _from_fp8(*_fp8(rows, scale_format), scale_format)
    if wire is Wire.BF16:
        rows = bf16(rows)
    return rows.double()


def takes_pairs(type: WeightType, level: str) -> bool:
    """Whether an instruction-set level multiplies bf16 pairs, so that it rounds activations too."""
    return type is not WeightType.FP32 and level not in ("portable", "avx2", "avx512")


def chain_noise(gate: F32) -> float:
    """How far float32 may be from float64 after gate [width, hidden] and down, as a share of a
    row's mean magnitude: a random walk of as many roundings, and some margin."""
    return float(3e-7 * np.sqrt(sum(gate.shape)))


def _rounded(x: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x [n, width] in bfloat16, and by how much float32 noise may make that another number."""
    noise = share * (x.abs() + x.abs().mean(1, keepdim=True))
    return bf16(x), bf16(x + noise) - bf16(x - noise)


def expert(
    x: torch.Tensor, gate: F32, up: F32, down: F32, type: WeightType, level: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """down @ (silu(gate @ x) * (up @ x)) for each row of x [n, hidden], all in float64, and by how
    much it may move because an activation lies where float32 noise decides which bfloat16 it
    becomes; weights and activations rounded as a matrix of this type at this level rounds them.
    FP8 weights are given as the values of codes and scales."""
    gate_, up_, down_ = (torch.from_numpy(m).double() for m in (gate, up, down))
    if type is WeightType.BF16:
        gate_, up_, down_ = bf16(gate_), bf16(up_), bf16(down_)
    pairs = takes_pairs(type, level)
    seen = bf16(x) if pairs else x
    act = torch.nn.functional.silu(seen @ gate_.T) * (seen @ up_.T)
    act, slack = _rounded(act, chain_noise(gate)) if pairs else (act, torch.zeros_like(act))
    return act @ down_.T, slack @ down_.T.abs()


@dataclass(frozen=True)
class Expected:
    """[n, hidden] each: the combined output, the sum of its slots' magnitudes, and how far float32
    may be from it before rows are rounded for the way back."""

    out: F64
    size: F64
    noise: F64


def moe(
    weights: Weights,
    layer: int,
    x: F32,
    ids: NDArray[np.int32],
    routing: F32,
    wire: Wire,
    scale_format: ScaleFormat = ScaleFormat.FP32_PER_128,
    reduced_over: NDArray[np.int32] | None = None,
) -> Expected:
    """The layer's output, rounded as at the instruction-set level in use.

    ``reduced_over`` [experts]: the FFN ranks that add up their slots before they round; without
    it every slot is rounded by itself.
    """
    seen = received(x, wire, scale_format)
    slots = torch.zeros((ids.shape[1], *x.shape), dtype=torch.float64)
    noise = torch.zeros_like(slots)
    level = ops.isa_level()
    for e in np.unique(ids[ids >= 0]):
        token, slot = (torch.from_numpy(i) for i in np.nonzero(ids == e))
        matrices = [m[layer, e] for m in (weights.gate, weights.up, weights.down)]
        weight = torch.from_numpy(routing).double()[token, slot, None]
        y, moves = expert(seen[token], *matrices, weights.type, level)
        moves += 4e-6 * y.abs() + chain_noise(matrices[0]) * y.abs().mean(1, keepdim=True)
        slots[slot, token], noise[slot, token] = y * weight, moves * weight.abs()
    if wire is Wire.FP32:
        out = slots.sum(0)
    elif reduced_over is None:
        out = bf16(slots).sum(0)
    else:
        owner = torch.from_numpy(np.where(ids >= 0, reduced_over[ids], -1).T)[:, :, None]
        out = torch.zeros(x.shape, dtype=torch.float64)
        for rank in np.unique(reduced_over):
            out += bf16((slots * (owner == int(rank))).sum(0))
    return Expected(out.numpy(), slots.abs().sum(0).numpy(), noise.sum(0).numpy())


def assert_matches(actual: F32, expected: Expected, wire: Wire) -> None:
    """Within FP32 noise of the reference; on a narrow wire a few elements may round the other way,
    by one bfloat16 unit of each slot."""
    size, noise = expected.size, expected.noise
    error = np.abs(actual - expected.out)
    if wire is Wire.FP32:
        assert (error <= noise).all()
        return
    assert (error <= noise + size * 2.0**-7).all()
    # Noise is a share of a unit, and moves about that share of elements past the middle of one.
    moved = np.minimum(noise / np.maximum(size * 2.0**-8, 1e-300), 1).sum()
    assert np.count_nonzero(error > noise) <= 0.02 * error.size + 1 + moved
