"""Which prompts advance in a step, and by how much: chunked prefill under a token budget."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from afd_sched.req import Req

_ORDER = attrgetter("order")


class Deal:
    """One step's prompt tokens: ``counts`` of each of ``slots``, and of these ``done``: those whose
    prompt ends in this step. Slots are numbered through all ranks, and in order of rank."""

    __slots__ = ("counts", "done", "slots")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.counts: list[int] = []
        self.done: list[int] = []


class PrefillManager:
    """Prompts that have not run to their end, by rank."""

    def __init__(self, budget_tokens: int, slots_per_rank: int) -> None:
        self._budget = budget_tokens
        self._slots = slots_per_rank
        self._prompts: dict[int, list[Req]] = {}

    def add(self, entered: Sequence[Req]) -> None:
        """Requests have got slots, and have ``remaining`` tokens of their prompts to run."""
        running, slots = self._prompts, self._slots
        for req in entered:
            prompts = running.get(rank := req.slot // slots)
            if prompts is None:
                running[rank] = [req]
            elif prompts[-1].order > req.order:
                insort(prompts, req, key=_ORDER)
            else:
                prompts.append(req)

    def discard(self, slots: list[int]) -> None:
        """The slots run no more of their prompts, if they have any left."""
        for slot in slots if self._prompts else ():
            rank = slot // self._slots
            if rank in self._prompts:
                self._keep(rank, [p for p in self._prompts[rank] if p.slot != slot])

    def forget(self, rank: int) -> None:
        """No prompt of a rank runs on."""
        self._prompts.pop(rank, None)

    def _keep(self, rank: int, prompts: list[Req]) -> None:
        if prompts:
            self._prompts[rank] = prompts
        else:
            del self._prompts[rank]

    def deal(self, sitting_out: set[int]) -> Deal:
        """One step's prompt tokens, first request first within each rank."""
        deal = Deal()
        for rank in sorted(self._prompts):
            if rank in sitting_out:
                continue
            prompts = self._prompts[rank]
            counts = [req.remaining for req in prompts]
            if sum(counts) > self._budget:
                self._deal_part(rank, prompts, deal)
                continue
            slots = [req.slot for req in prompts]
            deal.slots += slots
            deal.counts += counts
            deal.done += slots
            del self._prompts[rank]
        return deal

    def _deal_part(self, rank: int, prompts: list[Req], deal: Deal) -> None:
        """The first of a rank's prompts, as far as the budget goes."""
        left = self._budget
        for at, req in enumerate(prompts):
            if left == 0:
                self._prompts[rank] = prompts[at:]
                return
            count = min(req.remaining, left)
            left -= count
            req.remaining -= count
            deal.slots.append(req.slot)
            deal.counts.append(count)
            if req.remaining:
                self._prompts[rank] = prompts[at:]
                return
            deal.done.append(req.slot)
