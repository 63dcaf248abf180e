"""The Python entry point: ``LLM(model=…, m=2, n=1).generate(prompts, SamplingParams(…))``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import msgspec

from afd.config import EngineConfig
from afd.errors import ConfigError, RequestError
from afd.launch.engine import Engine
from afd.launch.resolve import ResolvedConfig, resolve
from afd.outputs import RequestOutput
from afd.sampling import SamplingParams
from afd.streams import OpenRequest, Stream, Streams
from afd.tokenizer import Conversation, TextStream, Tokenizer
from afd_sched import messages

Prompt: TypeAlias = str | Sequence[int]


def engine_config(values: dict[str, Any]) -> EngineConfig:
    """EngineConfig from plain values; raises ConfigError with the path to a bad one."""
    try:
        return msgspec.convert(values, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad configuration: {error}") from error


class LLM:
    """A running engine. Workers are plain child processes, so no ``__main__`` guard is needed.

    Keyword arguments are EngineConfig's fields. Use it as a context manager, or call ``close``.
    One thread at a time; several engines may live side by side.
    """

    def __init__(self, model: str | Path = "smollm2-moe", **options: Any) -> None:
        """Raises AfdError in one sentence; nothing is left running then."""
        self._attach(resolve(engine_config({"model": str(model), **options})))

    @classmethod
    def from_resolved(cls, config: ResolvedConfig) -> Self:
        """An engine from a configuration that was already resolved."""
        llm = cls.__new__(cls)
        llm._attach(config)
        return llm

    def _attach(self, config: ResolvedConfig) -> None:
        self.config = config
        engine = config.engine
        self._tokenizer: Tokenizer | None = None
        if not engine.skip_tokenizer_init:
            self._tokenizer = Tokenizer(Path(engine.tokenizer_path or config.model_path))
        self._engine = Engine(config)
        self._streams = Streams(self._engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises RequestError if the engine was started without one."""
        if self._tokenizer is None:
            raise RequestError("skip_tokenizer_init is set: give prompts as lists of token ids")
        return self._tokenizer

    @property
    def max_total_tokens(self) -> int:
        """Most tokens, prompt and answer together, that one request may have."""
        return self._engine.started.max_total_tokens

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Finished outputs in the order of ``prompts`` (texts or lists of token ids).

        One SamplingParams for all, or one each; likewise the priority, of which the higher goes
        first (enable_priority_scheduling). Raises RequestError before anything runs if a prompt
        cannot be served, EngineDeadError if a worker is lost.
        """
        last: dict[int, RequestOutput] = {}
        for output in self.stream(prompts, sampling_params, priority):
            last[output.index] = output
        return [last[i] for i in sorted(last)]

    def chat(
        self, conversation: Conversation, sampling_params: SamplingParams | None = None
    ) -> RequestOutput:
        """The assistant's next turn in a conversation of {"role", "content"} turns."""
        return self.generate([self.tokenizer.encode_chat(conversation)], sampling_params)[0]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] = 0,
    ) -> Iterator[RequestOutput]:
        """Outputs as they grow, one per new token; the last of each has a finish_reason.

        Leaving the iterator early aborts what is still open.
        """
        batch = _batch(prompts)
        encoded = [self._encode(prompt) for prompt in batch]
        chosen = _one_each(sampling_params, len(encoded))
        priorities = [priority] * len(encoded) if isinstance(priority, int) else list(priority)
        if len(priorities) != len(encoded):
            raise RequestError(
                f"{len(encoded)} prompts were given with {len(priorities)} priorities"
            )
        if any(params.stop for params in chosen):
            _ = self.tokenizer
        stream = Stream()
        try:
            for ids, params, level in zip(encoded, chosen, priorities, strict=True):
                text = TextStream(self._tokenizer, params.stop) if self._tokenizer else None
                request = OpenRequest(len(stream.open), len(ids), text)
                self._streams.submit(stream, ids, _wire_params(params), level, request)
            yield from self._streams.follow(stream)
        finally:
            self._streams.leave(stream)

    def _encode(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise RequestError("a prompt is empty; give at least one token")
        vocab = self.config.model.vocab
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < vocab:
                raise RequestError(f"token id {token!r} is outside the vocabulary [0, {vocab})")
        if len(ids) >= self.max_total_tokens:
            raise RequestError(
                f"a prompt of {len(ids)} tokens leaves no room to answer: a request may have "
                f"{self.max_total_tokens} tokens in all (--context-length, --kv-tokens)"
            )
        return ids

    def stats(self) -> dict[str, float]:
        """Counters since start: steps, tokens, step_ms_p50, wire bytes, waits."""
        return self._streams.stats()

    def close(self) -> None:
        """Ends every process; the engine cannot be used afterwards."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{count} prompts were given with {len(params)} sampling parameters")
    return list(params)


def _wire_params(params: SamplingParams) -> messages.SamplingParams:
    return messages.SamplingParams(
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=secrets.randbits(63) if params.seed is None else params.seed,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
    )
