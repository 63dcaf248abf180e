"""However a checkpoint is stored, its tokens are those of the values it stores."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from afd.errors import LaunchError
from afd.llm import LLM
from afd.tools.fp8 import BLOCK, quantize_checkpoint
from afd.tools.stages import Stages
from tests.checkpoints import Architecture, CheckpointSpec, write_checkpoint
from tests.engine.test_tokens import EXACT, compare


@pytest.mark.parametrize(
    ("architecture", "dtype", "shard_bytes"),
    [("qwen3_moe", "float16", 150_000), ("mixtral", "bfloat16", None)],
)
def test_half_precision_checkpoints_give_transformers_tokens(
    tmp_path: Path, architecture: Architecture, dtype: str, shard_bytes: int | None
) -> None:
    spec = CheckpointSpec(
        architecture,
        dtype=dtype,  # type: ignore[arg-type]
        max_shard_bytes=shard_bytes,
        seed=8,
    )
    path = write_checkpoint(tmp_path / "checkpoint", spec)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (shard_bytes is not None)
    compare(path, spec.vocab, m=2, n=1)


def dequantized(source: Path, target: Path) -> Path:
    """A float32 copy of an FP8 checkpoint: every element times the scale of its block."""
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for path in source.glob("*.safetensors"):
        tensors |= load_file(path)
    for name in [n for n in tensors if n.endswith("_scale_inv")]:
        scale = tensors.pop(name)
        stored = tensors[name.removesuffix("_scale_inv")]
        values = stored.float()
        for r in range(scale.shape[0]):
            for c in range(scale.shape[1]):
                values[r * BLOCK : (r + 1) * BLOCK, c * BLOCK : (c + 1) * BLOCK] *= scale[r, c]
        tensors[name.removesuffix("_scale_inv")] = values
    save_file({n: t.float() for n, t in tensors.items()}, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    return target


@pytest.mark.parametrize("architecture", ["qwen3_moe", "minimax_m2"])
def test_fp8_checkpoints_give_the_tokens_of_their_dequantised_weights(
    tmp_path: Path, architecture: Architecture
) -> None:
    spec = CheckpointSpec(architecture, hidden=136, expert_intermediate=72, seed=9)
    plain = write_checkpoint(tmp_path / "plain", spec)
    quantised = tmp_path / "fp8"
    quantised.mkdir()
    quantize_checkpoint(plain, quantised, Stages(lines=io.StringIO()))
    reference = dequantized(quantised, tmp_path / "reference")
    compare(quantised, spec.vocab, reference=reference, m=1, n=2)


def test_a_checkpoint_cut_short_is_one_sentence(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", CheckpointSpec())
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LaunchError, match="cut short"):
        LLM(path, **EXACT)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", CheckpointSpec())
    file = path / "model.safetensors"
    tensors = load_file(file)
    gone = next(name for name in tensors if "layers.1.self_attn.k_proj" in name)
    del tensors[gone]
    save_file(tensors, file)
    with pytest.raises(LaunchError, match=gone):
        LLM(path, **EXACT)
