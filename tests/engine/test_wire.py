"""A narrow wire changes logits as much as quantising in the same places does, and no more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from afd.config import WireType
from tests.engine.cases import SPECS, prompts
from tests.engine.pair import pair
from tests.reference import load

_BLOCK = 128
# Largest share of the logits' own spread by which engine and quantising reference may differ: the
# rounding of a value that sits on a boundary may go either way in float32 noise.
_BOUND = 0.02


def fp8(x: torch.Tensor) -> torch.Tensor:
    """x after e4m3 with one float32 scale per 128 elements of the last axis."""
    out = torch.empty_like(x)
    for first in range(0, x.shape[-1], _BLOCK):
        block = x[..., first : first + _BLOCK]
        scale = block.abs().amax(-1, keepdim=True) / 448.0
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        codes = (block / scale).to(torch.float8_e4m3fn)
        out[..., first : first + _BLOCK] = codes.to(torch.float32) * scale
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
    ("wire", "encode"),
    [
        (WireType.FP8, fp8),
        (WireType.BF16, lambda x: x.to(torch.bfloat16).float()),
    ],
    ids=["fp8", "bf16"],
)
def test_logits_match_a_reference_that_quantises_in_the_same_places(
    checkpoint: Callable[[str], Path],
    name: str,
    wire: WireType,
    encode: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    path = checkpoint(name)
    prompt = prompts(3, SPECS[name].vocab, longest=40, seed=2)[2]
    expected = reference_logits(path, prompt, encode)
    exact = reference_logits(path, prompt, lambda x: x)
    with pair(path, wire) as workers:
        got = workers.logits(prompt)
    spread = float(expected.std())
    assert np.abs(got - expected).max() < _BOUND * spread
    # The reference is a real one only if quantising matters at all.
    assert np.abs(exact - expected).max() > 0
