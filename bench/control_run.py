"""One coordinator under the clock: the product's StepLoop and link, each part timed where it is
called."""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from afd_sched.ints import pack_int32
from afd_sched.links import FRONTEND, CoordinatorLink, worker_identity
from afd_sched.messages import (
    FfnResult,
    Generate,
    Hello,
    Ready,
    SamplingParams,
    StepPlan,
    StepResult,
    Stop,
)
from afd_sched.scheduler import Scheduler, SchedulerConfig, StepBundle, TokenBatch
from afd_sched.steps import StepLoop

PARTS = ("receive", "arrive", "commit", "plan", "encode", "publish", "rest", "tidy")
PAGE_SIZE = 16
CONTEXT_LENGTH = 8192
EOS = 1
_PROMPT_TOKENS = 96
_CHURN = 0.01


def pages_per_rank(batch: int) -> int:
    """Room for every request to reach a few thousand tokens."""
    return batch * 256


class Clock:
    """Seconds by part since the last ``take``."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, call: Any, *arguments: Any) -> Any:
        """``call(*arguments)``, its time added to ``part``."""
        start = time.perf_counter()
        result = call(*arguments)
        self.parts[part] += time.perf_counter() - start
        return result


class TimedScheduler(Scheduler):
    """Times plan and commit."""

    clock: Clock
    churn = False
    committed_tokens = 0
    ended = 0
    commits = 0

    def plan(self) -> StepBundle | None:
        """As the product's."""
        return self.clock.timed("plan", super().plan)  # type: ignore[no-any-return]

    def commit(self, step: int, results: dict[int, Any]) -> TokenBatch:
        """As the product's; counts what it delivers."""
        batch: TokenBatch = self.clock.timed("commit", super().commit, step, results)
        self.committed_tokens, self.ended = len(batch.uids), int(np.count_nonzero(batch.finished))
        self.commits += 1
        return batch


@dataclass
class Measured:
    """One phase; ``whole_us`` is the step and what follows it; ``plan_bytes`` per attention rank
    and ``changes`` per step are means."""

    step_us: list[float] = field(default_factory=list)
    whole_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    parts_us: dict[str, list[float]] = field(default_factory=lambda: {p: [] for p in PARTS})
    plan_bytes: float = 0.0
    changes: float = 0.0


