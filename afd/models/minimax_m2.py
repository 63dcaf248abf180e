"""MiniMax-M2: QK-norm over the full width, partial rotation, sigmoid routing with a bias."""

from __future__ import annotations

from typing import Any

from afd.errors import UnsupportedModelError
from afd.models.config import Fields, ModelConfig, decoder_fields
from afd.models.family import Family, QkNorm, Routing


class MiniMaxM2:
    """Tensor names and configuration of MiniMaxM2ForCausalLM."""

    qk_norm = QkNorm.FULL_WIDTH
    routing = Routing.SIGMOID_BIAS

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """See Family.parse; every layer has experts and full attention."""
        layers = fields.integer("num_hidden_layers")
        fields.require("sliding_window", None)
        fields.require("use_qk_norm", True)
        fields.require("qk_norm_type", "per_layer")
        fields.require("scoring_func", "sigmoid")
        fields.require("use_routing_bias", True)
        fields.require("shared_intermediate_size", 0, None)
        attention_types = fields.integers("attn_type_list", [1] * layers)
        if any(kind != 1 for kind in attention_types):
            raise UnsupportedModelError(
                "config.json: attn_type_list asks for linear attention; only full attention (1) is "
                "supported"
            )
        width = fields.integer("intermediate_size")
        return ModelConfig(
            **decoder_fields(
                fields,
                generation,
                norm_eps=1e-6,
                max_position_tokens=196608,
                partial_rotation=True,
            ),
            experts=fields.integer("num_local_experts", fields.optional("num_experts")),
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
        """See Family.router_bias."""
        return f"model.layers.{layer}.block_sparse_moe.e_score_correction_bias"

    def expert(self, layer: int, expert: int) -> tuple[str, str, str]:
        """See Family.expert."""
        stem = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        return f"{stem}.w1.weight", f"{stem}.w3.weight", f"{stem}.w2.weight"

    def dense(self, layer: int) -> tuple[str, str, str]:
        """See Family.dense; MiniMax-M2 has no dense layer."""
        raise KeyError(f"layer {layer}: every MiniMax-M2 layer has experts")


FAMILY: Family = MiniMaxM2()
