"""Qwen3-MoE: per-head QK-norm, softmax routing, dense layers allowed among the MoE layers."""

from __future__ import annotations

from typing import Any

from afd.models.config import Fields, ModelConfig, decoder_fields
from afd.models.family import Family, QkNorm, Routing


class Qwen3Moe:
    """Tensor names and configuration of Qwen3MoeForCausalLM."""

    qk_norm = QkNorm.PER_HEAD
    routing = Routing.SOFTMAX

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """See Family.parse; dense are mlp_only_layers and layers off the sparse step."""
        layers = fields.integer("num_hidden_layers")
        step = fields.integer("decoder_sparse_step", 1)
        dense = set(fields.integers("mlp_only_layers", []))
        experts = fields.integer("num_experts", fields.optional("num_local_experts"))
        return ModelConfig(
            **decoder_fields(fields, generation, norm_eps=1e-6, max_position_tokens=32768),
            experts=experts,
            top_k=fields.integer("num_experts_per_tok"),
            expert_width=fields.integer("moe_intermediate_size"),
            dense_width=fields.integer("intermediate_size"),
            moe_layers=tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
            renormalize=fields.flag("norm_topk_prob", False),
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
