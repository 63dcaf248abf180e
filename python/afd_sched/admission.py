"""From waiting to running: refusal, order, placement, and what the workers are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from afd_sched.deltas import PlanDeltas
from afd_sched.messages import Admit, SamplingParams
from afd_sched.placement import Placement
from afd_sched.policy import SchedulePolicy, in_order, place
from afd_sched.prefill import PrefillManager
from afd_sched.req import TOKEN_BYTES, Req, RequestRefused
from afd_sched.residents import Residents
from afd_sched.stops import StopTokens
from afd_sched.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """``total_tokens``: most tokens of a request, prompt and answer; ``queued_requests``: most
    that may wait for a slot, None for any number; ``priorities``: whether requests may have one."""

    total_tokens: int
    queued_requests: int | None
    priorities: bool
    policy: SchedulePolicy


class Admission:
    """The queue of waiting requests, and how they get their slots.

    ``prompt_tokens`` and ``cached_tokens`` count over admissions: tokens that were known, and those
    of them that the prefix cache had.
    """

    def __init__(
        self,
        residents: Residents,
        prefill: PrefillManager,
        stops: StopTokens,
        deltas: PlanDeltas,
        limits: AdmissionLimits,
    ) -> None:
        self._residents = residents
        self._prefill = prefill
        self._stops = stops
        self._deltas = deltas
        self._limits = limits
        self._slots = residents.table.slots
        self._page_size = residents.cache.page_size
        self.queue = WaitingQueue()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def request(
        self,
        uid: int,
        tokens: bytes,
        sampling: SamplingParams,
        priority: int,
        now: int,
    ) -> Req:
        """Queues a new request; raises RequestRefused if it can never run, or not now."""
        count, ragged = divmod(len(tokens), TOKEN_BYTES)
        most = self._limits.total_tokens
        if ragged:
            raise RequestRefused(f"a prompt is whole int32 tokens, not {len(tokens)} bytes")
        if sampling.max_new_tokens < 1:
            raise RequestRefused(
                f"max_new_tokens must be at least 1, not {sampling.max_new_tokens}"
            )
        if count == 0:
            raise RequestRefused("the prompt is empty")
        if count >= most:
            raise RequestRefused(
                f"a prompt of {count} tokens leaves no room to answer: a request may have "
                f"{most} tokens in all"
            )
        order = place(uid, priority, self._limits.priorities, now)
        self._check_queue()
        limit = min(count + sampling.max_new_tokens, most)
        req = Req(uid, tokens, count, sampling, limit, order, now)
        self.queue.add(req)
        return req

    def _check_queue(self) -> None:
        most = self._limits.queued_requests
        if most is None:
            return
        # A request for which there is a free slot does not wait in earnest.
        waiting = len(self.queue) - self._residents.table.all_free
        if waiting >= most:
            raise RequestRefused(
                f"the queue is full: {waiting} requests wait for a slot already and "
                f"--max-queued-requests is {most}; try again later"
            )

    def admit(self, now: int) -> None:
        """Admits what fits, in the order of the policy: the first that does not fit holds the
        others back, so that none starves."""
        residents = self._residents
        placement = Placement(residents)
        entered: list[Req] = []
        for req in in_order(self._limits.policy, self.queue, residents, now):
            path = residents.match(req.tokens)
            chosen = placement.choose(req.count, path)
            if chosen is None:
                break
            rank, nodes = chosen
            path = path[:nodes]
            cached = residents.enter(req, rank, path)
            placement.take(rank, residents.cache.pages_for(req.count) - cached, path)
            req.remaining = req.count - cached * self._page_size
            entered.append(req)
        if entered:
            self.queue.remove(entered)
            residents.settle(entered, now)
            self._announce(entered)
        elif residents.untidy:
            # What requests that have left still hold may be what is missing.
            residents.tidy(now)
            self.admit(now)

    def _announce(self, entered: list[Req]) -> None:
        slots = self._slots
        admits: list[Admit] = []
        for req in entered:
            sampling = req.sampling
            if sampling.stop_token_ids:
                self._stops.watch(req.slot, sampling.stop_token_ids)
            admits.append(
                Admit(
                    req.slot % slots,
                    req.uid,
                    req.tokens,
                    sampling.temperature,
                    sampling.top_p,
                    sampling.top_k,
                    sampling.seed,
                    req.count - req.remaining,
                )
            )
        tokens = sum([req.count for req in entered])
        self.prompt_tokens += tokens
        self.cached_tokens += tokens - sum([req.remaining for req in entered])
        self._prefill.add(entered)
        self._deltas.admit(entered, admits)
