"""The decode step against fused attention on a real decoder's tensors (Q-First, Section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from afd.qfirst.block import Decoder, Rope
from afd.qfirst.combine import add_current, score, sweep


@dataclass(frozen=True)
class StepCheck:
    """One layer at one cache length.

    ``error``: norm of the difference over the norm, sweep and combine against fused attention.
    ``above``: heads whose current score exceeds the cache's log-sum-exp; ``most_nats``: by how much
    at most (negative if in none).
    """

    layer: int
    cached: int
    heads: int
    error: float
    above: int
    most_nats: float


def projections(
    decoder: Decoder, ids: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Rotated q [1, H, T, D], rotated k and v [1, K, T, D] of every layer for ids [T]."""
    states = decoder.states(decoder.embed_tokens(ids[None]))
    rope = Rope(torch.arange(len(ids)), decoder.config, states[0].dtype)
    for index, layer in enumerate(decoder.layers):
        q, k, v = (states[i] for i in decoder.wiring.states(index))
        yield layer.query(q, rope), layer.key(k, rope), layer.value(v)


def check_steps(
    decoder: Decoder, ids: torch.Tensor, lengths: Sequence[int], wide: bool = False
) -> list[StepCheck]:
    """Every layer at every cache length; ids [T] with T above the longest length.

    ``wide``: the sweep returns float32 vectors, as the extension's does; else the cache's dtype.
    """
    scale = decoder.config.head_dim**-0.5
    checks = []
    with torch.no_grad():
        for index, (q, k, v) in enumerate(projections(decoder, ids)):
            for cached in lengths:
                now = q[:, :, cached]
                old_k, old_v = k[:, :, :cached], v[:, :, :cached]
                if wide:
                    past = sweep(now.float(), old_k.float(), old_v.float(), scale)
                else:
                    past = sweep(now, old_k, old_v, scale)
                s = score(now, k[:, :, cached], scale)
                ours = add_current(past, v[:, :, cached], s).o.to(q.dtype).float()
                fused = functional.scaled_dot_product_attention(
                    now[:, :, None], k[:, :, : cached + 1], v[:, :, : cached + 1], enable_gqa=True
                )[:, :, 0].float()
                excess = s - past.lse
                checks.append(
                    StepCheck(
                        layer=index, cached=cached, heads=s.numel(),
                        error=float((ours - fused).norm() / fused.norm()),
                        above=int((excess > 0).sum()), most_nats=float(excess.max()),
                    )
                )  # fmt: skip
    return checks
