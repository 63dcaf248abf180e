"""A narrow wire changes logits as much as quantising in the same places does, and no more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from afd import LLM, SamplingParams
from afd.config import WireScales, WireType
from tests.engine.cases import SPECS, prompts
from tests.engine.pair import pair
from tests.reference import load

# Largest share of the logits' own spread by which engine and quantising reference may differ: the
# rounding of a value that sits on a boundary may go either way in float32 noise.
_BOUND = 0.02


def fp8(x: torch.Tensor, size: int = 128, power_of_two: bool = False) -> torch.Tensor:
    """x after e4m3 with one float32 scale per ``size`` elements of the last axis, rounded up to a
    power of two if asked."""
    out = torch.empty_like(x)
    for first in range(0, x.shape[-1], size):
        block = x[..., first : first + size]
        scale = block.abs().amax(-1, keepdim=True) / 448.0
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        if power_of_two:
            scale = scale.log2().ceil().exp2()
        codes = (block / scale).to(torch.float8_e4m3fn)
        out[..., first : first + size] = codes.to(torch.float32) * scale
    return out


class QuantisingExperts(torch.nn.Module):
    """Transformers' fused expert weights, with the wire's rounding before and after."""

    def __init__(self, experts: Any, encode: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate_up, self.down = experts.gate_up_proj, experts.down_proj
        self._encode = encode

    def forward(
        self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        x = self._encode(hidden)
        out = torch.zeros_like(hidden)
        for token in range(len(x)):
            for slot in range(ids.shape[1]):
                expert = int(ids[token, slot])
                gate, up = (self.gate_up[expert] @ x[token]).chunk(2)
                row = self.down[expert] @ (torch.nn.functional.silu(gate) * up)
                out[token] += (row * weights[token, slot]).to(torch.bfloat16).float()
        return out


def reference_logits(
    path: Path, prompt: list[int], encode: Callable[[torch.Tensor], torch.Tensor]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    model = copy.deepcopy(load(path))
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = QuantisingExperts(layer.mlp.experts, encode)
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1].numpy()


@pytest.mark.parametrize("name", ["qwen3", "minimax"])
@pytest.mark.parametrize(
    ("wire", "scales", "encode"),
    [
        (WireType.FP8, WireScales.FP32_128, fp8),
        (WireType.FP8, WireScales.UE8M0_128, partial(fp8, power_of_two=True)),
        (WireType.FP8, WireScales.UE8M0_32, partial(fp8, size=32, power_of_two=True)),
        (WireType.BF16, WireScales.FP32_128, lambda x: x.to(torch.bfloat16).float()),
    ],
    ids=["fp8", "ue8m0-128", "ue8m0-32", "bf16"],
)
def test_logits_match_a_reference_that_quantises_in_the_same_places(
    checkpoint: Callable[[str], Path],
    name: str,
    wire: WireType,
    scales: WireScales,
    encode: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    path = checkpoint(name)
    prompt = prompts(3, SPECS[name].vocab, longest=40, seed=2)[2]
    expected = reference_logits(path, prompt, encode)
    exact = reference_logits(path, prompt, lambda x: x)
    with pair(path, wire, wire_scales=scales) as workers:
        got = workers.logits(prompt)
    spread = float(expected.std())
    assert np.abs(got - expected).max() < _BOUND * spread
    # The reference is a real one only if quantising matters at all.
    assert np.abs(exact - expected).max() > 0


def test_scales_are_the_launchs_choice_and_no_topology_changes_a_token(
    checkpoint: Callable[[str], Path],
) -> None:
    path, spec = checkpoint("qwen3"), SPECS["qwen3"]
    batch = prompts(6, spec.vocab, longest=40, seed=9)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    seen: dict[str, list[list[list[int]]]] = {}
    bytes_out: dict[str, float] = {}
    for scales, m, n in (
        ("fp32-128", 1, 1), ("ue8m0-128", 1, 1), ("ue8m0-32", 1, 1), ("ue8m0-32", 2, 3)
    ):  # fmt: skip
        with LLM(path, m=m, n=n, wire_scales=scales, dtype="float32", threads=1,
                 skip_tokenizer_init=True) as llm:  # fmt: skip
            llm.generate(batch[1], params)
            if n == 1:
                bytes_out[scales] = llm.stats()["wire_bytes_out"]
            seen.setdefault(scales, []).extend(
                [output.token_ids for output in llm.generate(batch, params)] for _ in range(2)
            )
    for runs in seen.values():
        assert runs == runs[:1] * len(runs)
    # One FFN rank pulls every row once, whatever the routes: 4, 1 and 3 bytes of scales each.
    rows = (len(batch[1]) + params.max_new_tokens - 1) * spec.layers
    assert bytes_out["fp32-128"] - bytes_out["ue8m0-128"] == 3 * rows
    assert bytes_out["fp32-128"] - bytes_out["ue8m0-32"] == rows
