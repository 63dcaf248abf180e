"""However a checkpoint is stored, its tokens are those of the values it stores."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from afd.config import Dtype, WireType
from afd.errors import CheckpointError, LaunchError
from afd.llm import LLM
from afd.tools.fp8 import BLOCK, quantize_checkpoint
from afd.tools.stages import Stages
from tests.checkpoints import Architecture, CheckpointSpec, write_checkpoint
from tests.engine.cases import prompts
from tests.engine.pair import pair
from tests.engine.test_tokens import EXACT, compare
from tests.reference import load


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


def test_experts_stay_fp8_where_the_checkpoint_has_them_so(tmp_path: Path) -> None:
    spec = CheckpointSpec("qwen3_moe", hidden=264, expert_intermediate=144, seed=10)
    plain = write_checkpoint(tmp_path / "plain", spec)
    quantised = tmp_path / "fp8"
    quantised.mkdir()
    quantize_checkpoint(plain, quantised, Stages(lines=io.StringIO()))
    reference = dequantized(quantised, tmp_path / "reference")
    prompt = prompts(3, spec.vocab, seed=11)[1]
    with torch.no_grad():
        expected = load(reference)(torch.tensor([prompt])).logits[0, -1].numpy()
    size, error = {}, {}
    for folder in (quantised, reference):
        with pair(folder, WireType.FP32, dtype=Dtype.BFLOAT16, ffn_ranks=2) as workers:
            size[folder] = sum(ffn.expert_bytes for ffn in workers.ffns)
            error[folder] = np.abs(workers.logits(prompt) - expected).max()
    assert size[quantised] < 0.52 * size[reference]
    # Both round the attention's weights; only the second rounds the experts' too.
    assert 0 < error[quantised] < 1.5 * error[reference]
    assert error[quantised] < 0.25 * expected.std()


def test_a_mixture_of_fp8_and_other_experts_is_refused(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", CheckpointSpec(seed=12))
    (tmp_path / "fp8").mkdir()
    quantize_checkpoint(plain, tmp_path / "fp8", Stages(lines=io.StringIO()))
    file = tmp_path / "fp8" / "model.safetensors"
    tensors = load_file(file)
    odd = next(name for name in tensors if name.endswith("experts.3.up_proj.weight"))
    tensors[odd] = tensors[odd].float()
    save_file(tensors, file)
    with (
        pytest.raises(CheckpointError, match="where the checkpoint's other experts are FP8"),
        pair(tmp_path / "fp8", WireType.FP32, dtype=Dtype.BFLOAT16),
    ):
        pass


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
