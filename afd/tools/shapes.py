"""The three published shapes: tensor names and config.json of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from afd.tools.dense_model import DenseShape
from afd.tools.experts import ExpertPlan
from afd.tools.qk_norm import HeadLayout, QkNormKind

ConfigFields = Callable[[DenseShape, HeadLayout, ExpertPlan], dict[str, Any]]


@dataclass(frozen=True)
class MoeShape:
    """``block``: the layer's MoE module; ``expert_parts``: its gate, up and down projections."""

    name: str
    architecture: str
    qk_norm: QkNormKind
    block: str
    expert_parts: tuple[str, str, str]
    selection_bias: bool
    own_fields: ConfigFields

    def router(self, layer: int) -> str:
        """The router's weight."""
        return f"model.layers.{layer}.{self.block}.gate.weight"

    def router_bias(self, layer: int) -> str:
        """The bias added to scores for selection alone."""
        return f"model.layers.{layer}.{self.block}.e_score_correction_bias"

    def expert(self, layer: int, expert: int) -> tuple[str, str, str]:
        """An expert's gate, up and down projection."""
        gate, up, down = (
            f"model.layers.{layer}.{self.block}.experts.{expert}.{part}.weight"
            for part in self.expert_parts
        )
        return gate, up, down

    def config(self, dense: DenseShape, heads: HeadLayout, plan: ExpertPlan) -> dict[str, Any]:
        """config.json as checkpoints of this architecture are published."""
        return {
            "architectures": [self.architecture],
            "model_type": self.name,
            "vocab_size": dense.vocab,
            "hidden_size": dense.hidden,
            "hidden_act": "silu",
            "num_hidden_layers": dense.layers,
            "num_attention_heads": dense.heads,
            "num_key_value_heads": dense.kv_heads,
            "head_dim": heads.width,
            "num_experts_per_tok": plan.top_k,
            "rms_norm_eps": dense.norm_eps,
            "rope_theta": heads.rope_theta,
            "max_position_embeddings": dense.max_positions,
            "tie_word_embeddings": dense.tied,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "use_cache": True,
            "bos_token_id": dense.bos_token_id,
            "eos_token_id": dense.eos_token_ids[0] if dense.eos_token_ids else None,
            "torch_dtype": "bfloat16",
            **self.own_fields(dense, heads, plan),
        }


def _qwen3_moe(dense: DenseShape, heads: HeadLayout, plan: ExpertPlan) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "intermediate_size": dense.ffn,
        "max_window_layers": dense.layers,
        "mlp_only_layers": [],
        "moe_intermediate_size": dense.ffn // plan.top_k,
        "norm_topk_prob": True,
        "num_experts": plan.experts,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _mixtral(dense: DenseShape, heads: HeadLayout, plan: ExpertPlan) -> dict[str, Any]:
    return {
        "intermediate_size": dense.ffn // plan.top_k,
        "num_local_experts": plan.experts,
        "sliding_window": None,
    }


def _minimax_m2(dense: DenseShape, heads: HeadLayout, plan: ExpertPlan) -> dict[str, Any]:
    return {
        "attn_type_list": [1] * dense.layers,
        "intermediate_size": dense.ffn // plan.top_k,
        "num_local_experts": plan.experts,
        "qk_norm_type": "per_layer",
        "rotary_dim": heads.rotary,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }


_SHAPES = (
    MoeShape(
        name="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        qk_norm=QkNormKind.PER_HEAD,
        block="mlp",
        expert_parts=("gate_proj", "up_proj", "down_proj"),
        selection_bias=False,
        own_fields=_qwen3_moe,
    ),
    MoeShape(
        name="mixtral",
        architecture="MixtralForCausalLM",
        qk_norm=QkNormKind.NONE,
        block="block_sparse_moe",
        expert_parts=("w1", "w3", "w2"),
        selection_bias=False,
        own_fields=_mixtral,
    ),
    MoeShape(
        name="minimax_m2",
        architecture="MiniMaxM2ForCausalLM",
        qk_norm=QkNormKind.FULL_WIDTH,
        block="block_sparse_moe",
        expert_parts=("w1", "w3", "w2"),
        selection_bias=True,
        own_fields=_minimax_m2,
    ),
)
SHAPES: dict[str, MoeShape] = {shape.name: shape for shape in _SHAPES}
