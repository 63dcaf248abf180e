"""FP8 block-scaled copies: error bound, names, configuration, sharded files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from afd.checkpoint import Checkpoint
from afd.models.registry import load_model_config
from afd.tools.errors import UpcycleError
from afd.tools.folder import whole_folder
from afd.tools.fp8 import BLOCK, is_linear, quantize_block_scaled, quantize_checkpoint
from afd.tools.stages import Stages
from tests.checkpoints import CheckpointSpec, write_checkpoint


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 300),
    cols=st.integers(1, 300),
    exponent=st.one_of(st.integers(-20, 20), st.integers(-148, 120)),
    seed=st.integers(0, 2**31),
)
def test_error_is_that_of_e4m3(rows: int, cols: int, exponent: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, cols, generator=generator) * 2.0**exponent
    weight[torch.rand(rows, cols, generator=generator) < 0.2] = 0
    values, scale = quantize_block_scaled(weight)
    assert values.dtype == torch.float8_e4m3fn and values.shape == weight.shape
    assert scale.dtype == torch.float32
    assert scale.shape == (-(-rows // BLOCK), -(-cols // BLOCK))
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            window = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            exact = weight[window].double()
            back = values[window].double() * scale[r, c].double()
            # Half a unit of 3 mantissa bits, or half the subnormal step (2^-9) of the block.
            bound = torch.maximum(exact.abs() * 2.0**-4, scale[r, c].double() * 2.0**-10)
            assert ((back - exact).abs() <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("exponent", [-149, -140, -126, -118])
def test_a_block_of_next_to_nothing_stays_that(exponent: int) -> None:
    """Its scale, 1/448 of its greatest value, is below what float32 holds in full or at all."""
    weight = torch.tensor([[0.0, 1.0, -1.0, 0.5]]) * 2.0**exponent
    values, scale = quantize_block_scaled(weight)
    back = values.double() * scale.double()
    assert torch.equal(values[0, 0].float(), torch.tensor(0.0))
    assert ((back - weight.double()).abs() <= 2.0**-136).all()


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(UpcycleError, match="not finite"):
        quantize_block_scaled(torch.tensor([[1.0, float("nan")]]))


@pytest.mark.parametrize("architecture", ["qwen3_moe", "mixtral", "minimax_m2"])
def test_copy_of_a_sharded_checkpoint(tmp_path: Path, architecture: str) -> None:
    spec = CheckpointSpec(
        architecture,  # type: ignore[arg-type]
        hidden=136,
        expert_intermediate=72,
        dtype="bfloat16",
        max_shard_bytes=200_000,
    )
    source = write_checkpoint(tmp_path / "bf16", spec)
    target = tmp_path / "fp8"
    with whole_folder(target) as folder:
        quantize_checkpoint(source, folder, Stages(lines=io.StringIO()))

    config = json.loads((target / "config.json").read_text())["quantization_config"]
    assert {k: config[k] for k in config if k != "modules_to_not_convert"} == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    for files, tensors in ((source, before), (target, after)):
        for path in files.glob("*.safetensors"):
            tensors |= load_file(path)
    assert len(list(target.glob("*.safetensors"))) > 1
    assert set(after) == set(before) | {f"{n}_scale_inv" for n in before if is_linear(n)}

    # The engine's own reader gets the weights back.
    reader = Checkpoint(target, load_model_config(target).fp8_block)
    for name, tensor in before.items():
        if is_linear(name):
            assert after[name].dtype == torch.float8_e4m3fn
            read = np.asarray(reader.weight(name, tuple(tensor.shape)), np.float64)
            greatest = tensor.double().abs().max().item()
            np.testing.assert_allclose(
                read, tensor.double().numpy(), rtol=2**-4 + 1e-6, atol=greatest * 2**-18
            )
        else:
            assert torch.equal(after[name], tensor), name
    kept = [n for n in before if not is_linear(n)]
    assert any(n.endswith(".gate.weight") for n in kept) and "lm_head.weight" in kept


def test_quantising_twice_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "bf16", CheckpointSpec(dtype="bfloat16"))
    (tmp_path / "fp8").mkdir()
    (tmp_path / "again").mkdir()
    quantize_checkpoint(source, tmp_path / "fp8", Stages(lines=io.StringIO()))
    with pytest.raises(UpcycleError, match="quantised already"):
        quantize_checkpoint(tmp_path / "fp8", tmp_path / "again", Stages(lines=io.StringIO()))
