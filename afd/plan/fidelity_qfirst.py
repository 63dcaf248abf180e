"""Numbers of the Q-First paper: the account of its two dense checkpoints, and what follows from
numbers that it prints."""

from __future__ import annotations

from afd.plan.fidelity import Entry
from afd.qfirst import counts as count
from afd.qfirst.account import KNOWN, figures

REF = "Q-First"


def entries() -> list[Entry]:
    """The account of both models, the training's arithmetic, and what stays out of reach."""
    return _account() + _training() + _rest()


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
    unreachable = (
        "needs the stall of a round trip and the pool's rate, which the paper does not print"
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
        Entry("co-resident requests above which to keep the pair local, Qwen3-0.6B", REF, 3, None,
              unreachable),
        Entry("co-resident requests above which to keep the pair local, Qwen3-4B", REF, 7, None,
              unreachable),
    ]  # fmt: skip
