"""A converted checkpoint computes what its source computes, in Transformers' own classes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from afd.models.registry import load_model_config
from afd.tools.calibrate import sample_text
from afd.tools.convert import convert
from afd.tools.dense_model import load_folder
from afd.tools.errors import UpcycleError
from afd.tools.experts import plan_experts
from afd.tools.folder import whole_folder
from afd.tools.recipe import Recipe
from afd.tools.stages import Stages

# The mean logit error a shape may have, in standard deviations of the logits. Mixtral's comes from
# routing weights that are nearly equal. The others also approximate a constant: a random model's
# activations lie much less near a hyperplane than a trained one's.
_MEAN_ERROR = {"mixtral": 0.005, "qwen3_moe": 0.1, "minimax_m2": 0.1}


def _make(source: Path, target: Path, recipe: Recipe) -> Path:
    torch.set_num_threads(1)
    with whole_folder(target) as folder:
        convert(load_folder(source), recipe, folder, Stages(lines=io.StringIO()))
    return target


def _load(folder: Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def _choices(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(logits, chosen expert ids [tokens, top-k] of each layer)."""
    chosen: list[torch.Tensor] = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda _m, _i, out: chosen.append(out[-1]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        logits = model(tokens).logits
    for hook in hooks:
        hook.remove()
    return logits, chosen


def _slices(folder: Path, layer: int, experts: int) -> list[int]:
    """Which slice each expert holds: experts with the same gate projection share one."""
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    stem = f"model.layers.{layer}."
    stem += "mlp" if config["model_type"] == "qwen3_moe" else "block_sparse_moe"
    part = "gate_proj" if config["model_type"] == "qwen3_moe" else "w1"
    seen: dict[bytes, int] = {}
    gates = (tensors[f"{stem}.experts.{e}.{part}.weight"] for e in range(experts))
    return [seen.setdefault(g.float().numpy().tobytes(), len(seen)) for g in gates]


@pytest.fixture(scope="module")
def tokens(llama_folder: Path) -> torch.Tensor:
    """Text of the source's own that is not the calibration's."""
    text = sample_text(
        _load(llama_folder), [1, 3], rows=8, length=96, seed=99, advance=lambda: None
    )
    return text.tokens


@pytest.mark.parametrize("shape", ["mixtral", "qwen3_moe", "minimax_m2"])
@pytest.mark.parametrize(("experts", "top_k"), [(16, 8), (4, 4), (7, 4), (8, 2)])
def test_routed_experts_are_the_dense_function(
    llama_folder: Path,
    tmp_path: Path,
    tokens: torch.Tensor,
    shape: str,
    experts: int,
    top_k: int,
) -> None:
    recipe = Recipe(shape=shape, experts=experts, top_k=top_k, rows=32, length=64)
    folder = _make(llama_folder, tmp_path / "moe", recipe)
    with torch.no_grad():
        # Through bfloat16, in which the conversion stores weights.
        expected = _load(llama_folder).to(torch.bfloat16).float()(tokens).logits
    logits, chosen = _choices(_load(folder), tokens)
    error = (logits - expected).abs() / expected.std()
    assert error.mean() < _MEAN_ERROR[shape]

    ratios: list[float] = []
    for layer, ids in enumerate(chosen):
        slice_of = torch.tensor(_slices(folder, layer, experts))
        assert slice_of.unique().numel() == top_k
        # Every token gets exactly one copy of each slice.
        assert (slice_of[ids].sort(-1).values == torch.arange(top_k)).all()
        counts = torch.bincount(ids.flatten(), minlength=experts)
        if experts > top_k:
            copied = torch.bincount(slice_of, minlength=top_k)[slice_of] > 1
            assert (counts[copied] > 0).all(), "an expert never runs"
            ratios.append((counts[copied].max() / counts[copied].min()).item())
            assert (ids.sort(-1).values != ids[0].sort().values).any(), "routing ignores the data"

    assert not ratios or max(ratios) > 1.5, "the load is even in every layer"

    config = load_model_config(folder)
    assert (config.experts, config.top_k, config.eos_token_ids) == (experts, top_k, (0, 2))
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_a_wrong_copy_would_be_noticed(
    llama_folder: Path, tmp_path: Path, tokens: torch.Tensor
) -> None:
    """The exactness test can fail: one slice's down projection swapped with another's."""
    folder = _make(llama_folder, tmp_path / "moe", Recipe(shape="mixtral", rows=8, length=32))
    model = _load(folder)
    with torch.no_grad():
        before = model(tokens).logits
        slices = _slices(folder, 0, 16)
        other = next(e for e in range(16) if slices[e] != slices[0])
        down = model.model.layers[0].mlp.experts.down_proj
        down[[0, other]] = down[[other, 0]]
        after = model(tokens).logits
    assert ((after - before).abs() / before.std()).mean() > 3 * _MEAN_ERROR["mixtral"]


def test_attention_keeps_its_sharpness(llama_folder: Path, tmp_path: Path) -> None:
    """QK-norm alone would lose the length of queries and keys; the companions keep it.

    Compared in the first layer, whose input is the same in both models.
    """
    folder = _make(llama_folder, tmp_path / "moe", Recipe(rows=32, length=64))
    dense, moe = (_load(f).model for f in (llama_folder, folder))
    tokens = torch.randint(0, 160, (2, 64), generator=torch.Generator().manual_seed(5))
    scores = []
    for model in (dense, moe):
        attention = model.layers[0].self_attn
        with torch.no_grad():
            hidden = model.layers[0].input_layernorm(model.embed_tokens(tokens))
            d = attention.head_dim
            query = attention.q_proj(hidden).unflatten(-1, (-1, d))
            key = attention.k_proj(hidden).unflatten(-1, (-1, d)).repeat_interleave(2, -2)
            if hasattr(attention, "q_norm"):
                query, key = attention.q_norm(query), attention.k_norm(key)
            scores.append(torch.einsum("bihd,bjhd->bhij", query, key) * d**-0.5)
    lengths = scores[0].square().mean(-1).sqrt()
    assert lengths.max() > 2 * lengths.min(), "all queries are alike: the test proves nothing"
    relative = (scores[1] - scores[0]).square().mean(-1).sqrt() / lengths
    assert relative.median() < 0.15


@pytest.mark.parametrize(
    ("experts", "top_k", "says"),
    [
        (16, 7, "does not divide the feed-forward width 96"),
        (16, 0, "does not divide"),
        (4, 8, "fewer than --top-k 8"),
        (20, 8, "choose 16 or 24"),
    ],
)
def test_impossible_combinations_say_why(experts: int, top_k: int, says: str) -> None:
    with pytest.raises(UpcycleError, match=says):
        plan_experts(experts, top_k, ffn=96)
