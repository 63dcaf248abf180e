"""Paired differences between arms: the seed's part is common to both and cancels (Section 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from afd.qfirst.errors import QFirstError

# Student's t, two-sided 95 %, for 1 ... 9 degrees of freedom.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Paired:
    """An arm minus its control, bits per byte, by seed."""

    arm: str
    control: str
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return sum(self.differences) / len(self.differences)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds, n - 1 in the denominator."""
        mean = self.mean
        squares = sum((d - mean) ** 2 for d in self.differences)
        return math.sqrt(squares / (len(self.differences) - 1))


def paired(
    scores: Mapping[tuple[str, int], float], arms: Sequence[str], control: str, seeds: Sequence[int]
) -> list[Paired]:
    """One entry an arm but the control; ``scores`` by (arm, seed)."""
    return [
        Paired(arm, control, tuple(scores[arm, s] - scores[control, s] for s in seeds))
        for arm in arms
        if arm != control
    ]


def pooled_spread(entries: Sequence[Paired]) -> float:
    """One standard deviation for all arms, from their variances' mean."""
    return math.sqrt(sum(e.spread**2 for e in entries) / len(entries))


def band_95(spread: float, seeds: int) -> float:
    """Half-width of the 95 % band on a mean of ``seeds`` differences that scatter by ``spread``.

    Student's t with seeds - 1 degrees of freedom, as the paper's 0.0047 -> 0.0117 at three seeds.
    """
    if not 2 <= seeds <= len(_T_95) + 1:
        raise QFirstError(f"a band needs 2 to {len(_T_95) + 1} seeds, not {seeds}")
    return _T_95[seeds - 2] * spread / math.sqrt(seeds)
