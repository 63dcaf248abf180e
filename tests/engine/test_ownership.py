"""Each role opens its own tensors only, and every expert is the one that was routed to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from afd.config import WireType
from tests.engine.cases import SPECS, prompts
from tests.engine.pair import pair

Checkpoints = Callable[[str], Path]


def test_ranks_read_their_own_experts_and_nothing_else(checkpoint: Checkpoints) -> None:
    path = checkpoint("qwen3")
    with pair(path, WireType.FP32, ffn_ranks=3) as workers:
        attention = workers.attention.tensors_read
        experts = [ffn.tensors_read for ffn in workers.ffns]
    stored = set(load_file(path / "model.safetensors"))
    assert not any(".experts." in name for name in attention)
    assert all(".experts." in name for names in experts for name in names)
    assert sum(len(names) for names in experts) == len(frozenset().union(*experts))
    assert attention.union(*experts) == stored


def test_swapping_two_experts_changes_the_logits(checkpoint: Checkpoints, tmp_path: Path) -> None:
    path = checkpoint("qwen3")
    swapped = shutil.copytree(path, tmp_path / "swapped")
    tensors = load_file(path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    for layer in range(config["num_hidden_layers"]):
        for part in ("gate_proj", "up_proj", "down_proj"):
            a, b = (f"model.layers.{layer}.mlp.experts.{e}.{part}.weight" for e in (0, 1))
            assert not np.array_equal(tensors[a], tensors[b])
            tensors[a], tensors[b] = tensors[b], tensors[a]
    save_file(tensors, swapped / "model.safetensors", {"format": "pt"})
    prompt = prompts(3, SPECS["qwen3"].vocab, seed=6)[1]
    logits = []
    for folder in (path, swapped):
        with pair(folder, WireType.FP32) as workers:
            logits.append(workers.logits(prompt))
    assert np.abs(logits[0] - logits[1]).max() > 0.01 * logits[0].std()
