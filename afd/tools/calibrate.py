"""Text that the model writes itself, and what its layers see while they read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from afd.tools.stages import Advance

# The first position of a sequence is where attention rests by default, and each sequence has one.
_FIRST_POSITION_WEIGHT = 16.0

Visit = Callable[[int, torch.Tensor], None]


@dataclass(frozen=True)
class Calibration:
    """``tokens``: int64 [rows, length]; ``weights``: float32 [rows * length], their sum is 1."""

    tokens: torch.Tensor
    weights: torch.Tensor


def sample_text(
    model: Any,
    chat_prefix: list[int],
    *,
    rows: int,
    length: int,
    seed: int,
    advance: Advance,
) -> Calibration:
    """Samples ``rows`` texts of ``length`` tokens from a Transformers causal language model.

    Half of the rows begin with ``chat_prefix``, so that the model writes both sides of a
    conversation; the others begin with a random token. ``advance`` is called once a token.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = torch.randint(0, model.config.vocab_size, (rows, 1))
        chat_rows = rows // 2 if chat_prefix else 0
        first[:chat_rows] = chat_prefix[0] if chat_prefix else 0
        steer = _Steer(chat_prefix, chat_rows, advance)
        tokens = model.generate(
            first,
            attention_mask=torch.ones_like(first),
            max_new_tokens=length - 1,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            logits_processor=[steer],
        )
    weights = torch.ones(tokens.shape)
    weights[:, 0] = _FIRST_POSITION_WEIGHT
    return Calibration(tokens, (weights / weights.sum()).flatten())


class _Steer:
    """A logits processor that spells the prefix out in the first rows, and counts steps."""

    def __init__(self, prefix: list[int], rows: int, advance: Advance) -> None:
        self._prefix = prefix
        self._rows = rows
        self._advance = advance

    def __call__(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._advance()
        position = tokens.shape[1]
        if position < len(self._prefix) and self._rows:
            scores[: self._rows] = -torch.inf
            scores[: self._rows, self._prefix[position]] = 0.0
        return scores


def watch_layers(model: Any, tokens: torch.Tensor, attention: Visit, ffn: Visit) -> None:
    """Runs a Llama over ``tokens`` and shows what each layer's two blocks read.

    Each visitor gets the layer's index and the normalised input, float32 [rows * length, hidden].
    """
    handles = []
    for index, layer in enumerate(model.model.layers):
        for norm, visit in (
            (layer.input_layernorm, attention),
            (layer.post_attention_layernorm, ffn),
        ):
            handles.append(norm.register_forward_hook(_hook(index, visit)))
    try:
        with torch.no_grad():
            model.model(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()


def _hook(index: int, visit: Visit) -> Callable[[Any, Any, torch.Tensor], None]:
    def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        visit(index, output.flatten(0, -2))

    return hook


def constant_functional(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The vector a with a . x as close to 1 as it gets for the rows x of ``inputs``.

    Layer-normalised activations lie near a hyperplane (their mean is far from zero), so there is
    one that is constant to a few percent. It stands in for the bias that these models lack.

    ``inputs``: float32 [tokens, hidden]; ``weights``: float32 [tokens], sum 1. Returns [hidden].
    """
    weighted = inputs * weights[:, None]
    gram = (weighted.T @ inputs).double()
    # Without a penalty, directions that calibration hardly visits would get large coefficients.
    gram.diagonal().add_(1e-3 * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, weighted.sum(0).double()).float()
    return solution / (weighted @ solution).sum()
