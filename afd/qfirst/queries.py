"""A decoder's queries on real text: what they have in common, how far an early read moves them.

A query here is W_q N1(x) of one layer and token, all heads together, before QK-norm and rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from afd.qfirst.block import Decoder
from afd.qfirst.wiring import Wiring

# Positions whose logits exist at once.
_READOUT_ROWS = 256

Change = Callable[[int, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class QueryLayer:
    """Root-mean-square lengths over tokens of one layer's queries.

    ``spread``: of a query less the layer's mean; ``common_share``: the mean's part of the squared
    norm; ``displacement``: of the early query less the ordinary one, 0 where the layer is not
    moved.
    """

    layer: int
    norm: float
    spread: float
    displacement: float

    @property
    def common_share(self) -> float:
        """The layer mean's share of the mean squared norm."""
        return 1 - (self.spread / self.norm) ** 2


@dataclass(frozen=True)
class QueryStatistics:
    """``means`` [layers, width]; ``moves`` [layers, n, T]: length of each token's displacement;
    ``between_share``: variance between the layers' means over all variance."""

    layers: tuple[QueryLayer, ...]
    means: torch.Tensor
    moves: torch.Tensor
    between_share: float


def query_statistics(decoder: Decoder, early: Wiring, ids: torch.Tensor) -> QueryStatistics:
    """On ids [n, T], along the stream of ``decoder`` as it is wired."""
    count, width = decoder.config.layers, decoder.config.query_width
    sums = torch.zeros(count, width, dtype=torch.float64)
    squares = torch.zeros(count, dtype=torch.float64)
    moves = torch.zeros(count, *ids.shape)
    with torch.no_grad():
        for row, window in enumerate(ids):
            states = decoder.states(decoder.embed_tokens(window[None]))
            for index, layer in enumerate(decoder.layers):
                now, then = decoder.wiring.states(index)[0], early.states(index)[0]
                q = layer.self_attn.q_proj(layer.input_layernorm(states[now]))[0].double()
                sums[index] += q.sum(0)
                squares[index] += q.square().sum()
                if then != now:
                    moved = layer.self_attn.q_proj(layer.input_layernorm(states[then]))[0]
                    moves[index, row] = (moved - q).norm(dim=-1).float()
    means, power = sums / ids.numel(), squares / ids.numel()
    common = means.square().sum(1)
    layers = tuple(
        QueryLayer(
            layer=index,
            norm=math.sqrt(power[index]),
            spread=math.sqrt(max(0.0, float(power[index] - common[index]))),
            displacement=float(moves[index].double().square().mean().sqrt()),
        )
        for index in range(count)
    )
    between = (means - means.mean(0)).square().sum(1).mean()
    within = (power - common).mean()
    return QueryStatistics(layers, means.float(), moves, float(between / (between + within)))


@contextmanager
def changed_queries(decoder: Decoder, change: Change) -> Iterator[None]:
    """While it lasts, ``change(layer, q [B, T, width])`` stands in for every query."""

    def hook(index: int) -> Callable[..., torch.Tensor]:
        def replace(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            return change(index, output)

        return replace

    handles = [
        layer.self_attn.q_proj.register_forward_hook(hook(index))
        for index, layer in enumerate(decoder.layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def position_losses(decoder: Decoder, window: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats of each token of ids [T] but the first: float64 [T - 1]."""
    with torch.no_grad():
        stream = decoder.hidden(window[None])[0, :-1]
        parts = [
            functional.cross_entropy(decoder.readout(rows).float(), goals, reduction="none")
            for rows, goals in zip(
                stream.split(_READOUT_ROWS), window[1:].split(_READOUT_ROWS), strict=True
            )
        ]
    return torch.cat(parts).double()