class Run:
    """A coordinator's loop without its start-up and failures, which are not what is measured."""

    def __init__(self, endpoint: str, ranks: int, ffn_ranks: int, batch: int, churn: bool) -> None:
        self._ranks, self._all, self._batch = ranks, ranks + ffn_ranks, batch
        # As the coordinator's process does.
        gc.disable()
        self._link = CoordinatorLink(endpoint)
        self._clock = Clock()
        config = SchedulerConfig(
            attention_ranks=ranks,
            ffn_ranks=ffn_ranks,
            num_lanes=2,
            max_running_requests=batch,
            chunked_prefill_size=8192,
            page_size=PAGE_SIZE,
            context_length=CONTEXT_LENGTH,
            eos_token_ids=(EOS,),
            overlap=True,
        )
        self._scheduler = TimedScheduler(config, [pages_per_rank(batch)] * ranks)
        self._scheduler.clock = self._clock
        self._loop = StepLoop(self._scheduler, ranks, ffn_ranks)
        self._random = np.random.default_rng(1)
        self._uid = 0
        self._plan_bytes = 0
        self._churn = churn

    def fill(self) -> None:
        """Waits for the workers and the front end, then starts every request at once."""
        hellos = ready = 0
        while ready < self._all or hellos < self._all + 1:
            self._link.socket.poll()
            while (arrived := self._link.recv()) is not None:
                ready += isinstance(arrived[1], Ready)
                hellos += isinstance(arrived[1], Hello)
                if not isinstance(arrived[1], Ready | Hello):
                    sys.exit(f"unexpected {arrived[1]}")
        self._arrive(self._ranks * self._batch, first=True)
        self._step()
        while not self._churn and self._scheduler.committed_tokens < self._ranks * self._batch:
            self._receive()
            self._step()

    def _step(self) -> None:
        self._advance()
        self._loop.tidy()

    def _arrive(self, count: int, first: bool = False) -> None:
        for _ in range(count):
            tokens = int(self._random.integers(_PROMPT_TOKENS, _PROMPT_TOKENS + PAGE_SIZE))
            ids = pack_int32(self._random.integers(2, 150_000, tokens, np.int32))
            sampling = SamplingParams(max_new_tokens=self._new_tokens(first))
            rejected = self._clock.timed(
                "arrive", self._loop.generate, Generate(self._uid, ids, sampling)
            )
            self._uid += 1
            if rejected is not None:
                sys.exit(f"rejected: {rejected}")

    def _new_tokens(self, first: bool) -> int:
        """Uniform, so that a constant number of requests ends per step; the first requests are
        somewhere in the middle of theirs."""
        if not self._churn:
            return 10**6
        # A slot is idle for two steps between its requests.
        longest = round(2 / _CHURN) - 6
        if first:
            return 1 + int(longest * (1 - self._random.random() ** 0.5))
        return int(self._random.integers(2, longest))

    def _receive(self) -> None:
        """Until the oldest step's results are all here."""
        steps = self._loop._steps
        while not self._loop._complete(steps[0]):
            self._link.socket.poll()
            self._clock.timed("receive", self._drain)

    def _drain(self) -> None:
        oldest = self._loop._steps[0]
        # What follows is the next step's, which workers without a model have run already.
        while not self._loop._complete(oldest) and (arrived := self._link.recv()) is not None:
            message = arrived[1]
            if not isinstance(message, StepResult | FfnResult):
                sys.exit(f"unexpected {message}")
            self._loop.result(message)

    def _advance(self) -> list[bytes]:
        """As the coordinator's loop does; part by part, so that the clock is read seldom. The
        encoded plans."""
        link = self._link
        messages = list(self._loop.advance(time.monotonic() * 1000))
        start = time.perf_counter()
        payloads = [link.encode(message) for _, message in messages]
        encoded = time.perf_counter()
        for (rank, _), payload in zip(messages, payloads, strict=True):
            link.put(FRONTEND if rank is None else worker_identity(rank), payload)
        self._clock.parts["encode"] += encoded - start
        self._clock.parts["publish"] += time.perf_counter() - encoded
        plans = [isinstance(message, StepPlan) for _, message in messages]
        return [payload for payload, is_plan in zip(payloads, plans, strict=True) if is_plan]

    def steps(self, count: int) -> Measured:
        """Runs and times ``count`` steps; every one of them must run the whole batch."""
        measured = Measured()
        self._plan_bytes = 0
        for _ in range(count):
            self._clock.parts = dict.fromkeys(PARTS, 0.0)
            self._scheduler.commits = 0
            self._receive()
            if self._churn:
                self._arrive(self._scheduler.ended)
            cpu, wall = time.thread_time(), time.perf_counter()
            plans = self._advance()
            wall = time.perf_counter() - wall
            self._clock.timed("tidy", self._loop.tidy)
            cpu = time.thread_time() - cpu
            self._plan_bytes += sum(map(len, plans))
            parts = self._clock.parts
            parts["rest"] = wall - sum(parts[p] for p in ("commit", "plan", "encode", "publish"))
            measured.step_us.append((wall + parts["arrive"]) * 1e6)
            measured.whole_us.append((wall + parts["arrive"] + parts["tidy"]) * 1e6)
            measured.cpu_us.append(cpu * 1e6)
            for part in PARTS:
                measured.parts_us[part].append(parts[part] * 1e6)
            measured.changes += self._scheduler.ended / count
            self._check()
        measured.plan_bytes = self._plan_bytes / count / self._ranks
        return measured

    def _check(self) -> None:
        scheduler, want = self._scheduler, self._ranks * self._batch
        if not self._churn and scheduler.committed_tokens != want:
            sys.exit(f"a step committed {scheduler.committed_tokens} tokens, {want} were running")
        if scheduler.commits != 1:
            sys.exit(f"{scheduler.commits} steps were committed in one")
        left = scheduler.running + scheduler.waiting
        if left + scheduler.ended != want:
            sys.exit(f"{left} requests were left of {want}, and {scheduler.ended} had ended")

    def stop(self) -> None:
        """Ends the workers."""
        for rank in range(self._all):
            self._link.send(worker_identity(rank), Stop())
        self._link.close()
