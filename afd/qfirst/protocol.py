"""Query-first decode in one process: a cache side that owns requests, and a pool that owns none.

    cache side                                  pool
    W_q, W_o, embedding, readout, KV, position  feed-forward, W_k, W_v
          ──────────────  u  ──────────────►
    q from u, sweep → (o, lse)                  z = u + M(N2 u); k, v from N1(z)
          ◄───────────  z, k, v  ───────────
    out = lerp(v, o, sigmoid(lse − s)); u' = z + W_o out; k, v → cache, waited on by nobody

Keys come back unrotated: a position is request state and stays with the request (Section 4). B
requests a step, one token each; H query and K key heads of D, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from afd.qfirst.block import Decoder, Rope
from afd.qfirst.cache import Placement, ShardedCache
from afd.qfirst.combine import Partial, add_current, score
from afd.qfirst.config import DecoderConfig
from afd.qfirst.stages import Stage, program


class Reply(NamedTuple):
    """z [B, 1, C], and the stage's unrotated key and value [B, K, 1, D]."""

    z: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class Pool:
    """Weights and pure functions; what a call makes is in its reply and nowhere else."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def call(self, stage: Stage, u: torch.Tensor) -> Reply:
        """One stage for u [B, 1, C]."""
        z = u if stage.ffn is None else self.feed(stage.ffn, u)
        layer = self._decoder.layers[stage.attention]
        k_state, v_state = (u if read == stage.state else z for read in (stage.key, stage.value))
        return Reply(
            z,
            layer.self_attn.project_key(layer.input_layernorm(k_state)),
            layer.self_attn.value(layer.input_layernorm(v_state)),
        )

    def feed(self, ffn: int, u: torch.Tensor) -> torch.Tensor:
        """A feed-forward that no attention follows: z [B, 1, C]."""
        return u + self._decoder.layers[ffn].feed(u)


class Link(Protocol):
    """The way to a pool."""

    def send(self, stage: Stage, u: torch.Tensor) -> Callable[[], Reply]:
        """Hands u over and returns at once; the function returned waits for the reply."""

    def feed(self, ffn: int, u: torch.Tensor) -> torch.Tensor:
        """The last feed-forward, after which nothing is left to sweep."""


class DirectLink:
    """A pool in this process that works when it is waited for, so never before the sweep."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def send(self, stage: Stage, u: torch.Tensor) -> Callable[[], Reply]:
        """See Link.send."""
        return lambda: self._pool.call(stage, u)

    def feed(self, ffn: int, u: torch.Tensor) -> torch.Tensor:
        """See Link.feed."""
        return self._pool.feed(ffn, u)


class Request:
    """A request's state, all of it on the cache side."""

    def __init__(self, layers: int, shards: int = 1, placement: Placement | None = None) -> None:
        self.position = 0
        self.cache = ShardedCache(layers, shards, placement)


class CacheSide:
    """Runs requests token by token against any pool."""

    def __init__(self, decoder: Decoder, link: Link) -> None:
        self._decoder = decoder
        self._link = link
        self._program = program(decoder.wiring, decoder.config.layers)
        self._sweeps = Sweeps(decoder.config)

    def step(self, requests: Sequence[Request], tokens: Sequence[int]) -> torch.Tensor:
        """One token of each request → logits [B, vocab]; positions advance."""
        u = self._decoder.embed_tokens(torch.tensor(tokens)[:, None])
        rope = Rope(torch.tensor([[r.position] for r in requests]), self._decoder.config, u.dtype)
        states = [u]
        for stage in self._program.stages:
            receive = self._link.send(stage, states[-1])
            layer = self._decoder.layers[stage.attention]
            reply = None if stage.query_is_early else receive()
            if reply is not None and stage.ffn is not None:
                states.append(reply.z)
            q = layer.query(states[stage.query], rope)[:, :, 0]
            past = self._sweeps.past(stage.attention, q, requests)
            if reply is None:
                reply = receive()
                states += [reply.z] if stage.ffn is not None else []
            mixed = self._sweeps.finish(stage.attention, q, past, reply, rope, requests)
            states.append(reply.z + layer.self_attn.output(mixed))
        if self._program.tail is not None:
            states.append(self._link.feed(self._program.tail, states[-1]))
        for request in requests:
            request.position += 1
        return self._decoder.readout(states[-1])[:, 0]


class Sweeps:
    """A layer's sweep over each request's own cache, and what closes it."""

    def __init__(self, config: DecoderConfig) -> None:
        self._kv_heads = config.kv_heads
        self._scale = config.head_dim**-0.5

    def past(self, layer: int, q: torch.Tensor, requests: Sequence[Request]) -> Partial:
        """Rotated q [B, H, D] over what is cached; each request at its own length."""
        parts = [
            request.cache.sweep(layer, row, self._kv_heads, self._scale)
            for request, row in zip(requests, q, strict=True)
        ]
        return Partial(*(torch.stack(pieces) for pieces in zip(*parts, strict=True)))

    def finish(
        self, layer: int, q: torch.Tensor, past: Partial, reply: Reply, rope: Rope,
        requests: Sequence[Request],
    ) -> torch.Tensor:  # fmt: skip
        """Adds the current position: [B, H, 1, D]. The cache write follows, waited on by nobody."""
        k, v = rope.rotate(reply.k)[:, :, 0], reply.v[:, :, 0]
        mixed = add_current(past, v, score(q, k, self._scale)).o.to(q.dtype)
        for row, request in enumerate(requests):
            request.cache.append(layer, request.position, k[row], v[row])
        return mixed[:, :, None]


class Steps(Protocol):
    """A cache side of either placement."""

    def step(self, requests: Sequence[Request], tokens: Sequence[int]) -> torch.Tensor:
        """See CacheSide.step."""


def generate(side: Steps, request: Request, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy ids after the prompt, one protocol step per token of either."""
    made: list[int] = []
    with torch.no_grad():
        for token in prompt:
            logits = side.step([request], [token])
        for _ in range(tokens):
            made.append(int(logits[0].argmax()))
            logits = side.step([request], [made[-1]])
    return made
