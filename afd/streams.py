"""Tokens of one engine on their way to whoever asked: several streams may be read in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from afd.errors import EngineDeadError, RequestError
from afd.launch.engine import Engine
from afd.outputs import RequestOutput
from afd.tokenizer import TextStream
from afd_sched import messages
from afd_sched.req import FinishReason

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
}


class OpenRequest:
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
        """Everything so far."""
        return RequestOutput(
            index=self.index,
            text=self._text.text if self._text is not None else "",
            token_ids=list(self.token_ids),
            prompt_tokens=self.prompt_tokens,
            finish_reason=self.finish_reason,
        )


class Stream:
    """One caller's requests by uid, and what has come for it and was not yet handed out."""

    def __init__(self) -> None:
        self.open: dict[int, OpenRequest] = {}
        self.ready: deque[RequestOutput] = deque()
        self.refused: str | None = None


class Streams:
    """Whoever reads the engine files what it gets under the stream that it is for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._owners: dict[int, Stream] = {}

    def submit(
        self,
        stream: Stream,
        ids: list[int],
        params: messages.SamplingParams,
        priority: int,
        request: OpenRequest,
    ) -> None:
        """Starts a request of ``stream``."""
        uid = self._engine.submit(ids, params, priority)
        stream.open[uid] = request
        self._owners[uid] = stream

    def follow(self, stream: Stream) -> Iterator[RequestOutput]:
        """The outputs of ``stream`` as they grow; raises RequestError if a request is refused."""
        while True:
            while stream.ready:
                yield stream.ready.popleft()
            if stream.refused is not None:
                raise RequestError(stream.refused)
            if not stream.open:
                return
            self._file(self._engine.poll(None))

    def leave(self, stream: Stream) -> None:
        """Aborts what is still open of ``stream``."""
        for uid in stream.open:
            del self._owners[uid]
            try:
                self._engine.abort(uid)
            except EngineDeadError:
                continue
        stream.open.clear()

    def stats(self) -> dict[str, float]:
        """The coordinator's counters; what arrives meanwhile is kept for its stream."""
        self._engine.ask_stats()
        while not isinstance(event := self._engine.poll(None), messages.Stats):
            self._file(event)
        return event.values

    def _file(self, event: messages.Tokens | messages.Rejected | messages.Stats | None) -> None:
        if isinstance(event, messages.Rejected) and event.uid in self._owners:
            stream = self._owners.pop(event.uid)
            del stream.open[event.uid]
            stream.refused = event.reason
        if not isinstance(event, messages.Tokens):
            return
        uids = np.frombuffer(event.uids, np.int64)
        tokens = np.frombuffer(event.tokens, np.int32)
        finished = np.frombuffer(event.finished, np.int8)
        for uid, token, reason in zip(
            uids.tolist(), tokens.tolist(), finished.tolist(), strict=True
        ):
            if uid in self._owners:
                self._grow(uid, token, FinishReason(reason))

    def _grow(self, uid: int, token: int, reason: FinishReason) -> None:
        stream = self._owners[uid]
        request = stream.open[uid]
        if request.push(token, reason):
            self._engine.abort(uid)
        output = request.output()
        if output.finish_reason is not None:
            del stream.open[uid], self._owners[uid]
        stream.ready.append(output)
