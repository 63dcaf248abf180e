"""The checkpoints and topologies that the engine's tests run."""

from __future__ import annotations

import random

from tests.checkpoints import CheckpointSpec

TOPOLOGIES = ((1, 1), (2, 1), (3, 2), (1, 3), (2, 0))
LANES = (1, 2, 4)

# Odd on purpose: head size is not hidden / heads, widths are not multiples of 16, and five or
# seven experts divide over no number of FFN ranks used here.
SPECS = {
    "qwen3": CheckpointSpec("qwen3_moe", experts=7, top_k=3, eos_token_ids=(5, 11)),
    "qwen3-dense-layers": CheckpointSpec(
        "qwen3_moe",
        layers=4,
        norm_topk_prob=False,
        mlp_only_layers=(0,),
        decoder_sparse_step=2,
        max_shard_bytes=200_000,
    ),
    "mixtral": CheckpointSpec("mixtral", tie_word_embeddings=True, seed=3),
    "minimax": CheckpointSpec("minimax_m2", rotary_dim=8, head_dim=22, experts=6, top_k=4),
}

# (spec, m, n, lanes): every spec, topology and lane count at least once.
COVERING = (
    ("qwen3", 1, 1, 1),
    ("qwen3", 3, 2, 2),
    ("qwen3-dense-layers", 2, 1, 4),
    ("qwen3-dense-layers", 2, 0, 2),
    ("mixtral", 1, 3, 2),
    ("minimax", 2, 1, 2),
    ("minimax", 2, 0, 1),
)


def prompts(count: int, vocab: int, longest: int = 70, seed: int = 0) -> list[list[int]]:
    """Random token ids; lengths from 1 to ``longest``, both ends included."""
    draw = random.Random(seed)
    lengths = [1, longest, *(draw.randint(1, longest) for _ in range(count - 2))]
    return [[draw.randrange(vocab) for _ in range(length)] for length in lengths[:count]]
