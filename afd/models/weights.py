"""The weights an attention worker holds: everything except the experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Matrix, WeightType
from afd.checkpoint import Checkpoint
from afd.models.config import ModelConfig
from afd.models.family import Family, QkNorm, Routing

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MoeRouter:
    """``weight`` [experts, hidden]; ``bias`` [experts] under sigmoid routing. ``layer`` counts MoE
    layers only: the number by which the boundary knows it."""

    layer: int
    weight: Matrix
    bias: Vector | None


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """A dense layer's feed-forward: ``gate_up`` [2 * width, hidden], ``down`` [hidden, width]."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer without its experts; ``qkv`` stacks the rows of q, k and v."""

    input_norm: Vector
    qkv: Matrix
    q_norm: Vector | None
    k_norm: Vector | None
    output: Matrix
    ffn_norm: Vector
    ffn: MoeRouter | DenseFfn


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """``lm_head`` is ``embedding`` itself where the checkpoint ties them."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    norm: Vector
    lm_head: Matrix


class _Loader:
    def __init__(self, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype

    def matrix(self, cols: int, *parts: tuple[str, int], dtype: WeightType | None = None) -> Matrix:
        """The named weights, stacked by rows: parts are (name, rows)."""
        matrix = Matrix(sum(rows for _, rows in parts), cols, dtype or self._dtype)
        first = 0
        for name, rows in parts:
            matrix.load(first, self._checkpoint.weight(name, (rows, cols)))
            first += rows
        return matrix

    def vector(self, name: str, width: int) -> Vector:
        return self._checkpoint.vector(name, (width,))


def _norm_widths(model: ModelConfig, kind: QkNorm) -> tuple[int, int]:
    if kind is QkNorm.PER_HEAD:
        return model.head_dim, model.head_dim
    return model.q_width, model.kv_width


def _ffn(load: _Loader, model: ModelConfig, family: Family, layer: int) -> MoeRouter | DenseFfn:
    if layer not in model.moe_layers:
        gate, up, down = family.dense(layer)
        width = model.dense_width
        return DenseFfn(
            gate_up=load.matrix(model.hidden, (gate, width), (up, width)),
            down=load.matrix(width, (down, model.hidden)),
        )
    biased = family.routing is Routing.SIGMOID_BIAS
    return MoeRouter(
        layer=model.moe_layers.index(layer),
        # Routing decides which experts run, so the router keeps full precision whatever the dtype.
        weight=load.matrix(
            model.hidden, (family.router(layer), model.experts), dtype=WeightType.FP32
        ),
        bias=load.vector(family.router_bias(layer), model.experts) if biased else None,
    )


def _layer(load: _Loader, model: ModelConfig, family: Family, layer: int) -> LayerWeights:
    stem = f"model.layers.{layer}"
    attention = f"{stem}.self_attn"
    q_norm = k_norm = None
    if family.qk_norm is not QkNorm.NONE:
        q_width, k_width = _norm_widths(model, family.qk_norm)
        q_norm = load.vector(f"{attention}.q_norm.weight", q_width)
        k_norm = load.vector(f"{attention}.k_norm.weight", k_width)
    return LayerWeights(
        input_norm=load.vector(f"{stem}.input_layernorm.weight", model.hidden),
        qkv=load.matrix(
            model.hidden,
            (f"{attention}.q_proj.weight", model.q_width),
            (f"{attention}.k_proj.weight", model.kv_width),
            (f"{attention}.v_proj.weight", model.kv_width),
        ),
        q_norm=q_norm,
        k_norm=k_norm,
        output=load.matrix(model.q_width, (f"{attention}.o_proj.weight", model.hidden)),
        ffn_norm=load.vector(f"{stem}.post_attention_layernorm.weight", model.hidden),
        ffn=_ffn(load, model, family, layer),
    )


def load_attention_weights(
    checkpoint: Checkpoint, model: ModelConfig, family: Family, dtype: WeightType
) -> AttentionWeights:
    """Reads and packs every tensor of the attention side; raises CheckpointError."""
    load = _Loader(checkpoint, dtype)
    embedding = load.matrix(model.hidden, ("model.embed_tokens.weight", model.vocab))
    tied = model.tie_embeddings
    return AttentionWeights(
        embedding=embedding,
        layers=tuple(_layer(load, model, family, i) for i in range(model.layers)),
        norm=load.vector("model.norm.weight", model.hidden),
        lm_head=embedding if tied else load.matrix(model.hidden, ("lm_head.weight", model.vocab)),
    )
