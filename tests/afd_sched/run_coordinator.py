"""A real coordinator process on a real ipc socket, with fake workers in threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from afd.launch.listen import Listener
from afd_sched.coordinator import CoordinatorConfig
from afd_sched.links import FRONTEND, FrontendLink, WorkerLink, worker_identity
from afd_sched.messages import (
    PROTOCOL_VERSION,
    FfnResult,
    FfnStep,
    Generate,
    GetStats,
    Hello,
    Message,
    Ready,
    SamplingParams,
    Stats,
    StepPlan,
    StepResult,
    Stop,
    Tokens,
)
from afd_sched.security import PeerKeys, launch_keys
from tests.afd_sched.fleet import EOS, FakeRank

PAGES, PAGE_TOKENS, CONTEXT_TOKENS, REQUESTS = 40, 4, 64, 8
# Generous: a bound on a hang, never a measurement.
PATIENCE_MS = 30_000
_LOOK_MS = 100


class Fleet:
    """The coordinator, its front end's link, and one thread for each worker started.

    Leaving the context stops the coordinator and joins every thread.
    """

    def __init__(
        self,
        folder: Path,
        attention_ranks: int = 2,
        ffn_ranks: int = 1,
        listener: Listener | None = None,
        **config: Any,
    ) -> None:
        self.endpoint = f"ipc://{folder}/c" if listener is None else listener.endpoint
        self.attention_ranks, self.ffn_ranks = attention_ranks, ffn_ranks
        lifeline, self.launcher_end = os.pipe()
        values: dict[str, Any] = {
            "attention_ranks": attention_ranks,
            "ffn_ranks": ffn_ranks,
            "num_lanes": 2,
            "max_running_requests": REQUESTS,
            "chunked_prefill_size": 16,
            "page_size": PAGE_TOKENS,
            "context_length": CONTEXT_TOKENS,
            "eos_token_ids": EOS,
            "overlap": True,
            "endpoint": self.endpoint,
            "start_timeout_s": 20.0,
            "log_level": "error",
            "lifeline_fd": lifeline,
        }
        self.keys: dict[bytes, PeerKeys] = {}
        fds = [lifeline]
        if listener is not None:
            names = [FRONTEND, *map(worker_identity, range(attention_ranks + ffn_ranks))]
            values["keys"], self.keys = launch_keys(names)
            values["listening_fd"] = listener.fd
            fds.append(listener.fd)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "afd_sched"], stdin=subprocess.PIPE, pass_fds=fds
        )
        os.close(lifeline)
        if listener is not None:
            listener.close()
        assert self.process.stdin is not None
        config_json = msgspec.json.encode(CoordinatorConfig(**(values | config)))
        self.process.stdin.write(config_json)
        self.process.stdin.close()
        self.frontend = FrontendLink(self.endpoint, self.keys.get(FRONTEND))
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.stopped: set[int] = set()
        self._closing = threading.Event()
        self._lifeline_cut = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut_lifeline()
        try:
            self.process.wait(PATIENCE_MS / 1000)
        finally:
            self.process.kill()
            self.process.wait()
            self._closing.set()
            for thread in self.threads:
                thread.join(PATIENCE_MS / 1000)
            self.frontend.close()

    def cut_lifeline(self) -> None:
        """The launcher is gone."""
        if not self._lifeline_cut:
            os.close(self.launcher_end)
            self._lifeline_cut = True

    def hello(self, version: int = PROTOCOL_VERSION) -> None:
        """The front end's first message."""
        self.frontend.send(Hello(version, "frontend", -1, os.getpid()))

    def start_worker(
        self, rank: int, reply: Callable[[int, Message], Message] | None = None
    ) -> None:
        """A worker in a thread; ``reply(rank, answer)`` may change what it answers to a plan."""
        body = self._attention if rank < self.attention_ranks else self._ffn
        thread = threading.Thread(target=self._guard, args=(body, rank, reply), daemon=True)
        self.threads.append(thread)
        thread.start()

    def start_all(self) -> None:
        """The front end's hello and every worker; returns the coordinator's Started."""
        self.hello()
        for rank in range(self.attention_ranks + self.ffn_ranks):
            self.start_worker(rank)

    def receive(self, patience_ms: int = PATIENCE_MS) -> Message:
        """The coordinator's next message to the front end."""
        message = self.frontend.recv(patience_ms)
        assert message is not None, f"the coordinator says nothing; workers: {self.errors}"
        return message

    def generate(self, uid: int, prompt: list[int], **sampling: Any) -> SamplingParams:
        """Sends a request."""
        params = SamplingParams(**sampling)
        self.frontend.send(Generate(uid, np.array(prompt, "<i4").tobytes(), params))
        return params

    def stats(self) -> dict[str, float]:
        """The coordinator's counters; to be asked for when no request is open."""
        self.frontend.send(GetStats())
        message = self.receive()
        assert isinstance(message, Stats), message
        return message.values

    def collect(self, uids: set[int]) -> dict[int, list[int]]:
        """The tokens of ``uids`` until each has finished."""
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        open_uids = set(uids)
        while open_uids:
            message = self.receive()
            assert isinstance(message, Tokens), message
            for uid, token, finished in zip(
                np.frombuffer(message.uids, "<i8").tolist(),
                np.frombuffer(message.tokens, "<i4").tolist(),
                np.frombuffer(message.finished, np.int8).tolist(),
                strict=True,
            ):
                tokens[uid].append(token)
                if finished:
                    open_uids.remove(uid)
        return tokens

    def _guard(
        self,
        body: Callable[[int, WorkerLink, Callable[[int, Message], Message] | None], None],
        rank: int,
        reply: Callable[[int, Message], Message] | None,
    ) -> None:
        link = WorkerLink(self.endpoint, rank, self.keys.get(worker_identity(rank)))
        try:
            body(rank, link, reply)
        except AssertionError as error:
            self.errors.append(error)
        finally:
            link.close()

    def _messages(self, link: WorkerLink) -> Iterator[Message]:
        """What a worker receives; ends with the context, as a crashed coordinator says no Stop."""
        while not self._closing.is_set():
            if (message := link.recv(_LOOK_MS)) is not None:
                yield message

    def _attention(
        self, rank: int, link: WorkerLink, reply: Callable[[int, Message], Message] | None
    ) -> None:
        worker = FakeRank(REQUESTS, PAGES, PAGE_TOKENS, CONTEXT_TOKENS)
        link.send(Hello(PROTOCOL_VERSION, "attention", rank, os.getpid()))
        link.send(Ready(rank, PAGES))
        previous = -1
        for message in self._messages(link):
            if isinstance(message, Stop):
                self.stopped.add(rank)
                return
            assert isinstance(message, StepPlan)
            # Only the coordinator knows what is committed: reuse in flight is harness.py's check.
            worker.committed(previous)
            previous = message.step
            worker.receive(message)
            step, tokens = worker.run()
            answer: Message = StepResult(step, rank, tokens.tobytes(), 100, 50, 300, 200)
            link.send(reply(rank, answer) if reply else answer)

    def _ffn(
        self, rank: int, link: WorkerLink, reply: Callable[[int, Message], Message] | None
    ) -> None:
        link.send(Hello(PROTOCOL_VERSION, "ffn", rank, os.getpid()))
        link.send(Ready(rank, 0))
        for message in self._messages(link):
            if isinstance(message, Stop):
                self.stopped.add(rank)
                return
            assert isinstance(message, FfnStep)
            answer: Message = FfnResult(message.step, rank, 100, 50)
            link.send(reply(rank, answer) if reply else answer)
