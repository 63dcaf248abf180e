"""The scheduler: requests in, plans out. No socket, no clock, no tensor.

One step ahead: with ``overlap`` a step is planned while the one before it runs, so a request that
ends by EOS runs one wasted row, which ``commit`` drops.

    plan t ─► plan t+1 ─► commit t ─► plan t+2 ─► commit t+1 …
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from afd_sched.ints import pack_int32
from afd_sched.messages import FfnStep, SamplingParams, StepPlan
from afd_sched.rank import RankScheduler, RankStep
from afd_sched.req import FinishReason, Req, RequestRefused


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``max_running_requests`` and ``chunked_prefill_size`` (tokens) are per attention rank."""

    attention_ranks: int
    ffn_ranks: int
    num_lanes: int
    max_running_requests: int
    chunked_prefill_size: int
    page_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    overlap: bool


@dataclass(frozen=True, slots=True)
class StepBundle:
    """One planned step: a plan per attention rank that takes part, one FfnStep for all FFN ranks.

    ``extend_tokens``: prompt tokens in it; 0 for a pure decode step.
    """

    step: int
    lanes: int
    plans: dict[int, StepPlan]
    ffn: FfnStep | None
    extend_tokens: int


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of a committed step in uid order; ``finished`` holds FinishReason values."""

    step: int
    uids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    finished: NDArray[np.int8]


class StepOrderError(Exception):
    """plan or commit was called out of order, or with other ranks' results."""


