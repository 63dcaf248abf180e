"""Mixtral: no QK-norm, softmax routing renormalised over the chosen experts."""

from __future__ import annotations

from typing import Any

from afd.models.config import Fields, ModelConfig, eos_token_ids, fp8_block, rope
from afd.models.family import Family, QkNorm, Routing


class Mixtral:
    """Tensor names and configuration of MixtralForCausalLM."""

    qk_norm = QkNorm.NONE
    routing = Routing.SOFTMAX

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """See Family.parse; every layer has experts."""
        fields.require("sliding_window", None)
        layers = fields.integer("num_hidden_layers")
        heads = fields.integer("num_attention_heads")
        hidden = fields.integer("hidden_size")
        head_dim = fields.integer("head_dim", hidden // heads)
        theta, rotary_dim = rope(fields, head_dim)
        width = fields.integer("intermediate_size")
        return ModelConfig(
            architecture=fields.architecture,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            rope_theta=theta,
            norm_eps=fields.number("rms_norm_eps", 1e-5),
            vocab=fields.integer("vocab_size"),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            experts=fields.integer("num_local_experts"),
            top_k=fields.integer("num_experts_per_tok"),
            expert_width=width,
            dense_width=width,
            moe_layers=tuple(range(layers)),
            renormalize=True,
            max_position_tokens=fields.integer("max_position_embeddings", 4096 * 32),
            eos_token_ids=eos_token_ids(fields, generation),
            fp8_block=fp8_block(fields),
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
