"""Greedy text by Transformers in float32: the engine's independent reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

# Below this gap of the two best logits, float32 noise may pick either.
GAP = 1e-4


@dataclass(frozen=True)
class Answer:
    """``gaps[i]``: how far the best logit was ahead when ``ids[i]`` was chosen."""

    ids: list[int]
    gaps: list[float]


@cache
def load(path: Path) -> PreTrainedModel:
    """The checkpoint in float32; experts run eagerly, since grouped_mm refuses odd widths."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, experts_implementation="eager", attn_implementation="eager"
    ).eval()


@cache
def greedy(path: Path, prompt: tuple[int, ...], new_tokens: int) -> Answer:
    """What ``generate(do_sample=False)`` gives, with the gap at every token."""
    model = load(path)
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(out.logits).topk(2, dim=-1).values
    gaps = (best[:, 0] - best[:, 1]).tolist()
    return Answer(out.sequences[0, len(prompt) :].tolist(), gaps)


def first_differences(answers: list[Answer], got: list[list[int]]) -> tuple[int, list[str]]:
    """(near ties, faults): a first difference at a gap under GAP is a near tie, else a fault."""
    ties, faults = 0, []
    for index, (answer, ids) in enumerate(zip(answers, got, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(answer.ids, ids, strict=False)) if a != b), -1)
        if at < 0 and len(ids) == len(answer.ids):
            continue
        if at >= 0 and answer.gaps[at] < GAP:
            ties += 1
        else:
            faults.append(f"prompt {index}, token {at}: {ids} instead of {answer.ids}")
    return ties, faults
