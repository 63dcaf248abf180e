"""One attention rank as the scheduler sees it: admission, one step's rows, and freeing.

slot   [ free | waiting to be admitted by the next plan | in the worker's table |
         retired, last step still in flight ]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd_sched.cache import CacheManager
from afd_sched.decode import DecodeManager
from afd_sched.ints import pack_int32
from afd_sched.messages import Admit, StepPlan
from afd_sched.prefill import PrefillAdder
from afd_sched.req import Req
from afd_sched.table import TableManager

_NO_PAIRS = np.zeros((0, 2), np.int32)


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank does in a step: its rows, its prompt tokens, and the slots that sample."""

    rows: int
    extend_tokens: int
    extend: NDArray[np.int32]
    sampling_slots: NDArray[np.int32]
    sampling_uids: NDArray[np.int64]


class RankScheduler:
    """Book-keeping of one attention rank; deltas gather until the rank's next plan."""

    def __init__(self, slots: int, pages: int, page_size: int, chunked_prefill_size: int) -> None:
        self.table = TableManager(slots)
        self.cache = CacheManager(pages, page_size, slots)
        self.running = DecodeManager(slots)
        self._chunk = chunked_prefill_size
        self._freeing: list[int] = []
        self._retired: list[int] = []
        self._admitted: list[Admit] = []
        self._pages: list[NDArray[np.int32]] = []

    # -------------------------------------------------------------------------- admission

    def fits(self, tokens: int) -> bool:
        """Whether a request of ``tokens`` may enter now: a slot, its pages, and a page of growth
        for each running request, so that it does not push one out at once."""
        growth = self.running.count
        need = self.cache.pages_for(tokens) + growth
        return self.table.free > 0 and need <= self.cache.free

    def admit(self, req: Req) -> None:
        """Takes a slot and pages for the request's tokens; ask ``fits`` first."""
        slot = self.table.take()
        req.slot = slot
        count = len(req.tokens)
        self.running.enter(slot, req.uid, count, req.limit, req.sampling.ignore_eos)
        self._grow(np.full(self.cache.pages_for(count), slot, np.int32))
        params = req.sampling
        self._admitted.append(
            Admit(
                slot=slot,
                uid=req.uid,
                tokens=pack_int32(req.tokens),
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                seed=params.seed,
            )
        )

    def _grow(self, slots: NDArray[np.int32]) -> None:
        pages = self.cache.take(len(slots))
        if len(slots) and (slots == slots[0]).all():
            self.cache.hold(int(slots[0]), pages)
        else:
            self.cache.hold_one_each(slots, pages)
        self._pages.append(np.stack([slots, pages], axis=1))

    # -------------------------------------------------------------------------- leaving

    def retire(self, slot: int, committed: int) -> None:
        """The slot leaves with the next plan; it is freed once its last step is committed."""
        self.running.retire(slot)
        uid = int(self.running.uid[slot])
        if any(a.slot == slot and a.uid == uid for a in self._admitted):
            # Never announced, so there is nothing to retract.
            self._admitted = [a for a in self._admitted if a.slot != slot]
            self._pages = [p[p[:, 0] != slot] for p in self._pages]
        else:
            self._retired.append(slot)
        self._freeing.append(slot)
        self.free_committed(committed)

    def free_committed(self, committed: int) -> None:
        """Returns to their pools the retired slots that no step after ``committed`` names."""
        if not self._freeing:
            return
        last = self.running.last_step
        freed = [slot for slot in self._freeing if last[slot] <= committed]
        for slot in freed:
            self.cache.release(slot)
            self.table.give_back(slot)
        self._freeing = [slot for slot in self._freeing if last[slot] > committed]

    def spent(self) -> NDArray[np.int32]:
        """Resident slots with nothing left to run: closed, or their last row is planned."""
        order, running = self.running.order, self.running
        over = ~running.open[order] | (running.fed[order] >= running.limit[order] - 1)
        return order[over]

    # -------------------------------------------------------------------------- a step

    def missing_pages(self) -> int:
        """Pages that this step's decode rows need beyond the free ones."""
        return max(0, len(self._slots_at_page_end()) - self.cache.free)

    def _slots_at_page_end(self) -> NDArray[np.int32]:
        running, order = self.running, self.running.order
        fed = running.fed[order]
        room = self.cache.held_count[order] * self.cache.page_size
        return order[(fed >= running.prompt[order]) & (fed >= room)]

    @property
    def awaits_pages(self) -> bool:
        """Whether retired slots still wait for their last step to be committed."""
        return bool(self._freeing)

    def latest(self) -> int:
        """The resident slot of the latest arrival."""
        return int(self.running.order[-1])

    def step(self, step: int) -> RankStep:
        """Plans one step's rows; pages must suffice (``missing_pages`` is 0)."""
        running = self.running
        growing = self._slots_at_page_end()
        if len(growing):
            self._grow(growing)
        order = running.order
        fed, prompt = running.fed[order], running.prompt[order]
        extending = fed < prompt
        # A slot that gets no row is named too: it is in the worker's table, with its pages.
        running.last_step[order] = step
        if not extending.any():
            running.fed[order] += 1
            return RankStep(len(order), 0, _NO_PAIRS, order, running.uid[order])
        adder = PrefillAdder(self._chunk)
        counts = np.ones(len(order), np.int32)
        for at in np.flatnonzero(extending).tolist():
            counts[at] = adder.add(int(order[at]), int(prompt[at] - fed[at]))
        running.fed[order] += counts
        runs = counts > 0
        sampling = order[runs & (running.fed[order] >= prompt)]
        pairs = adder.pairs()
        return RankStep(
            int(counts.sum()), int(pairs[:, 1].sum()), pairs, sampling, running.uid[sampling]
        )

    def take_plan(self, step: int, lanes: int, extend: NDArray[np.int32]) -> StepPlan:
        """The plan message with every delta gathered since the last one."""
        plan = StepPlan(
            step=step,
            lanes=lanes,
            retired=pack_int32(self._retired),
            admitted=tuple(self._admitted),
            pages=pack_int32(np.concatenate(self._pages)) if self._pages else b"",
            extend=pack_int32(extend),
        )
        self._retired, self._admitted, self._pages = [], [], []
        return plan
