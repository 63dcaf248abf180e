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

from afd_sched.cache import CacheManager
from afd_sched.decode import DecodeManager, RowOrder
from afd_sched.deltas import PlanDeltas
from afd_sched.history import TokenHistory
from afd_sched.ints import pack_int32
from afd_sched.messages import Admit, FfnStep, SamplingParams, StepPlan
from afd_sched.prefill import Chunks, PrefillManager
from afd_sched.req import FinishReason, Req, RequestRefused
from afd_sched.stops import StopTokens
from afd_sched.table import TableManager

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_NO_PAGES = np.zeros(0, np.int32)


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


@dataclass(frozen=True, slots=True)
class _Planned:
    """A step in flight: the tokens that each rank owes, and whose they are (rank by rank)."""

    step: int
    ranks: list[int]
    counts: list[int]
    rows: RowOrder
    cells: I64


class StepOrderError(Exception):
    """plan or commit was called out of order, or with other ranks' results."""


class BadResult(Exception):
    """A rank returned what its plan cannot give; ``rank`` is its number."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Scheduler:
    """See the module; every decision is deterministic in the order of calls. Inside, slots are
    numbered through all ranks (rank * slots + slot), so that one array operation serves all."""

    def __init__(self, config: SchedulerConfig, pages_per_rank: Sequence[int]) -> None:
        """``pages_per_rank``: KV pages of each attention rank."""
        ranks, slots, page_size = len(pages_per_rank), config.max_running_requests, config.page_size
        self._config = config
        self._slots = slots
        self.max_total_tokens = min(config.context_length, min(pages_per_rank) * page_size)
        self._table = TableManager(ranks, slots)
        self._cache = CacheManager(
            pages_per_rank, page_size, slots, -(-self.max_total_tokens // page_size)
        )
        self._running = DecodeManager(ranks, slots)
        self._history = TokenHistory(ranks, slots, max(pages_per_rank), page_size)
        self._prefill = PrefillManager(config.chunked_prefill_size, slots)
        self._stops = StopTokens(ranks * slots)
        self._deltas = PlanDeltas(slots, self._cache)
        self._reqs: dict[int, Req] = {}
        self._by_slot: dict[int, Req] = {}
        self._waiting: list[tuple[int, Req]] = []
        # Retracted requests and retired slots, each with the last step that may name them.
        self._retracted: dict[int, tuple[int, Req]] = {}
        self._freeing: deque[tuple[int, I64]] = deque()
        self._in_flight: deque[_Planned] = deque()
        self._next_step = 0
        self._committed = -1
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
        return len(self._waiting) + len(self._retracted)

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._reqs) - self.waiting

    def add(self, uid: int, input_ids: I32, sampling: SamplingParams) -> None:
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
        insort(self._waiting, (uid, req), key=lambda entry: entry[0])

    def abort(self, uid: int) -> None:
        """Ends a request wherever it is; an unknown uid is ignored."""
        req = self._reqs.get(uid)
        if req is None:
            return
        if req.slot < 0:
            del self._reqs[uid]
            self._waiting = [entry for entry in self._waiting if entry[0] != uid]
        else:
            self._running.close(np.array([req.slot]))
            self._forget(req)

    def _forget(self, req: Req) -> None:
        del self._reqs[req.uid]
        self._retracted.pop(req.uid, None)
        self._stops.forget(req.slot)

    # ------------------------------------------------------------------------------- plan

    def plan(self) -> StepBundle | None:
        """The next step, or None if no rank has a row to run; raises StepOrderError if too many
        steps are in flight."""
        if not self.may_plan:
            raise StepOrderError(f"step {self._in_flight[0].step} must be committed first")
        spent = self._running.spent()
        if len(spent):
            self._retire(spent)
        if self._waiting:
            self._admit()
        sitting_out, grown = self._grow()
        ranks = [r for r in np.flatnonzero(self._running.count).tolist() if r not in sitting_out]
        if not ranks:
            return None
        chunks = self._prefill.deal(sitting_out) if self._prefill else {}
        planned, rows = self._lay_out(ranks, chunks, sitting_out)
        self._next_step += 1
        self._in_flight.append(planned)
        step, lanes = planned.step, min(self._config.num_lanes, rows)
        ffn = None
        if self._config.ffn_ranks:
            ffn = FfnStep(step=step, lanes=lanes, attention_ranks=pack_int32(ranks))
        return StepBundle(
            step=step,
            lanes=lanes,
            plans=self._deltas.plans(step, lanes, ranks, chunks, grown),
            ffn=ffn,
            extend_tokens=sum(chunk.tokens for chunk in chunks.values()),
        )

    def _retire(self, slots: I64) -> None:
        """The slots leave with the next plan; they are freed once their last step is committed."""
        if self._prefill:
            for slot in slots.tolist():
                self._prefill.discard(slot)
        self._running.retire(slots)
        self._deltas.retire(slots.tolist())
        self._freeing.append((self._next_step - 1, slots))
        self._free_committed()

    def _free_committed(self) -> None:
        self._requeue()
        while self._freeing and self._freeing[0][0] <= self._committed:
            slots = self._freeing.popleft()[1]
            self._cache.release(slots)
            for slot in slots.tolist():
                self._table.give_back(slot)
                del self._by_slot[slot]

    def _requeue(self) -> None:
        """Retracted requests whose last step is committed wait again, with what they generated."""
        for uid, (last, req) in list(self._retracted.items()):
            if last <= self._committed:
                del self._retracted[uid]
                req.tokens = np.concatenate([req.tokens, self._generated(req)])
                self._running.close(np.array([req.slot]))
                self._stops.forget(req.slot)
                req.slot = -1
                insort(self._waiting, (uid, req), key=lambda entry: entry[0])

    def _generated(self, req: Req) -> I32:
        """What the request generated since its admission, as far as it is committed."""
        count = int(self._running.generated[req.slot])
        if count == 0:
            return req.tokens[:0]
        pages = self._cache.pages_of(req.slot)
        return self._history.read(req.slot, pages, len(req.tokens) - 1, count)

    def _admit(self) -> None:
        """First come, first served: a head that does not fit holds the others back, so that none
        starves."""
        room = self._cache.free.tolist()
        running = self._running.count.tolist()
        slots: list[int] = []
        counts: list[int] = []
        while self._waiting:
            req = self._waiting[0][1]
            need = self._cache.pages_for(len(req.tokens) + 1)
            # A page of growth for each running request, so that none is pushed out at once.
            fitting = [
                r for r in range(len(room)) if self._table.free(r) and need + running[r] <= room[r]
            ]
            if not fitting:
                break
            self._waiting.pop(0)
            rank = min(fitting, key=lambda r: (-room[r], r))
            req.slot = self._table.take(rank)
            slots.append(req.slot)
            counts.append(self._cache.pages_for(len(req.tokens)))
            room[rank] -= counts[-1]
            running[rank] += 1
            self._enter(req)
        if slots:
            self._hold(np.array(slots), np.array(counts))

    def _enter(self, req: Req) -> None:
        sampling, slot, count = req.sampling, req.slot, len(req.tokens)
        self._by_slot[slot] = req
        self._running.enter(slot, req.uid, count, req.limit, sampling.ignore_eos)
        self._prefill.add(slot, req.uid, count)
        self._stops.watch(slot, sampling.stop_token_ids)
        admit = Admit(
            slot=slot % self._slots,
            uid=req.uid,
            tokens=pack_int32(req.tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
        )
        self._deltas.admit(slot, admit)

    def _hold(self, slots: I64, counts: I64) -> None:
        """Pages of newly admitted slots, for all their tokens."""
        by_rank = np.argsort(slots // self._slots, kind="stable")
        slots, counts = slots[by_rank], counts[by_rank]
        pages = self._cache.append(slots, counts)
        self._running.room[slots] = counts * self._config.page_size
        self._history.turn_page(slots, pages[np.cumsum(counts) - 1], counts - 1)

    def _grow(self) -> tuple[set[int], tuple[I64, I32]]:
        """A page for each slot whose next row begins one. Where they do not suffice, the latest
        arrivals are retracted, and the rank sits the step out until their pages come back."""
        slots = self._running.at_page_end()
        if not len(slots):
            return set(), (slots, _NO_PAGES)
        need = np.bincount(slots // self._slots, minlength=len(self._cache.free))
        sitting_out: set[int] = set()
        for rank in np.flatnonzero(need > self._cache.free).tolist():
            if not self._make_room(rank):
                sitting_out.add(rank)
            slots = self._running.at_page_end()
        if sitting_out:
            slots = slots[~np.isin(slots // self._slots, list(sitting_out))]
        index = self._cache.held[slots]
        pages = self._cache.append(slots, np.ones(len(slots), np.int64))
        self._running.room[slots] += self._config.page_size
        self._history.turn_page(slots, pages, index)
        return sitting_out, (slots, pages)

    def _make_room(self, rank: int) -> bool:
        """False if the rank must wait for pages that a step in flight still names."""
        while True:
            growing = np.count_nonzero(self._running.at_page_end() // self._slots == rank)
            if growing <= self._cache.free[rank]:
                return True
            if any((slots // self._slots == rank).any() for _, slots in self._freeing):
                return False
            slot = int(self._running.slots_of(rank)[-1])
            req = self._by_slot[slot]
            self._retracted[req.uid] = (self._next_step - 1, req)
            self.retractions += 1
            self._retire(np.array([slot]))

    def _lay_out(
        self, ranks: list[int], chunks: dict[int, Chunks], sitting_out: set[int]
    ) -> tuple[_Planned, int]:
        """Advances every slot that gets rows; the step, and the most rows of a rank."""
        running, order = self._running, self._running.order
        rows = running.decoding.copy()
        counts = running.decoding.copy()
        if not chunks and not sitting_out:
            running.fed += running.advance
        else:
            rows[list(sitting_out)] = 0
            samples = running.advance.copy()
            samples.reshape(-1, self._slots)[list(sitting_out)] = 0
            running.fed += samples
            for rank, chunk in chunks.items():
                rows[rank] += chunk.tokens
                counts[rank] += len(chunk.done)
                self._advance_prompts(rank, chunk)
                samples[chunk.done] = 1
            order = RowOrder(order.slots[samples[order.slots] > 0], running.uid)
        cells = self._history.cells(order.slots, running.fed[order.slots] - 1)
        planned = _Planned(self._next_step, ranks, counts[ranks].tolist(), order, cells)
        return planned, int(rows.max())

    def _advance_prompts(self, rank: int, chunk: Chunks) -> None:
        running = self._running
        first = rank * self._slots
        for slot, count in zip(chunk.pairs[::2], chunk.pairs[1::2], strict=True):
            running.fed[first + slot] += count
        for slot in chunk.done:
            running.decodes(slot)

    # ------------------------------------------------------------------------------- commit

    def commit(self, step: int, results: dict[int, I32]) -> TokenBatch:
        """Takes the sampled tokens of the oldest step in flight, by attention rank; raises
        StepOrderError for any other step or rank, BadResult for another count."""
        if not self._in_flight or self._in_flight[0].step != step:
            raise StepOrderError(f"step {step} is not the oldest in flight")
        planned = self._in_flight[0]
        if results.keys() != set(planned.ranks):
            raise StepOrderError(
                f"step {step} ran on ranks {planned.ranks}, results came from {sorted(results)}"
            )
        columns = [results[rank] for rank in planned.ranks]
        lengths = [len(column) for column in columns]
        if lengths != planned.counts:
            at = next(i for i, n in enumerate(lengths) if n != planned.counts[i])
            raise BadResult(
                planned.ranks[at],
                f"step {step}: rank {planned.ranks[at]} returned {lengths[at]} tokens, "
                f"{planned.counts[at]} were planned",
            )
        self._in_flight.popleft()
        self._committed = step
        batch = self._deliver(planned, np.concatenate(columns))
        self._free_committed()
        return batch

    def _deliver(self, planned: _Planned, tokens: I32) -> TokenBatch:
        running, rows, cells = self._running, planned.rows, planned.cells
        live = running.open[rows.slots]
        if not live.all():
            rows = RowOrder(rows.slots[live], running.uid)
            cells, tokens = cells[live], tokens[live]
        slots = rows.slots
        self._history.write(cells, tokens)
        generated = running.generated[slots] + 1
        running.generated[slots] = generated
        finished = np.zeros(len(slots), np.int8)
        finished[generated >= running.quota[slots]] = FinishReason.LENGTH
        for eos in self._config.eos_token_ids:
            ended = tokens == eos
            if ended.any():
                finished[ended & ~running.ignore_eos[slots]] = FinishReason.STOP
        self._stops.mark(slots, tokens, finished, FinishReason.STOP)
        over = slots[finished != FinishReason.RUNNING]
        if len(over):
            running.close(over)
            for slot in over.tolist():
                self._forget(self._by_slot[slot])
        by_uid = rows.by_uid
        return TokenBatch(planned.step, rows.uids[by_uid], tokens[by_uid], finished[by_uid])
