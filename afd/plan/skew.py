"""How unevenly experts are loaded, and what the busiest rank therefore carries."""

from __future__ import annotations

import math
from collections.abc import Sequence

from afd.plan.errors import PlanError


def power_law_head(experts: int, exponent: float) -> float:
    """Load of the most popular expert over the mean, popularity ∝ rank^-exponent."""
    return experts / math.fsum(r**-exponent for r in range(1, experts + 1))


def busiest_rank_factor(experts: int, experts_per_token: int, ranks: int, exponent: float) -> float:
    """Rows of the busiest rank over the mean.

    That rank holds the most popular expert and an average share of the others. No expert can
    receive a token twice, so its load is at most experts / experts_per_token times the mean.
    """
    head = min(power_law_head(experts, exponent), experts / experts_per_token)
    local = max(1.0, experts / ranks)
    others = (experts - head) / max(1, experts - 1)
    return max(1.0, (head + (local - 1) * others) / local)


def measured_rank_factor(counts: Sequence[float], ranks: int) -> float:
    """The same from measured counts per expert, dealt to ranks in contiguous blocks of equal size.

    Where they do not divide, the first blocks hold one expert more.
    """
    if not counts or min(counts) < 0 or not sum(counts) > 0:
        raise PlanError("expert counts must be non-negative and not all zero")
    size, more = divmod(len(counts), ranks)
    loads = []
    first = 0
    for rank in range(ranks):
        last = first + size + (rank < more)
        loads.append(math.fsum(counts[first:last]))
        first = last
    return max(loads) * ranks / math.fsum(counts)


def slowest_rank_factor(ranks: int, requests: float, context_cv: float) -> float:
    """Context bytes of the fullest of ``ranks`` attention ranks over the mean.

    Each rank sums ``requests`` independent contexts of coefficient of variation ``context_cv``;
    the expected maximum of n normal values lies sqrt(2 ln n) deviations above the mean at most.
    A step waits for it.
    """
    if context_cv <= 0 or ranks < 2:
        return 1.0
    return 1.0 + context_cv / math.sqrt(max(1.0, requests)) * math.sqrt(2 * math.log(ranks))