class BadResult(Exception):
    """A rank returned what its plan cannot give; ``rank`` is its number."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Scheduler:
    """See the module; every decision is deterministic in the order of calls."""

    def __init__(self, config: SchedulerConfig, pages_per_rank: Sequence[int]) -> None:
        """``pages_per_rank``: KV pages of each attention rank."""
        self._config = config
        self._ranks = [
            RankScheduler(
                config.max_running_requests, pages, config.page_size, config.chunked_prefill_size
            )
            for pages in pages_per_rank
        ]
        self._eos = np.array(config.eos_token_ids, np.int32)
        self._reqs: dict[int, Req] = {}
        self._waiting: list[tuple[int, Req]] = []
        self._retracted: list[Req] = []
        # Few requests name stop tokens of their own; the rest must not pay for them.
        self._stop_watchers: set[int] = set()
        self._in_flight: deque[tuple[int, dict[int, RankStep]]] = deque()
        self._next_step = 0
        self._committed = -1
        self.retractions = 0
        smallest = min(rank.cache.capacity_tokens for rank in self._ranks)
        self.max_total_tokens = min(config.context_length, smallest)

    @property
    def in_flight(self) -> int:
        """Steps planned and not yet committed."""
        return len(self._in_flight)

    @property
    def may_plan(self) -> bool:
        """Whether another step may be planned before the next commit."""
        return len(self._in_flight) < (2 if self._config.overlap else 1)

    @property
    def waiting(self) -> int:
        """Requests that hold no slot."""
        return len(self._waiting) + len(self._retracted)

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._reqs) - self.waiting

    def add(self, uid: int, input_ids: NDArray[np.int32], sampling: SamplingParams) -> None:
        """Queues a request; raises RequestRefused if it can never run."""
        if uid in self._reqs:
            raise RequestRefused(f"request {uid} is already open")
        if sampling.max_new_tokens < 1:
            raise RequestRefused(
                f"max_new_tokens must be at least 1, not {sampling.max_new_tokens}"
            )
        if len(input_ids) == 0:
            raise RequestRefused("the prompt is empty")
        if len(input_ids) >= self.max_total_tokens:
            raise RequestRefused(
                f"a prompt of {len(input_ids)} tokens leaves no room to answer: a request may have "
                f"{self.max_total_tokens} tokens in all"
            )
        limit = min(len(input_ids) + sampling.max_new_tokens, self.max_total_tokens)
        req = Req(uid, input_ids, sampling, limit)
        self._reqs[uid] = req
        if sampling.stop_token_ids:
            self._stop_watchers.add(uid)
        insort(self._waiting, (uid, req), key=lambda entry: entry[0])

    def abort(self, uid: int) -> None:
        """Ends a request wherever it is; an unknown uid is ignored."""
        req = self._reqs.pop(uid, None)
        if req is None:
            return
        self._stop_watchers.discard(uid)
        self._waiting = [entry for entry in self._waiting if entry[0] != uid]
        self._retracted = [other for other in self._retracted if other.uid != uid]
        if req.rank >= 0:
            self._ranks[req.rank].running.open[req.slot] = False

    # ------------------------------------------------------------------------------- plan

    def plan(self) -> StepBundle | None:
        """The next step, or None if no rank has a row to run; raises StepOrderError if too many
        steps are in flight."""
        if not self.may_plan:
            raise StepOrderError(f"step {self._in_flight[0][0]} must be committed first")
        self._retire_spent()
        self._admit()
        step = self._next_step
        steps: dict[int, RankStep] = {}
        for index, rank in enumerate(self._ranks):
            if rank.running.count and self._make_room(rank):
                planned = rank.step(step)
                if planned.rows:
                    steps[index] = planned
        if not steps:
            return None
        self._next_step += 1
        self._in_flight.append((step, steps))
        lanes = min(self._config.num_lanes, max(s.rows for s in steps.values()))
        ffn = None
        if self._config.ffn_ranks:
            ffn = FfnStep(step=step, lanes=lanes, attention_ranks=pack_int32(list(steps)))
        return StepBundle(
            step=step,
            lanes=lanes,
            plans={i: self._ranks[i].take_plan(step, lanes, s.extend) for i, s in steps.items()},
            ffn=ffn,
            extend_tokens=sum(s.extend_tokens for s in steps.values()),
        )

    def _retire_spent(self) -> None:
        for rank in self._ranks:
            for slot in rank.spent().tolist():
                rank.retire(slot, self._committed)

    def _admit(self) -> None:
        """First come, first served: a head that does not fit holds the others back, so that none
        starves."""
        while self._waiting:
            req = self._waiting[0][1]
            fitting = [i for i, rank in enumerate(self._ranks) if rank.fits(len(req.tokens) + 1)]
            if not fitting:
                return
            self._waiting.pop(0)
            req.rank = min(fitting, key=lambda i: (self._ranks[i].running.load_tokens, i))
            self._ranks[req.rank].admit(req)

    def _make_room(self, rank: RankScheduler) -> bool:
        """Retracts the latest arrivals until this step's pages suffice; False if the rank must sit
        this step out until pages come back."""
        while rank.missing_pages():
            if rank.awaits_pages:
                return False
            slot = rank.latest()
            req = self._reqs[int(rank.running.uid[slot])]
            rank.retire(slot, self._committed)
            self._retracted.append(req)
            self.retractions += 1
            self._requeue()
        return True

    def _requeue(self) -> None:
        """Retracted requests whose last step is committed wait again, with what they generated."""
        still: list[Req] = []
        for req in self._retracted:
            running = self._ranks[req.rank].running
            if running.last_step[req.slot] > self._committed:
                still.append(req)
                continue
            req.tokens = np.concatenate([req.tokens, running.history(req.slot)])
            running.open[req.slot] = False
            req.rank = req.slot = -1
            insort(self._waiting, (req.uid, req), key=lambda entry: entry[0])
        self._retracted = still

    # ------------------------------------------------------------------------------- commit

    def commit(self, step: int, results: dict[int, NDArray[np.int32]]) -> TokenBatch:
        """Takes the sampled tokens of the oldest step in flight, by attention rank; raises
        StepOrderError for any other step or rank, BadResult for another count."""
        if not self._in_flight or self._in_flight[0][0] != step:
            raise StepOrderError(f"step {step} is not the oldest in flight")
        steps = self._in_flight[0][1]
        if steps.keys() != results.keys():
            raise StepOrderError(
                f"step {step} ran on ranks {sorted(steps)}, results came from {sorted(results)}"
            )
        for index, planned in steps.items():
            if len(results[index]) != len(planned.sampling_slots):
                raise BadResult(
                    index,
                    f"step {step}: rank {index} returned {len(results[index])} tokens, "
                    f"{len(planned.sampling_slots)} were planned",
                )
        self._in_flight.popleft()
        self._committed = step
        parts = [self._commit_rank(i, planned, results[i]) for i, planned in steps.items()]
        self._requeue()
        for rank in self._ranks:
            rank.free_committed(step)
        uids, tokens, finished = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        by_uid = np.argsort(uids)
        return TokenBatch(step, uids[by_uid], tokens[by_uid], finished[by_uid])

    def _commit_rank(
        self, index: int, planned: RankStep, tokens: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int8]]:
        running = self._ranks[index].running
        slots, uids = planned.sampling_slots, planned.sampling_uids
        live = running.open[slots]
        if not live.all():
            slots, uids, tokens = slots[live], uids[live], tokens[live]
        running.record(slots, tokens)
        total = running.prompt[slots] + running.generated[slots]
        finished = np.where(total >= running.limit[slots], FinishReason.LENGTH, 0).astype(np.int8)
        if len(self._eos):
            ended = np.isin(tokens, self._eos) & ~running.ignore_eos[slots]
            finished[ended] = FinishReason.STOP
        self._stop_tokens(uids, tokens, finished)
        for at in np.flatnonzero(finished).tolist():
            running.open[slots[at]] = False
            uid = int(uids[at])
            del self._reqs[uid]
            self._stop_watchers.discard(uid)
            self._retracted = [req for req in self._retracted if req.uid != uid]
        return uids, tokens, finished

    def _stop_tokens(
        self, uids: NDArray[np.int64], tokens: NDArray[np.int32], finished: NDArray[np.int8]
    ) -> None:
        watched = self._stop_watchers
        if not watched:
            return
        for at, uid in enumerate(uids.tolist()):
            if uid in watched and int(tokens[at]) in self._reqs[uid].sampling.stop_token_ids:
                finished[at] = FinishReason.STOP
