"""The attention side of a pre-norm rotary decoder layer, shared by every family.

delta ─► + residual ─► norm ─► QKV ─► (QK-norm) ─► RoPE ─► KV ─► attention ─► O
      ─► + ─► norm ─► router
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd.attention.rotary import rotary_tables
from afd.models.config import ModelConfig
from afd.models.family import Family, QkNorm, Routing
from afd.models.weights import AttentionWeights, DenseFfn, LayerWeights, MoeRouter
from afd.models.workspace import Lane


class Decoder:
    """Stateless but for the KV cache; every method works on one lane's rows in place."""

    def __init__(
        self,
        model: ModelConfig,
        family: Family,
        weights: AttentionWeights,
        cache: ops.KvCache,
        pool: ops.Pool,
        context_length: int,
    ) -> None:
        self._model = model
        self._family = family
        self._weights = weights
        self._cache = cache
        self._pool = pool
        self._scale = float(model.head_dim) ** -0.5
        self._cos, self._sin = rotary_tables(context_length, model.rotary_dim, model.rope_theta)

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        """The decoder layers' weights, in order."""
        return self._weights.layers

    def embed(self, tokens: NDArray[np.int32], lane: Lane) -> None:
        """Starts the residual stream from token ids; delta becomes zero."""
        self._weights.embedding.gather(tokens, lane.residual)
        lane.delta.fill(0.0)

    def attend(
        self, layer: int, weights: LayerWeights, lane: Lane, page_table: NDArray[np.int32]
    ) -> None:
        """Adds delta, runs attention, leaves the feed-forward's input in ``lane.hidden``."""
        model, eps = self._model, self._model.norm_eps
        ops.add_rms_norm(lane.residual, lane.delta, weights.input_norm, eps, lane.hidden)
        ops.linear(self._pool, lane.hidden, weights.qkv, lane.qkv)
        self._norm_qk(weights, lane)
        ops.rope(lane.q, lane.positions, self._cos, self._sin, model.head_dim)
        ops.rope(lane.k, lane.positions, self._cos, self._sin, model.head_dim)
        self._cache.store(layer, lane.k, lane.v, lane.locations)
        self._sweep(layer, lane, page_table)
        ops.linear(self._pool, lane.attended, weights.output, lane.delta)
        ops.add_rms_norm(lane.residual, lane.delta, weights.ffn_norm, eps, lane.hidden)

    def _sweep(self, layer: int, lane: Lane, page_table: NDArray[np.int32]) -> None:
        ops.paged_attention(
            self._pool,
            self._cache,
            layer,
            lane.q,
            lane.row_slot,
            lane.row_length,
            page_table,
            self._scale,
            lane.attended,
            lane.lse,
        )

    def _norm_qk(self, weights: LayerWeights, lane: Lane) -> None:
        if weights.q_norm is None or weights.k_norm is None:
            return
        eps = self._model.norm_eps
        if self._family.qk_norm is QkNorm.PER_HEAD:
            ops.head_norm(lane.q, weights.q_norm, eps)
            ops.head_norm(lane.k, weights.k_norm, eps)
        else:
            ops.rms_norm(lane.q, weights.q_norm, eps, lane.q)
            ops.rms_norm(lane.k, weights.k_norm, eps, lane.k)

    def route(self, router: MoeRouter, lane: Lane) -> None:
        """Chooses experts for ``lane.hidden``: fills ``lane.ids`` and ``lane.weights``."""
        ops.linear(self._pool, lane.hidden, router.weight, lane.logits)
        if self._family.routing is Routing.SIGMOID_BIAS and router.bias is not None:
            ops.route_sigmoid(lane.logits, router.bias, lane.ids, lane.weights)
        else:
            ops.route_softmax(lane.logits, self._model.renormalize, lane.ids, lane.weights)

    def dense(self, ffn: DenseFfn, lane: Lane) -> None:
        """A dense layer's feed-forward: ``lane.hidden`` to ``lane.delta``."""
        ops.linear(self._pool, lane.hidden, ffn.gate_up, lane.gate_up)
        ops.silu_mul(lane.gate_up, lane.act)
        ops.linear(self._pool, lane.act, ffn.down, lane.delta)

    def logits(
        self, residual: NDArray[np.float32], delta: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """Final norm and readout of rows whose last delta is not yet added; residual changes."""
        hidden = np.empty_like(residual)
        ops.add_rms_norm(residual, delta, self._weights.norm, self._model.norm_eps, hidden)
        ops.linear(self._pool, hidden, self._weights.lm_head, out)
