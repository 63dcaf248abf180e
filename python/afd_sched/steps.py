"""The coordinator's heart without sockets or clock: messages and times in, messages out.

events ─► StepLoop.advance ─► (who, message)…  ─► StepLoop.tidy
                              who: a rank, or None for the front end
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from afd_sched.ints import pack_int32, pack_int64
from afd_sched.messages import (
    Abort,
    FfnResult,
    Generate,
    Message,
    Rejected,
    StepResult,
    Tokens,
)
from afd_sched.req import RequestRefused
from afd_sched.scheduler import Scheduler, StepBundle
from afd_sched.statistics import StepStatistics

Outgoing = tuple[int | None, Message]


@dataclass(slots=True)
class InFlight:
    """A published step and the results that came so far."""

    bundle: StepBundle
    published_ms: float
    attention: dict[int, StepResult] = field(default_factory=dict)
    ffn: dict[int, FfnResult] = field(default_factory=dict)


class StepLoop:
    """Publishes plans up to the scheduler's depth and commits steps whose results are complete."""

    def __init__(self, scheduler: Scheduler, attention_ranks: int, ffn_ranks: int) -> None:
        self.scheduler = scheduler
        self.statistics = StepStatistics()
        self._ffn_ranks = range(attention_ranks, attention_ranks + ffn_ranks)
        self._steps: deque[InFlight] = deque()
        self._last_commit_ms = 0.0
        # Committed, with the number of tokens delivered and the time it took.
        self._uncounted: list[tuple[InFlight, int, float]] = []

    def generate(self, message: Generate) -> Rejected | None:
        """Queues a request, or says why not."""
        try:
            self.scheduler.add(message.uid, message.input_ids, message.sampling, message.priority)
        except RequestRefused as error:
            return Rejected(message.uid, str(error))
        return None

    def abort(self, message: Abort) -> None:
        """Ends a request."""
        self.scheduler.abort(message.uid)

    def result(self, message: StepResult | FfnResult) -> bool:
        """Files a worker's result; False for one that no step in flight awaits from that rank."""
        for step in self._steps:
            if step.bundle.step == message.step:
                return self._file(step, message)
        return False

    def _file(self, step: InFlight, message: StepResult | FfnResult) -> bool:
        rank = message.rank
        if isinstance(message, StepResult):
            awaited = rank in step.bundle.plans and rank not in step.attention
            if awaited:
                step.attention[rank] = message
            return awaited
        awaited = step.bundle.ffn is not None and rank in self._ffn_ranks and rank not in step.ffn
        if awaited:
            step.ffn[rank] = message
        return awaited

    def advance(self, now_ms: float) -> Iterator[Outgoing]:
        """Everything that can be committed and published now; ``tidy`` is due once it is sent."""
        while True:
            progressed = False
            while self._steps and self._complete(self._steps[0]):
                yield self._commit(self._steps.popleft(), now_ms)
                progressed = True
            if self.scheduler.may_plan and (bundle := self._plan()) is not None:
                yield from self._publish(bundle, now_ms)
                progressed = True
            if not progressed:
                return

    def tidy(self) -> None:
        """What can wait until the plans are on their way."""
        for committed in self._uncounted:
            self._count(*committed)
        self._uncounted.clear()
        self.scheduler.tidy()

    def _complete(self, step: InFlight) -> bool:
        attention_done = len(step.attention) == len(step.bundle.plans)
        return attention_done and (step.bundle.ffn is None or len(step.ffn) == len(self._ffn_ranks))

    def _plan(self) -> StepBundle | None:
        return self.scheduler.plan()

    def _publish(self, bundle: StepBundle, now_ms: float) -> Iterator[Outgoing]:
        self._steps.append(InFlight(bundle, now_ms))
        for rank, plan in bundle.plans.items():
            yield rank, plan
        if bundle.ffn is not None:
            for rank in self._ffn_ranks:
                yield rank, bundle.ffn

    def _commit(self, step: InFlight, now_ms: float) -> Outgoing:
        bundle = step.bundle
        batch = self.scheduler.commit(
            bundle.step, {rank: result.tokens for rank, result in step.attention.items()}
        )
        step_ms = now_ms - max(step.published_ms, self._last_commit_ms)
        self._uncounted.append((step, len(batch.uids), step_ms))
        self._last_commit_ms = now_ms
        return None, Tokens(
            step=batch.step,
            uids=pack_int64(batch.uids),
            tokens=pack_int32(batch.tokens),
            finished=batch.finished.tobytes(),
        )

    def _count(self, step: InFlight, tokens: int, step_ms: float) -> None:
        results = step.attention.values()
        self.statistics.wire(
            sum([result.bytes_out for result in results]),
            sum([result.bytes_back for result in results]),
        )
        ffn_waits = [result.wait_us for result in step.ffn.values()]
        waits = [result.wait_us for result in results]
        self.statistics.step(
            tokens=tokens,
            pure_decode=step.bundle.extend_tokens == 0,
            step_ms=step_ms,
            attention_wait_ms=sum(waits) / len(waits) / 1000,
            ffn_wait_ms=sum(ffn_waits) / len(ffn_waits) / 1000 if ffn_waits else 0.0,
        )

    def values(self) -> dict[str, float]:
        """The run's counters as plain numbers."""
        return self.statistics.values() | {
            "running": self.scheduler.running,
            "waiting": self.scheduler.waiting,
            "retractions": self.scheduler.retractions,
            "cache_hit_rate": self.scheduler.cache_hit_rate,
        }
