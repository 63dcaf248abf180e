"""A dense model becomes a mixture-of-experts checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from afd.tools import calibrate, fp8, qk_norm
from afd.tools.dense_model import DenseModel, chat_prefix, write_generation_config
from afd.tools.experts import ExpertPlan, cut, plan_experts
from afd.tools.folder import require_space
from afd.tools.qk_norm import HeadLayout, QkNormKind
from afd.tools.recipe import Recipe
from afd.tools.router import router_rows, selection_bias
from afd.tools.shapes import SHAPES, MoeShape
from afd.tools.stages import Stages


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Runs torch on this many threads and puts the caller's number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def convert(dense: DenseModel, recipe: Recipe, target: Path, stages: Stages) -> None:
    """Fills the folder ``target`` with a published-format checkpoint made from ``dense``.

    Raises UpcycleError for experts and top-k that do not fit, before anything slow.
    """
    shape = SHAPES[recipe.shape]
    plan = plan_experts(recipe.experts, recipe.top_k, dense.shape.ffn)
    layout = qk_norm.head_layout(dense.shape, shape.qk_norm)
    dense.save_tokenizer(target)
    write_generation_config(target, dense.shape)
    layers = _Layers(dense, shape, plan, layout, recipe.seed)
    model = dense.runnable()
    with stages.stage("Sampling calibration text", recipe.length - 1) as advance:
        text = calibrate.sample_text(
            model,
            _prefix_ids(target),
            rows=recipe.rows,
            length=recipe.length,
            seed=recipe.seed,
            advance=advance,
        )
    with stages.stage("Converting layers", dense.shape.layers) as advance:

        def ffn(index: int, inputs: torch.Tensor) -> None:
            layers.add_experts(index, inputs, text.weights)
            advance()

        def attention(index: int, inputs: torch.Tensor) -> None:
            layers.add_attention(index, inputs, text.weights)

        calibrate.watch_layers(model, text.tokens, attention, ffn)
    config = shape.config(dense.shape, layout, plan)
    tensors = layers.tensors
    if recipe.fp8:
        with stages.stage("Quantising to FP8 blocks"):
            tensors = fp8.quantize_tensors(tensors)
        config["quantization_config"] = fp8.quantization_config(list(tensors))
    with stages.stage("Writing the checkpoint"):
        require_space(target, sum(t.nbytes for t in tensors.values()))
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _prefix_ids(folder: Path) -> list[int]:
    prefix = chat_prefix(folder)
    if not prefix:
        return []
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return list(tokenizer(prefix, add_special_tokens=False)["input_ids"])


class _Layers:
    """Collects the new checkpoint's tensors, bfloat16, layer by layer."""

    def __init__(
        self, dense: DenseModel, shape: MoeShape, plan: ExpertPlan, layout: HeadLayout, seed: int
    ) -> None:
        self._dense = dense
        self._shape = shape
        self._plan = plan
        self._layout = layout
        self._generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        for name, weight in dense.weights.items():
            if not name.startswith("model.layers.") or name.endswith("layernorm.weight"):
                self._add(name, weight)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors[name] = tensor.to(torch.bfloat16, copy=True).contiguous()

    def add_attention(self, index: int, inputs: torch.Tensor, weights: torch.Tensor) -> None:
        """Attention of one layer, with QK-norm if the shape has it."""
        stem = f"model.layers.{index}.self_attn"
        old = {p: self._dense.weights[f"{stem}.{p}_proj.weight"] for p in "qkvo"}
        heads, kv_heads = self._dense.shape.heads, self._dense.shape.kv_heads
        kind = self._shape.qk_norm
        if kind is QkNormKind.NONE:
            for part, weight in old.items():
                self._add(f"{stem}.{part}_proj.weight", weight)
            return
        constant = calibrate.constant_functional(inputs, weights)
        for part, count in (("q", heads), ("k", kv_heads)):
            wide, norm = qk_norm.widen_query_or_key(
                old[part], count, self._layout, kind, inputs, constant
            )
            self._add(f"{stem}.{part}_proj.weight", wide)
            self._add(f"{stem}.{part}_norm.weight", norm)
        value = qk_norm.widen_value(old["v"], kv_heads, self._layout)
        self._add(f"{stem}.v_proj.weight", value)
        output = qk_norm.widen_output(old["o"], heads, self._layout)
        self._add(f"{stem}.o_proj.weight", output)

    def add_experts(self, index: int, inputs: torch.Tensor, weights: torch.Tensor) -> None:
        """Router and experts of one layer, in an order of the layer's own.

        The order is shuffled so that the copies of a slice land on different ranks.
        """
        constant = calibrate.constant_functional(inputs, weights)
        rows = router_rows(self._plan, inputs, constant, self._generator)
        order = torch.randperm(self._plan.experts, generator=self._generator)
        self._add(self._shape.router(index), rows[order])
        if self._shape.selection_bias:
            bias = selection_bias(self._plan, self._generator)
            self.tensors[self._shape.router_bias(index)] = bias[order]
        stem = f"model.layers.{index}.mlp"
        gate, up, down = (
            self._dense.weights[f"{stem}.{p}_proj.weight"] for p in ("gate", "up", "down")
        )
        for expert, logical in enumerate(order.tolist()):
            parts = cut(gate, up, down, self._plan.top_k, self._plan.slice_of[logical])
            for name, part in zip(self._shape.expert(index, expert), parts, strict=True):
                self._add(name, part)
