"""config.json is read strictly: what the engine does not serve is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afd.errors import CheckpointError, UnsupportedModelError
from afd.models.registry import load_model_config

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "rope_theta": 1e6,
    "eos_token_id": 3,
}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MIXTRAL: dict[str, Any] = {
    **{k: v for k, v in QWEN3.items() if k not in ("num_experts", "moe_intermediate_size")},
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
}


def read(folder: Path, values: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(values))
    return load_model_config(folder)


def test_the_fields_of_published_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 3]}')
    config = read(
        tmp_path,
        QWEN3
        | {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "sliding_window": None,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "router_aux_loss_coef": 0.001,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
    )
    assert config.moe_layers == (1,)
    assert config.eos_token_ids == (3, 7)
    assert config.renormalize and config.fp8_block == (128, 128)
    assert (config.q_width, config.kv_width, config.rotary_dim) == (128, 32, 16)


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (QWEN3, {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        (QWEN3, {"attention_bias": True}, "attention_bias"),
        (QWEN3, {"use_sliding_window": True, "sliding_window": 16}, "use_sliding_window"),
        (MIXTRAL, {"sliding_window": 4096}, "sliding_window"),
        (QWEN3, {"hidden_act": "gelu"}, "hidden_act"),
        (QWEN3, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        (QWEN3, {"rope_scaling": {"factor": 4.0}}, "factor"),
        (QWEN3, {"rope_parameters": {"rope_type": "linear", "factor": 2}}, "rope type 'linear'"),
        (QWEN3, {"rope_theta": None}, "rope_theta is missing"),
        (QWEN3, {"rotary_dim": 7}, "rotary_dim 7"),
        (QWEN3, {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        (QWEN3, {"n_shared_experts": 1}, "n_shared_experts"),
        (QWEN3, {"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
        (QWEN3, {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        (QWEN3, {"num_key_value_heads": 3}, "num_key_value_heads"),
        (QWEN3, {"hidden_size": "64"}, "hidden_size"),
        (QWEN3, {"hidden_size": 0}, "hidden_size"),
        (QWEN3, {"quantization_config": "x"}, "quantization_config must be an object"),
        (QWEN3, {"quantization_config": FP8 | {"activation_scheme": "static"}}, '"static"'),
        (QWEN3, {"quantization_config": FP8 | {"foo": 1}}, "quantization_config.foo"),
        (QWEN3, {"quantization_config": FP8 | {"weight_block_size": [0, -1]}}, "[0, -1]"),
        (QWEN3, {"rope_parameters": [1]}, "rope_parameters must be an object"),
        (QWEN3, {"rope_theta": "x"}, "rope_theta must be a positive number"),
        (QWEN3, {"mlp_only_layers": 3}, "mlp_only_layers must be a list"),
        (QWEN3, {"eos_token_id": "x"}, "eos_token_id"),
        (QWEN3, {"rotary_dim": 8}, "rotates whole heads"),
        (MIXTRAL, {"partial_rotary_factor": 0.5}, "rotates whole heads"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    read(tmp_path, base)
    with pytest.raises(UnsupportedModelError) as refused:
        read(tmp_path, base | changes)
    assert named in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json"):
        load_model_config(tmp_path)
