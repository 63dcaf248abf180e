"""The Python entry point: ``LLM(model=…, m=2, n=1).generate(prompts, SamplingParams(…))``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import msgspec
import numpy as np

from afd.config import EngineConfig
from afd.errors import ConfigError, EngineDeadError, RequestError
from afd.launch.engine import Engine
from afd.launch.resolve import ResolvedConfig, resolve
from afd.outputs import RequestOutput
from afd.sampling import SamplingParams
from afd.tokenizer import Conversation, TextStream, Tokenizer
from afd_sched import messages
from afd_sched.req import FinishReason

Prompt: TypeAlias = str | Sequence[int]

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
}


class _Open:
    """A request on its way; ``fresh`` is text not yet handed out."""

    def __init__(self, index: int, prompt_tokens: int, text: TextStream | None) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._text = text

    def push(self, token: int, finished: FinishReason) -> bool:
        """Adds one token; True if a stop string ended the request before the scheduler did."""
        self.token_ids.append(token)
        self.finish_reason = _REASONS.get(finished)
        if self._text is None:
            return False
        self._text.push([token], final=self.finish_reason is not None)
        if not self._text.stopped:
            return False
        early = self.finish_reason is None
        self.finish_reason = "stop"
        return early

    def output(self) -> RequestOutput:
        return RequestOutput(
            index=self.index,
            text=self._text.text if self._text is not None else "",
            token_ids=list(self.token_ids),
            prompt_tokens=self.prompt_tokens,
            finish_reason=self.finish_reason,
        )


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
        open_requests: dict[int, _Open] = {}
        try:
            for index, (ids, params) in enumerate(zip(encoded, chosen, strict=True)):
                text = TextStream(self._tokenizer, params.stop) if self._tokenizer else None
                uid = self._engine.submit(ids, _wire_params(params), priorities[index])
                open_requests[uid] = _Open(index, len(ids), text)
            while open_requests:
                yield from self._advance(open_requests)
        finally:
            for uid in open_requests:
                self._abort_quietly(uid)

    def _abort_quietly(self, uid: int) -> None:
        try:
            self._engine.abort(uid)
        except EngineDeadError:
            return

    def _advance(self, open_requests: dict[int, _Open]) -> Iterator[RequestOutput]:
        event = self._engine.poll(None)
        if isinstance(event, messages.Rejected) and event.uid in open_requests:
            del open_requests[event.uid]
            raise RequestError(event.reason)
        if not isinstance(event, messages.Tokens):
            return
        uids = np.frombuffer(event.uids, np.int64)
        tokens = np.frombuffer(event.tokens, np.int32)
        finished = np.frombuffer(event.finished, np.int8)
        for uid, token, reason in zip(
            uids.tolist(), tokens.tolist(), finished.tolist(), strict=True
        ):
            request = open_requests.get(uid)
            if request is None:
                continue
            if request.push(token, FinishReason(reason)):
                self._engine.abort(uid)
            output = request.output()
            if output.finish_reason is not None:
                del open_requests[uid]
            yield output

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
        return self._engine.stats()

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
