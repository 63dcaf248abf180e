"""The prefix cache saves prompt tokens and changes no answer, on real workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afd import LLM, SamplingParams
from afd.errors import RequestError
from tests.engine.cases import SPECS, prompts
from tests.engine.test_tokens import EXACT

SHARED_TOKENS = 45
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


def _conversations(vocab: int) -> list[list[int]]:
    """One system prompt, eight questions; some shorter than a page, some longer."""
    system = prompts(2, vocab, longest=SHARED_TOKENS, seed=9)[1]
    return [system + question for question in prompts(8, vocab, longest=20, seed=10)]


def _answers(llm: LLM, vocab: int) -> list[list[int]]:
    """Two rounds: the second goes on from the first, as a chat does."""
    asked = _conversations(vocab)
    first = [output.token_ids for output in llm.generate(asked, GREEDY)]
    again = [
        question + answer + [question[-1]] for question, answer in zip(asked, first, strict=True)
    ]
    return first + [output.token_ids for output in llm.generate(again, GREEDY)]


@pytest.mark.parametrize(("name", "m", "n"), [("qwen3", 2, 1), ("mixtral", 1, 0)])
def test_shared_prefixes_are_not_computed_again_and_change_no_token(
    checkpoint: Callable[[str], Path], name: str, m: int, n: int
) -> None:
    options: dict[str, Any] = EXACT | {"m": m, "n": n, "page_size": 8, "kv_tokens": 4096}
    vocab = SPECS[name].vocab
    with LLM(checkpoint(name), **options) as llm:
        cached = _answers(llm, vocab)
        # Of the second round almost everything is known.
        assert llm.stats()["cache_hit_rate"] > 0.4
    with LLM(checkpoint(name), **options, disable_radix_cache=True) as llm:
        assert _answers(llm, vocab) == cached
        assert llm.stats()["cache_hit_rate"] == 0


def test_a_pool_too_small_for_the_cache_evicts_and_changes_no_token(
    checkpoint: Callable[[str], Path],
) -> None:
    options: dict[str, Any] = EXACT | {"page_size": 8}
    vocab = SPECS["mixtral"].vocab
    with LLM(checkpoint("mixtral"), **options, kv_tokens=4096) as llm:
        roomy = _answers(llm, vocab)
    with LLM(checkpoint("mixtral"), **options, kv_tokens=256) as llm:
        assert _answers(llm, vocab) == roomy


def test_a_full_queue_and_a_priority_that_is_not_enabled_are_refused(
    checkpoint: Callable[[str], Path],
) -> None:
    options: dict[str, Any] = EXACT | {"max_running_requests": 1, "max_queued_requests": 2}
    many = [[3, 4, 5]] * 40
    with LLM(checkpoint("mixtral"), **options) as llm:
        with pytest.raises(RequestError, match="--max-queued-requests is 2"):
            llm.generate(many, GREEDY)
        with pytest.raises(RequestError, match="--enable-priority-scheduling"):
            llm.generate([many[0]], GREEDY, priority=3)
        assert len(llm.generate([many[0]], GREEDY)[0].token_ids) == GREEDY.max_new_tokens
