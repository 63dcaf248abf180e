"""The scheduler: requests in, plans out. No socket, no clock, no tensor.

One step ahead: with ``overlap`` a step is planned while the one before it runs, so a request that
ends by EOS runs one wasted row, which ``commit`` drops.

    plan t ─► plan t+1 ─► commit t ─► plan t+2 ─► commit t+1 …
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from afd_sched.admission import Admission, AdmissionLimits
from afd_sched.decode import LAST_UID
from afd_sched.deltas import PlanDeltas
from afd_sched.flight import UNKNOWN_ROWS, Planned, Rows, StepsExhausted
from afd_sched.flight import BadResult as BadResult
from afd_sched.flight import RunFailed as RunFailed
from afd_sched.flight import StepOrderError as StepOrderError
from afd_sched.ints import pack_int32
from afd_sched.messages import FfnStep, SamplingParams, StepPlan
from afd_sched.policy import SchedulePolicy
from afd_sched.prefill import PrefillManager
from afd_sched.req import TOKEN_BYTES, FinishReason, Req, RequestRefused
from afd_sched.residents import Residents
from afd_sched.stops import StopTokens

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
# A run's sequence numbers, step x MoE layers + layer, have 40 bits; 128 layers leave this many.
STEP_LIMIT: Final = 2**33
_ORDER = attrgetter("order")
# Plain numbers: numpy is slow to take an enumeration's.
_STOP, _LENGTH = int(FinishReason.STOP), int(FinishReason.LENGTH)


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``max_running_requests`` and ``chunked_prefill_size`` (tokens) are per attention rank;
    ``max_queued_requests`` counts those that no free slot awaits, None for any number."""

    attention_ranks: int
    ffn_ranks: int
    num_lanes: int
    max_running_requests: int
    chunked_prefill_size: int
    page_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    overlap: bool
    radix_cache: bool = True
    schedule_policy: SchedulePolicy = SchedulePolicy.FCFS
    max_queued_requests: int | None = None
    priority_scheduling: bool = False
    first_step: int = 0


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
    """Tokens of a committed step, rank by rank; ``finished`` holds FinishReason values."""

    step: int
    uids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    finished: NDArray[np.int8]


