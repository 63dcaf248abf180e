"""Qwen3-MoE: per-head QK-norm, softmax routing, dense layers allowed among the MoE layers."""

from __future__ import annotations

from typing import Any

from afd.models.config import Fields, ModelConfig, eos_token_ids, fp8_block, rope
from afd.models.family import Family, QkNorm, Routing


class Qwen3Moe:
    """Tensor names and configuration of Qwen3MoeForCausalLM."""

    qk_norm = QkNorm.PER_HEAD
    routing = Routing.SOFTMAX

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """See Family.parse; dense are mlp_only_layers and layers off the sparse step."""
        layers = fields.integer("num_hidden_layers")
        heads = fields.integer("num_attention_heads")
        hidden = fields.integer("hidden_size")
        # Transformers divides when the field is missing, though published files carry it.
        head_dim = fields.integer("head_dim", hidden // heads)
        theta, rotary_dim = rope(fields, head_dim)
        step = fields.integer("decoder_sparse_step", 1)
        dense = set(fields.optional("mlp_only_layers", []))
        experts = fields.integer("num_experts", fields.optional("num_local_experts"))
        return ModelConfig(
            architecture=fields.architecture,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            rope_theta=theta,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            vocab=fields.integer("vocab_size"),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            experts=experts,
            top_k=fields.integer("num_experts_per_tok"),
            expert_width=fields.integer("moe_intermediate_size"),
            dense_width=fields.integer("intermediate_size"),
            moe_layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
            renormalize=fields.flag("norm_topk_prob", False),
            max_position_tokens=fields.integer("max_position_embeddings", 32768),
            eos_token_ids=eos_token_ids(fields, generation),
            fp8_block=fp8_block(fields),
        )

    def router(self, layer: int) -> str:
        """See Family.router."""
        return f"model.layers.{layer}.mlp.gate.weight"

    def router_bias(self, layer: int) -> str:
        """See Family.router_bias; Qwen3-MoE has none."""
        raise KeyError(f"layer {layer}: softmax routing has no selection bias")

    def expert(self, layer: int, expert: int) -> tuple[str, str, str]:
        """See Family.expert."""
        stem = f"model.layers.{layer}.mlp.experts.{expert}"
        return f"{stem}.gate_proj.weight", f"{stem}.up_proj.weight", f"{stem}.down_proj.weight"

    def dense(self, layer: int) -> tuple[str, str, str]:
        """See Family.dense."""
        stem = f"model.layers.{layer}.mlp"
        return f"{stem}.gate_proj.weight", f"{stem}.up_proj.weight", f"{stem}.down_proj.weight"


FAMILY: Family = Qwen3Moe()
