"""A request's keys and values, split over shards in any way."""

from __future__ import annotations

from collections.abc import Callable

import torch

from afd.qfirst.combine import Partial, merge, sweep

Placement = Callable[[int], int]


class ShardedCache:
    """One request's cached positions of every layer; a shard sees its own positions alone.

    A shard that holds nothing answers lse = -inf and a vector that nobody reads.
    """

    def __init__(self, layers: int, shards: int, placement: Placement | None = None) -> None:
        """``placement``: position → shard; round robin by default."""
        self._placement = placement or (lambda position: position % shards)
        self._layers = [[_Shard() for _ in range(shards)] for _ in range(layers)]

    def append(self, layer: int, position: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Rotated k and v [K, D] of one position."""
        self._layers[layer][self._placement(position)].append(k, v)

    def sweep(self, layer: int, q: torch.Tensor, kv_heads: int, scale: float) -> Partial:
        """Rotated q [H, D] over every cached position of the layer: o [H, D], lse [H]."""
        parts = [shard.sweep(q[None], kv_heads, scale) for shard in self._layers[layer]]
        merged = merge(parts)
        return Partial(merged.o[0], merged.lse[0])

    def positions(self, layer: int) -> list[int]:
        """How many positions each shard holds."""
        return [shard.length for shard in self._layers[layer]]


class _Shard:
    """Positions in the order they came, [K, capacity, D]; the capacity doubles."""

    def __init__(self) -> None:
        self.length = 0
        self._k = self._v = torch.empty(0)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.length == 0:
            self._k, self._v = (x.new_empty(x.shape[0], 16, x.shape[1]) for x in (k, v))
        elif self.length == self._k.shape[1]:
            self._k, self._v = (torch.cat((x, torch.empty_like(x)), 1) for x in (self._k, self._v))
        self._k[:, self.length], self._v[:, self.length] = k, v
        self.length += 1

    def sweep(self, q: torch.Tensor, kv_heads: int, scale: float) -> Partial:
        if self.length == 0:
            nothing = q.new_empty(1, kv_heads, 0, q.shape[-1])
            return sweep(q, nothing, nothing, scale)
        return sweep(q, self._k[None, :, : self.length], self._v[None, :, : self.length], scale)
