"""Greedy tokens equal Transformers', whatever the topology, lanes, batch or schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afd import LLM, SamplingParams
from tests.engine.cases import COVERING, LANES, SPECS, TOPOLOGIES, prompts
from tests.reference import first_differences, greedy

NEW_TOKENS = 64
EXACT: dict[str, Any] = {
    "wire": "fp32",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "threads": 1,
    "max_running_requests": 16,
}


def run(path: Path, batch: list[list[int]], **options: Any) -> list[list[int]]:
    """Token ids of greedy outputs."""
    with LLM(path, **(EXACT | options)) as llm:
        outputs = llm.generate(batch, SamplingParams(max_new_tokens=NEW_TOKENS))
    return [output.token_ids for output in outputs]


def compare(path: Path, vocab: int, reference: Path | None = None, **options: Any) -> None:
    """Twenty prompts on the engine and on Transformers, which reads ``reference`` if given."""
    batch = prompts(20, vocab)
    answers = [greedy(reference or path, tuple(prompt), NEW_TOKENS) for prompt in batch]
    ties, faults = first_differences(answers, run(path, batch, **options))
    print(f"{ties} near ties of {len(batch)} prompts")
    assert not faults, "\n".join(faults)
    assert ties <= 2


@pytest.mark.parametrize(("name", "m", "n", "lanes"), COVERING)
def test_greedy_tokens_equal_transformers(
    checkpoint: Callable[[str], Path], name: str, m: int, n: int, lanes: int
) -> None:
    compare(checkpoint(name), SPECS[name].vocab, m=m, n=n, num_lanes=lanes, page_size=4)


@pytest.mark.parametrize("name", ["qwen3", "minimax"])
def test_reduced_returns_change_no_token_and_move_fewer_bytes(
    checkpoint: Callable[[str], Path], name: str
) -> None:
    path, batch = checkpoint(name), prompts(8, SPECS[name].vocab, seed=7)
    answers = [greedy(path, tuple(prompt), NEW_TOKENS) for prompt in batch]
    back = {}
    for mode in ("slot", "reduced"):
        with LLM(path, **EXACT, m=2, n=2, return_mode=mode) as llm:
            outputs = llm.generate(batch, SamplingParams(max_new_tokens=NEW_TOKENS))
            stats = llm.stats()
        back[mode] = stats["wire_bytes_back"] / stats["wire_bytes_out"]
        tokens = [output.token_ids for output in outputs]
        ties, faults = first_differences(answers, tokens)
        assert not faults, "\n".join(faults)
        assert ties <= 1
    assert back["reduced"] < 0.75 * back["slot"]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("m", "n"), TOPOLOGIES)
@pytest.mark.parametrize("name", SPECS)
def test_greedy_tokens_equal_transformers_everywhere(
    checkpoint: Callable[[str], Path], name: str, m: int, n: int, lanes: int
) -> None:
    compare(checkpoint(name), SPECS[name].vocab, m=m, n=n, num_lanes=lanes)


def test_overlap_batch_size_and_chunking_change_no_token(
    checkpoint: Callable[[str], Path],
) -> None:
    path = checkpoint("qwen3")
    batch = prompts(32, SPECS["qwen3"].vocab, seed=4)
    together = run(path, batch, max_running_requests=32)
    assert run(path, batch, overlap=False, max_running_requests=32) == together
    assert run(path, batch, max_running_requests=1) == together
    assert run(path, batch, chunked_prefill_size=7, num_lanes=3) == together


def test_pages_running_out_retracts_and_changes_no_token(
    checkpoint: Callable[[str], Path],
) -> None:
    path = checkpoint("mixtral")
    batch = prompts(10, SPECS["mixtral"].vocab, longest=40, seed=5)
    roomy = run(path, batch)
    with LLM(path, **EXACT, kv_tokens=160, page_size=8) as llm:
        outputs = llm.generate(batch, SamplingParams(max_new_tokens=NEW_TOKENS))
        assert llm.stats()["retractions"] > 0
    assert [output.token_ids for output in outputs] == roomy
