"""The algebra of a split sweep: partial attention, its merge, and the current position.

A shard of the cache returns (o, lse): its attention vector and the log of its softmax's
denominator. Z(A + B) = Z(A) + Z(B) and o is a Z-weighted mean, so shards merge in any order
(Q-First, Section 5); the current position is a shard of one with o = v and lse = s. B sequences, H
query and K key heads of D, S cached positions. The arithmetic is float32 whatever the keys' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch

from afd.qfirst.errors import QFirstError


class Partial(NamedTuple):
    """``o`` [..., D] and ``lse`` [...] float32, natural log.

    Where ``lse`` is -inf nothing was swept and ``o`` may hold anything, NaN included: it is not
    read.
    """

    o: torch.Tensor
    lse: torch.Tensor


def sweep(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Partial:
    """One query per sequence over cached positions, by PyTorch's own kernel on a CPU.

    q [B, H, D]; k, v [B, K, S, D]; ``scale`` multiplies the scores. o [B, H, D] has q's dtype.
    """
    empty = k.shape[2] == 0
    # On no keys PyTorch's CPU kernel divides by zero and ends the process.
    if empty or q.device.type != "cpu":
        return sweep_spelled_out(q, k, v, scale)
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q[:, :, None], k, v, scale=scale
    )
    return Partial(o[:, :, 0], lse[:, :, 0])


def sweep_spelled_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Partial:
    """What ``sweep`` computes, as two products and a softmax in float64; returned in float32."""
    grouped = q.double().unflatten(1, (k.shape[1], -1)) * scale
    scores = grouped @ k.double().transpose(-1, -2)
    o = scores.softmax(-1) @ v.double()
    return Partial(o.float().flatten(1, 2), scores.logsumexp(-1).float().flatten(1, 2))


def merge(parts: Sequence[Partial]) -> Partial:
    """The attention over the union of disjoint shards; any number but none, in any order."""
    if not parts:
        raise QFirstError("a merge needs at least one shard; an empty one is lse = -inf")
    return reduce(_merge_two, parts)


def _merge_two(a: Partial, b: Partial) -> Partial:
    mixed = lerp(a.o.float(), b.o.float(), b.lse - a.lse)
    # An unread vector may be NaN, and NaN times a weight of zero is NaN: select, never weigh.
    o = torch.where(_empty(b), a.o.float(), torch.where(_empty(a), b.o.float(), mixed))
    return Partial(o, torch.logaddexp(a.lse.float(), b.lse.float()))


def _empty(part: Partial) -> torch.Tensor:
    return (part.lse == -torch.inf)[..., None]


def lerp(x: torch.Tensor, y: torch.Tensor, log_odds: torch.Tensor) -> torch.Tensor:
    """(1 - t) x + t y with t = sigmoid(log_odds [...]); x, y [..., D].

    1 - t is taken as sigmoid(-log_odds), so that a tiny weight keeps its digits.
    """
    odds = log_odds.float()[..., None]
    return torch.sigmoid(-odds) * x + torch.sigmoid(odds) * y


def score(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """The current position's score s [B, H] float32; q [B, H, D], k [B, K, D]."""
    grouped = q.float().unflatten(1, (k.shape[1], -1))
    return (grouped * k.float()[:, :, None]).sum(-1).flatten(1, 2) * scale


def add_current(past: Partial, v: torch.Tensor, s: torch.Tensor) -> Partial:
    """The cache's partial with the current position: lerp(v, o, sigmoid(lse - s)), Section 2.

    v [B, K, D], s [B, H]. Over an empty cache the result is v itself.
    """
    heads = past.lse.shape[1]
    current = v.float().repeat_interleave(heads // v.shape[1], dim=1)
    return _merge_two(Partial(current, s), past)
