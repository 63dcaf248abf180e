"""Small random checkpoints of odd shapes, written by Transformers, for tests of the whole engine.

Their outputs are not degenerate: every expert differs, attention looks around, greedy text does
not repeat one token, and the two best logits of a step are far apart compared with fp32 noise.
The same spec gives the same bytes on every run. There is no tokenizer: prompts are token ids.

Transformers runs experts through torch's grouped_mm, which wants rows of a multiple of 16 bytes.
For a hidden or expert size that is not, load the reference with `experts_implementation="eager"`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

Architecture = Literal["qwen3_moe", "mixtral", "minimax_m2"]
ARCHITECTURES: tuple[Architecture, ...] = ("qwen3_moe", "mixtral", "minimax_m2")


@dataclass(frozen=True)
class CheckpointSpec:
    """What to write. The defaults are already odd: head_dim != hidden / heads, 5 experts.

    `rotary_dim` counts the rotated dimensions of a head and is for minimax_m2 alone;
    `norm_topk_prob`, `mlp_only_layers` and `decoder_sparse_step` are for qwen3_moe alone.
    """

    architecture: Architecture = "qwen3_moe"
    vocab: int = 199
    hidden: int = 72
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 20
    rotary_dim: int | None = None
    experts: int = 5
    top_k: int = 2
    expert_intermediate: int = 40
    dense_intermediate: int = 88
    norm_topk_prob: bool = True
    mlp_only_layers: tuple[int, ...] = ()
    decoder_sparse_step: int = 1
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_positions: int = 512
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_shard_bytes: int | None = None
    seed: int = 0


def write_checkpoint(directory: Path | str, spec: CheckpointSpec | None = None) -> Path:
    """Writes the checkpoint `spec` describes into `directory`, which is made; returns its path."""
    spec = spec or CheckpointSpec()
    model = random_model(spec).to(getattr(torch, spec.dtype))
    shard = "50GB" if spec.max_shard_bytes is None else spec.max_shard_bytes
    model.save_pretrained(directory, max_shard_size=shard)
    return Path(directory)


def random_model(spec: CheckpointSpec) -> PreTrainedModel:
    """The model `spec` describes, in float32, before it is rounded to the checkpoint's dtype."""
    _refuse_misplaced_fields(spec)
    config, model_class = _CONFIGS[spec.architecture](spec)
    model = model_class(config).to(torch.float32).eval()
    generator = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for name, parameter in sorted(model.state_dict().items()):
            if name != "lm_head.weight" or not spec.tie_word_embeddings:
                parameter.copy_(_values(name, parameter, spec, generator))
    return model


def _values(
    name: str, like: torch.Tensor, spec: CheckpointSpec, generator: torch.Generator
) -> torch.Tensor:
    normal = torch.randn(like.shape, generator=generator)
    fan_in = math.sqrt(like.shape[-1])
    if name.endswith("e_score_correction_bias"):
        return 0.3 * normal
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 1.3 + 0.2 * normal
    if name.endswith("norm.weight"):
        return 1.0 + 0.2 * normal
    if name == "model.embed_tokens.weight":
        # A tied model with loud embeddings would only ever predict the token it just read.
        return normal * (0.3 if spec.tie_word_embeddings else 1.0)
    if name == "lm_head.weight":
        return normal * (3.0 / fan_in)
    if name.endswith("mlp.gate.weight"):
        return normal * (1.5 / fan_in)
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return normal * (1.4 / fan_in)
    return normal * (1.6 / fan_in)


def _refuse_misplaced_fields(spec: CheckpointSpec) -> None:
    if spec.rotary_dim is not None and spec.architecture != "minimax_m2":
        raise ValueError(f"rotary_dim is for minimax_m2, not for {spec.architecture}")
    dense = spec.mlp_only_layers or spec.decoder_sparse_step != 1 or not spec.norm_topk_prob
    if dense and spec.architecture != "qwen3_moe":
        raise ValueError(
            "mlp_only_layers, decoder_sparse_step and norm_topk_prob are for qwen3_moe, "
            f"not for {spec.architecture}"
        )


def _common(spec: CheckpointSpec) -> dict[str, Any]:
    eos = list(spec.eos_token_ids)
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_experts_per_tok": spec.top_k,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": spec.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "bos_token_id": None,
        "pad_token_id": None,
        "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
    }


def _qwen3_moe(spec: CheckpointSpec) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    config = Qwen3MoeConfig(
        **_common(spec),
        num_experts=spec.experts,
        intermediate_size=spec.dense_intermediate,
        moe_intermediate_size=spec.expert_intermediate,
        norm_topk_prob=spec.norm_topk_prob,
        mlp_only_layers=list(spec.mlp_only_layers),
        decoder_sparse_step=spec.decoder_sparse_step,
    )
    return config, Qwen3MoeForCausalLM


def _mixtral(spec: CheckpointSpec) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    config = MixtralConfig(
        **_common(spec),
        num_local_experts=spec.experts,
        intermediate_size=spec.expert_intermediate,
    )
    return config, MixtralForCausalLM


def _minimax_m2(spec: CheckpointSpec) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    fields = _common(spec)
    if spec.rotary_dim is not None:
        fields["rotary_dim"] = spec.rotary_dim
        fields["rope_parameters"]["partial_rotary_factor"] = spec.rotary_dim / spec.head_dim
    config = MiniMaxM2Config(
        **fields,
        num_local_experts=spec.experts,
        intermediate_size=spec.expert_intermediate,
    )
    return config, MiniMaxM2ForCausalLM


_CONFIGS = {"qwen3_moe": _qwen3_moe, "mixtral": _mixtral, "minimax_m2": _minimax_m2}
