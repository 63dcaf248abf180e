"""From waiting to running: refusal, order, placement, and what the workers are told of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afd_sched.deltas import PlanDeltas
from afd_sched.ints import pack_int32
from afd_sched.messages import Admit, SamplingParams
from afd_sched.placement import Placement
from afd_sched.prefill import PrefillManager
from afd_sched.req import Req, RequestRefused
from afd_sched.residents import Residents
from afd_sched.stops import StopTokens
from afd_sched.waiting import WaitingQueue


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
        max_total_tokens: int,
    ) -> None:
        self._residents = residents
        self._prefill = prefill
        self._stops = stops
        self._deltas = deltas
        self._max_total_tokens = max_total_tokens
        self._slots = residents.table.slots
        self._page_size = residents.cache.page_size
        self.queue = WaitingQueue()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def request(
        self, uid: int, input_ids: NDArray[np.int32], sampling: SamplingParams, now: int
    ) -> Req:
        """Queues a new request; raises RequestRefused if it can never run."""
        count, most = len(input_ids), self._max_total_tokens
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
        limit = min(count + sampling.max_new_tokens, most)
        req = Req(uid, pack_int32(input_ids), sampling, limit, (now, uid))
        self.queue.add(req)
        return req

    def admit(self, now: int) -> None:
        """First come, first served: a head that does not fit holds the others back, so that none
        starves."""
        residents = self._residents
        placement = Placement(residents)
        entered: list[int] = []
        for req in self.queue:
            path = residents.match(req.tokens)
            chosen = placement.choose(req.count, path)
            if chosen is None:
                break
            rank, nodes = chosen
            cached = residents.enter(req, rank, path[:nodes])
            placement.take(rank, residents.cache.pages_for(req.count) - cached)
            entered.append(req.slot)
            self._announce(req, cached * self._page_size)
        self.queue.take(len(entered))
        if entered:
            residents.settle(entered, now)
        elif residents.untidy:
            # What requests that have left still hold may be what is missing.
            residents.tidy(now)
            self.admit(now)

    def _announce(self, req: Req, cached: int) -> None:
        sampling, slot, count = req.sampling, req.slot, req.count
        self._prefill.add(req, count - cached)
        self._stops.watch(slot, sampling.stop_token_ids)
        self.prompt_tokens += count
        self.cached_tokens += cached
        admit = Admit(
            slot % self._slots,
            req.uid,
            req.tokens,
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.seed,
            cached,
        )
        self._deltas.admit(slot, admit)
