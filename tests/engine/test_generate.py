"""What a caller of LLM sees: stop strings, end tokens, streaming, seeds, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from afd import LLM, SamplingParams
from afd.errors import CheckpointError, RequestError
from tests.checkpoints import CheckpointSpec, write_checkpoint
from tests.tokenizers import write_tokenizer

NEW_TOKENS = 40
PROMPT = "w10 w20 w30"


def folder_with(path: Path, eos: tuple[int, ...] = ()) -> Path:
    write_checkpoint(path, CheckpointSpec(eos_token_ids=eos))
    write_tokenizer(path, CheckpointSpec().vocab)
    return path


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = folder_with(tmp_path_factory.mktemp("words") / "model")
    with LLM(folder, wire="fp32", dtype="float32", kv_tokens=4096, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def words(llm: LLM) -> list[str]:
    """The greedy answer, word by word."""
    text = llm.generate(PROMPT, SamplingParams(max_new_tokens=NEW_TOKENS))[0].text
    return text.split()


def test_a_stop_string_ends_the_answer_before_it(llm: LLM, words: list[str]) -> None:
    # Over two tokens, so that no single token tells; its first half alone must be given out.
    at = next(
        i
        for i in range(5, 30)
        if (words[i], words[i + 1]) not in itertools.pairwise(words[: i + 1])
    )
    stop = f"{words[at]} {words[at + 1]}"
    params = SamplingParams(max_new_tokens=NEW_TOKENS, stop=("never said", stop))
    steps = list(llm.stream(PROMPT, params))
    last = steps[-1]
    assert last.finish_reason == "stop"
    assert last.text.split() == words[:at]
    assert len(last.token_ids) == at + 2
    # What was streamed is never taken back.
    for before, after in itertools.pairwise(steps):
        assert after.text.startswith(before.text)
    assert all(stop not in step.text for step in steps)
    # The slot is free again: the whole answer still comes.
    assert llm.generate(PROMPT, SamplingParams(max_new_tokens=NEW_TOKENS))[0].text.split() == words


def test_every_end_token_of_the_checkpoint_ends_an_answer(
    tmp_path: Path, llm: LLM, words: list[str]
) -> None:
    ids = llm.generate(PROMPT, SamplingParams(max_new_tokens=NEW_TOKENS))[0].token_ids
    ends = (ids[12], next(i for i in range(5, 190) if i not in ids))
    folder = folder_with(tmp_path / "model", eos=ends)
    first = ids.index(ids[12])
    with LLM(folder, wire="fp32", dtype="float32", kv_tokens=1024, threads=1) as ending:
        output = ending.generate(PROMPT, SamplingParams(max_new_tokens=NEW_TOKENS))[0]
        assert output.token_ids == ids[: first + 1] and output.finish_reason == "stop"
        on = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
        output = ending.generate(PROMPT, on)[0]
        assert output.token_ids == ids and output.finish_reason == "length"


def test_a_stream_grows_by_one_token_and_ends_with_the_whole_answer(
    llm: LLM, words: list[str]
) -> None:
    seen: dict[int, int] = {0: 0, 1: 0}
    for output in llm.stream([PROMPT, "w7"], SamplingParams(max_new_tokens=9)):
        seen[output.index] += 1
        assert len(output.token_ids) == seen[output.index]
        assert (output.finish_reason is None) == (seen[output.index] < 9)
    assert seen == {0: 9, 1: 9}


def test_a_seed_gives_the_same_tokens_whoever_else_runs(llm: LLM) -> None:
    hot = SamplingParams(max_new_tokens=20, temperature=1.5, top_p=0.95, top_k=50, seed=7)
    alone = llm.generate(PROMPT, hot)[0].token_ids
    crowd = [SamplingParams(max_new_tokens=20, temperature=2.0) for _ in range(7)]
    among = llm.generate([PROMPT] * 8, [*crowd[:3], hot, *crowd[3:]])[3].token_ids
    assert among == alone
    other = SamplingParams(max_new_tokens=20, temperature=1.5, seed=8)
    assert llm.generate(PROMPT, other)[0].token_ids != alone
    free = SamplingParams(max_new_tokens=20, temperature=1.5)
    draws = {tuple(llm.generate(PROMPT, free)[0].token_ids) for _ in range(3)}
    assert len(draws) == 3


def test_top_k_one_is_greedy_at_any_temperature(llm: LLM, words: list[str]) -> None:
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=5.0, top_k=1)
    assert llm.generate(PROMPT, params)[0].text.split() == words


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([[]], "a prompt is empty"),
        ([[1, 199]], "outside the vocabulary"),
        ([[1, -1]], "outside the vocabulary"),
        ([[1] * 600], "leaves no room to answer"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_and_nothing_is_lost(
    llm: LLM, words: list[str], prompts: list[list[int]], sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        llm.generate([PROMPT, *prompts])
    assert llm.generate(PROMPT, SamplingParams(max_new_tokens=NEW_TOKENS))[0].text.split() == words


def test_two_streams_are_read_in_turn_and_a_call_inside_one_disturbs_nothing(
    llm: LLM, words: list[str]
) -> None:
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    plain = llm.generate("w7", params)[0].text
    pairs = []
    for pair in zip(llm.stream(PROMPT, params), llm.stream("w7", params), strict=True):
        pairs.append(pair)
        if len(pairs) == 5:
            assert llm.stats()["tokens"] > 0
            assert llm.generate("w7", params)[0].text == plain
    assert pairs[-1][0].text.split() == words and pairs[-1][1].text == plain
    assert [len(one.token_ids) for one, _ in pairs] == list(range(1, NEW_TOKENS + 1))


def test_a_tokenizer_path_that_is_no_folder_is_named(llm: LLM) -> None:
    with pytest.raises(CheckpointError, match="/no/such is no folder"):
        LLM(llm.config.model_path, tokenizer_path="/no/such", kv_tokens=512, threads=1)
