"""Numbers of the Q-First paper: the account of its two dense checkpoints, and what follows from
numbers that it prints."""

from __future__ import annotations

import math

from afd.plan.ledger.entry import Entry
from afd.qfirst import counts as count
from afd.qfirst.account import KNOWN, LONG, figures
from afd.qfirst.config import DecoderConfig

REF = "Q-First"
# The paper prints no bandwidth: its 2.3 and 15.1 ms imply the first, "ten times" the second.
CACHE_SIDE_BYTES_PER_S, POOL_BYTES_PER_S = 100e9, 1e12
ROUND_TRIP_S = 20e-6


def co_resident_crossover(c: DecoderConfig) -> float:
    """Requests at which reading W_q and W_o locally, once for all of them, costs each as much as a
    round trip to the pool and its reading of the pair (Q-First, "When to pool the pair")."""
    pair = count.cache_side_bytes(c)
    return (pair / CACHE_SIDE_BYTES_PER_S) / (ROUND_TRIP_S + pair / POOL_BYTES_PER_S)


def entries() -> list[Entry]:
    """The account of both models, the training's arithmetic, and what other numbers imply."""
    return _account() + _training() + _rest() + _arithmetic()


def _account() -> list[Entry]:
    return [
        Entry(f"{name}: {figure.name}", REF, float(figure.published), figure.ours, figure.note)
        for name, config in KNOWN.items()
        for figure in figures(name, config)
        if figure.published is not None
    ]


def _training() -> list[Entry]:
    return [
        Entry("tokens of a run, millions", REF, 372, 11_355 * 32_768 / 1e6),
        *(Entry(f"shadow at {h} half-layers", REF, share, h / 8)
          for h, share in ((1, 0.125), (3, 0.375), (5, 0.625), (7, 0.875))),
        *(Entry(f"displacement removed at {h} half-layers", REF, share, 1 - d / untrained)
          for h, untrained, d, share in ((1, 0.0658, 0.0123, 0.81), (3, 0.1750, 0.0281, 0.84),
                                         (5, 0.3511, 0.0414, 0.88), (7, 0.4821, 0.0556, 0.88))),
    ]  # fmt: skip


def _rest() -> list[Entry]:
    small, large = KNOWN["qwen3-0.6b"], KNOWN["qwen3-4b"]
    small_s = small.layers * count.cache_side_bytes(small) / 2.3e-3
    large_s = large.layers * count.cache_side_bytes(large) / 15.1e-3
    assumed = (
        "cache side 100 GB/s (as the printed 2.3 and 15.1 ms imply), a pool ten times as fast (as "
        "the paper says) and a round trip of 20 us, which it does not print: 15.6 to 22.6 us all "
        "give both published values"
    )
    ratio = next(f for f in figures("", small) if f.name.endswith("% of the pool's arithmetic"))
    return [
        Entry("combine's share at 65,536 positions, one in", REF, 65_536, float(2**16)),
        Entry(f"Qwen3-0.6B: {ratio.name}", REF, 27, ratio.ours,
              "27 % is the share of a whole layer; the ratio to the pool's own is 36 %"),
        Entry("batch-one projections over a batch of eight, Qwen3-0.6B, ms", REF, 0.29, 2.3 / 8),
        Entry("batch-one projections over a batch of eight, Qwen3-4B, ms", REF, 1.89, 15.1 / 8),
        Entry("Qwen3-4B over 0.6B implied bandwidth of those (same device: 1)", REF, 1.0,
              large_s / small_s),
        *(Entry(f"batch-one projections, {name}, ms", REF, ms,
                c.layers * count.cache_side_bytes(c) / CACHE_SIDE_BYTES_PER_S * 1e3,
                "100 GB/s taken from the 4B figure; the paper prints no bandwidth")
          for name, c, ms in (("Qwen3-0.6B", small, 2.3), ("Qwen3-4B", large, 15.1))),
        *(Entry(f"co-resident requests above which to keep the pair local, {name}", REF,
                published, float(round(co_resident_crossover(c))), assumed)
          for name, c, published in (("Qwen3-0.6B", small, 3), ("Qwen3-4B", large, 7))),
    ]  # fmt: skip


def _arithmetic() -> list[Entry]:
    """Numbers that follow from other printed numbers."""
    small = KNOWN["qwen3-0.6b"]
    return [
        Entry("resolution of 3 seeds, from their deviation of 0.0047", REF, 0.0117,
              0.0047 * 4.303 / math.sqrt(3)),
        Entry("sub-layer exchange over a read point's movement", REF, 56, 0.0623 / 0.0011),
        Entry("network-input query over a read point's movement", REF, 91, 0.1003 / 0.0011),
        Entry("family gap over the shifted arm", REF, 7, 0.0623 / 0.0090),
        Entry("share of compute-optimal (20 tokens a parameter)", REF, 0.03,
              11_355 * 32_768 / (20 * count.parameters(small))),
        Entry("runs of 8 arms at 3 seeds", REF, 24, 8 * 3),
        Entry("GPU-hours of those runs, each 2.0 to 2.7", REF, 51, 24 * 2.125,
              "2.125 hours is inside the printed range"),
        Entry("BF16 spacing at 1.0", REF, 0.0078, 2.0**-7),
        Entry("largest exponent before single precision overflows", REF, 89,
              math.log(3.4028235e38)),
        Entry("log of a shard's Z of 8.2e36", REF, 85, math.log(8.2e36)),
        Entry("query replaced by its mean, Qwen3-0.6B, bits per byte", REF, 0.8080,
              1.8698 - 0.9022,
              "does not add up: the row's own columns differ by 0.9676; +0.8080 would need a "
              "baseline of 1.0618"),
        Entry("conversion cost over three checkpoints falls by a factor", REF, 4, 0.0746 / 0.0181),
        Entry("displacement over spread falls by", REF, 0.2, 1 - 0.519 / 0.642),
        Entry("weights a pool puts down at one million, Qwen3-0.6B", REF, 0.99,
              1 - count.pool_share(small, LONG)),
    ]  # fmt: skip
