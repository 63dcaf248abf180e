"""Bits per byte of a decoder on held-out windows."""

from __future__ import annotations

import math

import msgspec

from afd.qfirst.block import Decoder
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.forward import window_losses
from afd.tools.stages import Advance


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cross-entropy of each window in nats, and the bytes that its predicted tokens stand for."""

    nats: tuple[float, ...]
    sizes: tuple[int, ...]

    @property
    def bits_per_byte(self) -> float:
        """Over all windows together."""
        return sum(self.nats) / math.log(2) / sum(self.sizes)


def score(decoder: Decoder, data: Windows, backend: Backend, advance: Advance) -> Score:
    """Runs every window of ``data`` on its own."""
    nats = []
    for ids in data.ids:
        nats.append(float(window_losses(decoder, ids[None], backend)[0]))
        advance()
    return Score(tuple(nats), tuple(int(size) for size in data.sizes))


def paired_error(one: Score, other: Score) -> float:
    """Standard error over windows of one's bits per byte minus the other's on the same windows."""
    count = len(one.nats)
    mean_size = sum(one.sizes) / count
    gap = one.bits_per_byte - other.bits_per_byte
    # Of a ratio of sums: residuals of each window around the common ratio.
    residuals = [
        (a - b) / math.log(2) - gap * size
        for a, b, size in zip(one.nats, other.nats, one.sizes, strict=True)
    ]
    variance = sum(r * r for r in residuals) / (count - 1) if count > 1 else math.nan
    return math.sqrt(variance / count) / mean_size
