"""Mixtral: no QK-norm, softmax routing renormalised over the chosen experts."""

from __future__ import annotations

from typing import Any

from afd.models.config import Fields, ModelConfig, decoder_fields
from afd.models.family import Family, QkNorm, Routing


class Mixtral:
    """Tensor names and configuration of MixtralForCausalLM."""

    qk_norm = QkNorm.NONE
    routing = Routing.SOFTMAX

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """See Family.parse; every layer has experts."""
        fields.require("sliding_window", None)
        layers = fields.integer("num_hidden_layers")
        width = fields.integer("intermediate_size")
        return ModelConfig(
            **decoder_fields(fields, generation, norm_eps=1e-5, max_position_tokens=4096 * 32),
            experts=fields.integer("num_local_experts"),
            top_k=fields.integer("num_experts_per_tok"),
            expert_width=width,
            dense_width=width,
            moe_layers=tuple(range(layers)),
            renormalize=True,
        )

    def router(self, layer: int) -> str:
        """See Family.router."""
        return f"model.layers.{layer}.block_sparse_moe.gate.weight"

    def router_bias(self, layer: int) -> str:
        """See Family.router_bias; Mixtral has none."""
        raise KeyError(f"layer {layer}: softmax routing has no selection bias")

    def expert(self, layer: int, expert: int) -> tuple[str, str, str]:
        """See Family.expert."""
        stem = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        return f"{stem}.w1.weight", f"{stem}.w3.weight", f"{stem}.w2.weight"

    def dense(self, layer: int) -> tuple[str, str, str]:
        """See Family.dense; Mixtral has no dense layer."""
        raise KeyError(f"layer {layer}: every Mixtral layer has experts")


FAMILY: Family = Mixtral()
