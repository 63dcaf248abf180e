"""Where a layer is cut, and what crosses the cut."""

from __future__ import annotations

from enum import StrEnum

from afd.plan.model_spec import ModelSpec


class Cut(StrEnum):
    """The three places to cut a layer."""

    ROUTED_TOKENS = "routed-tokens"
    QUERY_FIRST = "query-first"
    SWEEP_ONLY = "sweep-only"


NEEDS = {
    Cut.ROUTED_TOKENS: "any checkpoint",
    Cut.QUERY_FIRST: "a checkpoint whose query reads the block's input",
    Cut.SWEEP_ONLY: "any checkpoint; the FFN side runs the projections",
}


def bytes_out_per_token_layer(model: ModelSpec, cut: Cut) -> float:
    """Attention side → FFN side. Routed rows are e4m3, other tensors BF16."""
    if cut is Cut.ROUTED_TOKENS:
        return float(model.experts_per_token * model.hidden)
    if cut is Cut.QUERY_FIRST:
        return 2.0 * model.hidden
    return 2.0 * model.query_heads * model.head_dim


def bytes_back_per_token_layer(model: ModelSpec, cut: Cut) -> float:
    """FFN side → attention side, BF16."""
    kv = 2.0 * 2 * model.kv_heads * model.head_dim
    if model.latent_kv_elements:
        kv = 2.0 * model.latent_kv_elements
    if cut is Cut.ROUTED_TOKENS:
        return 2.0 * model.experts_per_token * model.hidden
    if cut is Cut.QUERY_FIRST:
        return 2.0 * model.hidden + kv
    return 2.0 * model.query_heads * model.head_dim + kv


def attention_dense_share(model: ModelSpec, cut: Cut) -> float:
    """Share of the dense time that stays on the attention side, by projection weights."""
    if cut is Cut.ROUTED_TOKENS:
        return 1.0
    if cut is Cut.SWEEP_ONLY:
        return 0.0
    total = model.attention_weight_elements
    return max(0.0, 1.0 - 2.0 * model.hidden * model.kv_heads * model.head_dim / total)
