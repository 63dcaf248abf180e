"""The other placement: W_q and W_o in the pool too, so that the cache side holds no weight at all.

    cache side                          pool
          ────────  z, a  ────────►     u = z + W_o a; q from u
          ◄────────   q   ─────────     (first reply)
    sweep → (o, lse)                    z' = u + M(N2 u); k, v from N1(z')
          ◄─────  z', k, v  ───────     (second reply)
    a' = lerp(v, o, sigmoid(lse − s))

It costs a round trip before every sweep and twice the wire, and serves any model whose query reads
what the pool has: its call's input or output (Q-First, "when to pool the pair instead"). Embedding
and readout are in the pool as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from afd.qfirst.block import Decoder, Rope
from afd.qfirst.config import DecoderConfig
from afd.qfirst.errors import WiringError
from afd.qfirst.protocol import Pool, Reply, Request, Sweeps
from afd.qfirst.stages import Program, Stage, program


@dataclass(frozen=True)
class Carried:
    """What a cache side sends between attentions: z [B, 1, C], and the merged attention vectors of
    ``layer``, a [B, H, 1, D], whose output projection is still to be added to z."""

    z: torch.Tensor
    layer: int
    a: torch.Tensor


class PairedPool:
    """Every weight, no request: pure functions, and two replies a call."""

    def __init__(self, decoder: Decoder) -> None:
        """Raises WiringError for a query that reads a state which a pool without state has not."""
        self._decoder = decoder
        self._pool = Pool(decoder)
        for stage in self.program().stages:
            if stage.query < stage.state:
                raise WiringError(
                    f"layer {stage.attention}'s query is read before the call that projects it; "
                    "keep the query projection on the cache side"
                )

    def program(self) -> Program:
        """The calls of one token, which the model asks for and the cache side makes."""
        return program(self._decoder.wiring, self._decoder.config.layers)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids → the stream [B, 1, C]."""
        embedded: torch.Tensor = self._decoder.embed_tokens(torch.tensor(tokens)[:, None])
        return embedded

    def call(
        self, stage: Stage, sent: Carried | torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[], Reply]]:
        """The first reply, an unrotated query [B, H, 1, D], and the way to wait for the second.

        An early query comes before any feed-forward runs; a late one has to wait for it.
        """
        u = self._close(sent)
        layer = self._decoder.layers[stage.attention]

        def query(state: torch.Tensor) -> torch.Tensor:
            projected: torch.Tensor = layer.self_attn.project_query(layer.input_layernorm(state))
            return projected

        if stage.query_is_early:
            return query(u), lambda: self._pool.call(stage, u)
        reply = self._pool.call(stage, u)
        return query(reply.z), lambda: reply

    def logits(self, tail: int | None, sent: Carried | torch.Tensor) -> torch.Tensor:
        """What is left of the stack, and the readout: [B, vocab]."""
        u = self._close(sent)
        return self._decoder.readout(u if tail is None else self._pool.feed(tail, u))[:, 0]

    def _close(self, sent: Carried | torch.Tensor) -> torch.Tensor:
        if isinstance(sent, torch.Tensor):
            return sent
        return sent.z + self._decoder.layers[sent.layer].self_attn.output(sent.a)


class PureSweeper:
    """A cache side without weights: it knows a shape, a program and its requests."""

    def __init__(self, config: DecoderConfig, pool: PairedPool) -> None:
        self._config = config
        self._pool = pool
        self._program = pool.program()
        self._sweeps = Sweeps(config)

    def step(self, requests: Sequence[Request], tokens: Sequence[int]) -> torch.Tensor:
        """See CacheSide.step."""
        sent: Carried | torch.Tensor = self._pool.embed(tokens)
        positions = torch.tensor([[r.position] for r in requests])
        for stage in self._program.stages:
            unrotated, receive = self._pool.call(stage, sent)
            rope = Rope(positions, self._config, unrotated.dtype)
            q = rope.rotate(unrotated)[:, :, 0]
            past = self._sweeps.past(stage.attention, q, requests)
            reply = receive()
            mixed = self._sweeps.finish(stage.attention, q, past, reply, rope, requests)
            sent = Carried(reply.z, stage.attention, mixed)
        for request in requests:
            request.position += 1
        return self._pool.logits(self._program.tail, sent)
