"""Which prompts advance in a step, and by how much: chunked prefill under a token budget."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from afd_sched.req import Req


class Chunks:
    """One rank's prompt tokens of one step: ``pairs`` slot, tokens, slot, tokens, … with the slots
    numbered within the rank; ``rows`` tokens in all."""

    __slots__ = ("pairs", "rows")

    def __init__(self) -> None:
        self.pairs: list[int] = []
        self.rows = 0


_ORDER = attrgetter("order")


class Deal:
    """One step's chunks by rank; ``slots`` and ``counts`` of them all, and of them ``done``: slots
    whose prompt ends in this step. Slots are numbered through all ranks."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunks] = {}
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
        """One step's chunks, first request first within each rank."""
        deal = Deal()
        for rank in [r for r in self._prompts if r not in sitting_out]:
            chunks = deal.chunks[rank] = Chunks()
            first, left, done = rank * self._slots, self._budget, 0
            for prompt in self._prompts[rank]:
                count = min(prompt.remaining, left)
                if count == 0:
                    break
                left -= count
                chunks.pairs += (prompt.slot - first, count)
                deal.slots.append(prompt.slot)
                deal.counts.append(count)
                prompt.remaining -= count
                if prompt.remaining == 0:
                    deal.done.append(prompt.slot)
                    done += 1
            chunks.rows = self._budget - left
            if done:
                self._keep(rank, self._prompts[rank][done:])
        return deal