class Scheduler:
    """See the module; every decision is deterministic in the order of calls. Inside, slots are
    numbered through all ranks (rank * slots + slot), so that one array operation serves all."""

    def __init__(self, config: SchedulerConfig, pages_per_rank: Sequence[int]) -> None:
        """``pages_per_rank``: KV pages of each attention rank."""
        ranks, slots, page_size = len(pages_per_rank), config.max_running_requests, config.page_size
        self._config = config
        self._slots = slots
        self.max_total_tokens = min(config.context_length, min(pages_per_rank) * page_size)
        self._residents = Residents(
            pages_per_rank,
            page_size,
            slots,
            pages_per_slot=-(-self.max_total_tokens // page_size),
            radix=config.radix_cache,
        )
        self._running = self._residents.running
        self._cache = self._residents.cache
        self._prefill = PrefillManager(config.chunked_prefill_size, slots)
        self._stops = StopTokens(ranks * slots)
        self._deltas = PlanDeltas(slots, self._cache)
        limits = AdmissionLimits(
            total_tokens=self.max_total_tokens,
            queued_requests=config.max_queued_requests,
            priorities=config.priority_scheduling,
            policy=config.schedule_policy,
        )
        self._admission = Admission(
            self._residents, self._prefill, self._stops, self._deltas, limits
        )
        self._reqs: dict[int, Req] = {}
        # With the last step that may name them.
        self._retracted: dict[int, tuple[int, Req]] = {}
        self._in_flight: deque[Planned] = deque()
        self._next_step = config.first_step
        self._committed = config.first_step - 1
        self.retractions = 0

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
        return len(self._admission.queue) + len(self._retracted)

    @property
    def cache_hit_rate(self) -> float:
        """Share of the tokens of admitted requests that the prefix cache had, since the start."""
        admission = self._admission
        return admission.cached_tokens / max(1, admission.prompt_tokens)

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._reqs) - self.waiting

    def add(self, uid: int, tokens: bytes, sampling: SamplingParams, priority: int = 0) -> None:
        """Queues a request with a prompt of int32 ``tokens``; raises RequestRefused if it can never
        run, or not now."""
        if uid in self._reqs:
            raise RequestRefused(f"request {uid} is already open")
        if not 0 <= uid < LAST_UID:
            raise RequestRefused(f"request ids are from 0 to {LAST_UID - 1}, not {uid}")
        self._reqs[uid] = self._admission.request(uid, tokens, sampling, priority, self._next_step)

    def abort(self, uid: int) -> None:
        """Ends a request wherever it is; an unknown uid is ignored."""
        req = self._reqs.get(uid)
        if req is None:
            return
        if req.slot < 0:
            del self._reqs[uid]
            self._admission.queue.remove([req])
        else:
            self._end(np.array([req.slot]))

    def _end(self, slots: I64) -> None:
        """The requests in these slots are over; nothing more of them is delivered."""
        self._running.close(slots)
        self._stops.forget(slots.tolist())
        for uid in self._running.uid[slots].tolist():
            del self._reqs[uid]
            if self._retracted:
                self._retracted.pop(uid, None)

    # ------------------------------------------------------------------------------- plan

    def plan(self) -> StepBundle | None:
        """The next step, or None if no rank has a row to run; raises StepOrderError if too many
        steps are in flight, StepsExhausted after ``STEP_LIMIT`` steps."""
        if not self.may_plan:
            raise StepOrderError(f"step {self._in_flight[0].step} must be committed first")
        if self._next_step >= STEP_LIMIT:
            raise StepsExhausted(-1, f"step {self._next_step} is out of range; restart the engine")
        self._lay_rows()
        self._retire_spent()
        if self._admission.queue:
            self._admission.admit(self._next_step)
        sitting_out = self._grow()
        ranks = [r for r in np.flatnonzero(self._running.count).tolist() if r not in sitting_out]
        if not ranks:
            return None
        deal = self._prefill.deal(sitting_out)
        extended = np.array(deal.slots, np.int64), np.array(deal.counts, np.int32)
        done = np.array(deal.done, np.int64)
        planned, rows = self._lay_out(ranks, extended, done, sitting_out)
        self._next_step += 1
        self._in_flight.append(planned)
        step, lanes = planned.step, min(self._config.num_lanes, rows)
        ffn = None
        if self._config.ffn_ranks:
            ffn = FfnStep(step=step, lanes=lanes, attention_ranks=pack_int32(ranks))
        return StepBundle(
            step=step,
            lanes=lanes,
            plans=self._deltas.plans(step, lanes, ranks, extended),
            ffn=ffn,
            extend_tokens=sum(deal.counts),
        )

    def _retire_spent(self) -> None:
        spent = self._running.spent()
        if len(spent):
            self._retire(spent)

    def _retire(self, slots: I64) -> None:
        """The slots leave with the next plan; they are freed once their last step is committed."""
        self._prefill.discard(slots.tolist())
        self._deltas.retire(slots.tolist())
        self._residents.retire(slots, self._next_step - 1)
        self._free_committed()

    def _free_committed(self) -> None:
        """Retracted requests whose last step is committed wait again, with what they generated;
        slots that no step in flight names are free again."""
        for uid, (last, req) in list(self._retracted.items()):
            if last <= self._committed:
                del self._retracted[uid]
                slots = np.array([req.slot])
                req.extend(self._residents.generated(slots)[0])
                self._running.close(slots)
                self._stops.forget([req.slot])
                req.slot = -1
                self._admission.queue.add(req)
        self._residents.free(self._committed)

    def _grow(self) -> set[int]:
        """A page for each slot whose next row begins one. Where they do not suffice, the latest
        arrivals are retracted, and the rank sits the step out until their pages come back.
        Returns the ranks that do."""
        slots = self._running.at_page_end()
        if not len(slots):
            return set()
        need = np.bincount(slots // self._slots, minlength=len(self._cache.free))
        sitting_out: set[int] = set()
        for rank in np.flatnonzero(need > self._cache.free).tolist():
            if not self._make_room(rank):
                sitting_out.add(rank)
            slots = self._running.at_page_end()
        if sitting_out:
            slots = slots[~np.isin(slots // self._slots, list(sitting_out))]
        self._deltas.grow(slots, self._residents.grow(slots))
        return sitting_out

    def _grow_ahead(self) -> None:
        """As ``_grow`` will for the next plan, on the ranks that have pages enough."""
        slots = self._running.at_page_end()
        if not len(slots):
            return
        ranks = slots // self._slots
        enough = np.bincount(ranks, minlength=len(self._cache.free)) <= self._cache.free
        slots = slots[enough[ranks]]
        self._deltas.grow(slots, self._residents.grow(slots))

    def _make_room(self, rank: int) -> bool:
        """False if the rank must wait for pages that a step in flight still names."""
        while True:
            growing = np.count_nonzero(self._running.at_page_end() // self._slots == rank)
            if growing > self._cache.free[rank]:
                self._residents.evict(rank, int(growing), self._next_step)
            if growing <= self._cache.free[rank]:
                return True
            if self._residents.awaits_pages(rank):
                return False
            slots = self._running.slots_of(rank).tolist()
            req = max((self._residents.by_slot[slot].req for slot in slots), key=_ORDER)
            self._retracted[req.uid] = (self._next_step - 1, req)
            self.retractions += 1
            self._retire(np.array([req.slot]))

    def _lay_out(
        self, ranks: list[int], extended: tuple[I64, I32], done: I64, sitting_out: set[int]
    ) -> tuple[Planned, int]:
        """Advances every slot that gets rows; the step, and the most rows of a rank."""
        running = self._running
        rows = running.decoding.copy()
        counts = running.decoding.copy()
        samples = None
        if not len(extended[0]) and not sitting_out:
            running.fed += running.advance
        else:
            rows[list(sitting_out)] = 0
            samples = running.advance.copy()
            samples.reshape(-1, self._slots)[list(sitting_out)] = 0
            running.fed += samples
            tokens = np.bincount(extended[0] // self._slots, extended[1], len(rows))
            rows += tokens.astype(np.int64)
            counts += np.bincount(done // self._slots, minlength=len(counts))
            running.extend(*extended, done)
            samples[done] = 1
        sizes = (TOKEN_BYTES * counts[ranks]).tolist()
        return Planned(self._next_step, ranks, sizes, done, samples), int(rows.max())

    def _lay_rows(self) -> None:
        """Works out whose tokens the latest step returns. No plan needs that, so it waits until the
        plans are on their way; but not for the next plan, which moves slots and pages."""
        if not self._in_flight or self._in_flight[-1].rows is not UNKNOWN_ROWS:
            return
        planned = self._in_flight[-1]
        running, order = self._running, self._running.order
        if planned.samples is not None and sum(planned.sizes) < TOKEN_BYTES * len(order.slots):
            order = order.only(np.flatnonzero(planned.samples[order.slots]))
        planned.rows = Rows(order, self._residents.history.cells(order.slots, running.fed))

    def tidy(self) -> None:
        """What can wait until the plans are on their way, the prefix cache above all; and what the
        next plan has to do whatever the results are."""
        self._lay_rows()
        self._residents.tidy(self._next_step)
        self._retire_spent()
        self._grow_ahead()

    # ------------------------------------------------------------------------------- loss

    def lose(self, rank: int) -> None:
        """An attention rank's worker is gone: its open requests wait again, with the tokens that
        are committed, and the steps in flight go on without it. Nothing is placed there until
        ``restore``."""
        self._lay_rows()
        mine = [req for req in self._reqs.values() if req.slot // self._slots == rank]
        slots = np.array([req.slot for req in mine], np.int64)
        answers = self._residents.generated(slots) if mine else []
        self._stops.forget(slots.tolist())
        self._running.close(slots)
        for req, answer in zip(mine, answers, strict=True):
            req.extend(answer)
            req.slot = -1
            self._retracted.pop(req.uid, None)
            self._admission.queue.add(req)
        self._prefill.forget(rank)
        self._deltas.forget(rank)
        self._residents.lose(rank)
        for planned in self._in_flight:
            planned.without(rank, self._slots)

    def restore(self, rank: int) -> None:
        """A lost attention rank has a new worker, with an empty table and an empty cache."""
        self._residents.restore(rank)

    # ------------------------------------------------------------------------------- commit

    def commit(self, step: int, results: dict[int, bytes]) -> TokenBatch:
        """Takes the sampled tokens (int32) of the oldest step in flight, by attention rank; raises
        StepOrderError for any other step or rank, BadResult for another count."""
        if not self._in_flight or self._in_flight[0].step != step:
            raise StepOrderError(f"step {step} is not the oldest in flight")
        self._lay_rows()
        planned = self._in_flight[0]
        tokens = planned.collect(results)
        self._in_flight.popleft()
        self._committed = step
        batch = self._deliver(planned, tokens)
        going_on = planned.prompts[self._running.open[planned.prompts]]
        self._residents.remember(going_on.tolist())
        self._free_committed()
        return batch

    def _deliver(self, planned: Planned, tokens: I32) -> TokenBatch:
        running, order, cells = self._running, planned.rows.order, planned.rows.cells
        live = np.flatnonzero(running.open[order.slots])
        if len(live) < len(tokens):
            order = order.only(live)
            cells, tokens = cells[live], tokens[live]
        slots = order.slots
        self._residents.history.write(cells, tokens)
        generated = running.generated[slots] + 1
        running.generated[slots] = generated
        finished = np.zeros(len(slots), np.int8)
        finished[generated >= running.quota[slots]] = _LENGTH
        for eos in self._config.eos_token_ids:
            ended = tokens == eos
            if ended.any():
                finished[ended & ~running.ignore_eos[slots]] = _STOP
        self._stops.mark(slots, tokens, finished, _STOP)
        over = np.flatnonzero(finished)
        if len(over):
            self._end(slots[over])
        return TokenBatch(planned.step, order.uids, tokens, finished)
