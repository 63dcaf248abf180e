"""What this machine cannot hold is said before a process starts."""

from __future__ import annotations

import pytest

from afd.config import Dtype, EngineConfig, Topology
from afd.errors import ConfigError
from afd.launch.feasible import check_memory, least_weight_bytes, missing_here
from afd.models.config import ModelConfig

MODEL = ModelConfig(
    architecture="Qwen3MoeForCausalLM",
    hidden=8,
    layers=3,
    heads=2,
    kv_heads=1,
    head_dim=4,
    rotary_dim=4,
    rope_theta=1e4,
    norm_eps=1e-6,
    vocab=10,
    tie_embeddings=False,
    experts=5,
    top_k=2,
    expert_width=6,
    dense_width=7,
    moe_layers=(1, 2),
    renormalize=True,
    max_position_tokens=16,
    eos_token_ids=(),
)
# Two tables, q k v o of three layers, one dense feed-forward; then five experts of two layers.
OWN = 2 * 10 * 8 + 3 * (8 * 8 + 2 * 8 * 4 + 8 * 8) + 3 * 8 * 7
EXPERTS = 2 * 5 * 3 * 8 * 6


def _topology(m: int, n: int) -> Topology:
    return Topology(attention_nodes=m, ffn_nodes=n, workers_per_node=1)


def test_weights_are_counted_by_hand_once_for_each_worker_that_holds_them() -> None:
    assert least_weight_bytes(MODEL, _topology(3, 2), Dtype.BFLOAT16) == (2 * OWN, 2 * EXPERTS)
    assert least_weight_bytes(MODEL, _topology(3, 0), Dtype.FLOAT32) == (4 * (OWN + EXPERTS), 0)


def test_a_launch_is_refused_one_byte_below_its_weights_and_not_at_them() -> None:
    needed = 3 * 2 * OWN + 2 * EXPERTS
    check_memory(MODEL, _topology(3, 2), Dtype.BFLOAT16, needed)
    with pytest.raises(ConfigError, match=r"3 attention workers .* 1 bytes too little"):
        check_memory(MODEL, _topology(3, 2), Dtype.BFLOAT16, needed - 1)


def test_an_unknown_name_has_no_shape_to_speak_of() -> None:
    assert missing_here(EngineConfig(model="who-knows")) is None
    sentence = missing_here(EngineConfig(model="qwen3-30b-a3b", m=2, n=0))
    assert sentence is not None and "8 GPUs at 4 a node" in sentence
