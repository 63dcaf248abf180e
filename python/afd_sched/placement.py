"""Which attention rank a request goes to: where its prefix lives, unless that rank has too much
to do; otherwise where the load is least."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

from afd_sched.radix import Node
from afd_sched.residents import Residents

# Load is 0 for an empty rank and 2 for one whose slots and pages are all taken.
CACHE_SLACK: Final = 0.125


class Placement:
    """The ranks as they are at one plan; ``take`` keeps it true while requests are admitted.

    A rank's load is the share of its slots and the share of its pages that are in use, added, so
    that ranks of different capacity fill evenly. A rank without a free slot is out of the question.
    """

    def __init__(self, residents: Residents) -> None:
        self._slots = residents.table.slots
        self._page_size = residents.cache.page_size
        self._table = residents.table
        self._evictable = residents.tree.evictable
        self._pages: list[int] = residents.cache.pages.tolist()
        self._running: list[int] = residents.running.count.tolist()
        # Free, less what admissions of this plan have been promised.
        self._free: list[int] = residents.cache.free.tolist()
        # A page of growth for each running request, so that a new one pushes none out at once.
        self._spare = [0] * len(self._free)
        self._load = [inf] * len(self._free)
        for rank in range(len(self._free)):
            self._measure(rank)
        # (load, rank) of every rank, and of loads that are no longer true.
        self._lightest = list(zip(self._load, range(len(self._load)), strict=True))
        heapify(self._lightest)

    def _measure(self, rank: int) -> None:
        room, slots = self._free[rank] + self._evictable[rank], self._table.free(rank)
        self._spare[rank] = room - self._running[rank]
        self._load[rank] = 2 - slots / self._slots - room / self._pages[rank] if slots else inf

    def choose(self, tokens: int, path: Sequence[Node]) -> tuple[int, int] | None:
        """A rank for a request of ``tokens``, and how many nodes of its known prefix ``path`` the
        rank holds; None if it fits nowhere."""
        load, spare, lightest = self._load, self._spare, self._lightest
        need = -(-(tokens + 1) // self._page_size)
        while lightest[0][0] != load[lightest[0][1]]:
            heappop(lightest)
        least = lightest[0][1]
        if load[least] == inf:
            return None
        if path and (cached := self._cached(need, path, load[least] + CACHE_SLACK)):
            return cached
        if need > spare[least]:
            roomy = [rank for rank, room in enumerate(spare) if room >= need]
            least = min(roomy, key=load.__getitem__, default=least)
            if need > spare[least] or load[least] == inf:
                return None
        return least, sum(least in node.holdings for node in path) if path else 0

    def _cached(self, need: int, path: Sequence[Node], bound: float) -> tuple[int, int] | None:
        """The rank that holds most of the path, of those whose load is within ``bound``."""
        for count in range(len(path), 0, -1):
            best = min(path[count - 1].holdings, key=self._load.__getitem__)
            # Cached pages that nobody uses count as room, so only the others are saved.
            saved = sum(h.count for n in path[:count] if (h := n.holdings[best]).locks)
            if self._load[best] <= bound and need - saved <= self._spare[best]:
                return best, count
        return None

    def take(self, rank: int, pages: int, path: Sequence[Node]) -> None:
        """A request that needs ``pages`` of its own beside its cached ``path`` has entered."""
        self._free[rank] -= pages
        self._running[rank] += 1
        if path or not self._table.free(rank):
            self._measure(rank)
        else:
            self._spare[rank] -= pages + 1
            self._load[rank] += 1 / self._slots + pages / self._pages[rank]
        lightest = self._lightest
        (heapreplace if lightest[0][1] == rank else heappush)(lightest, (self._load[rank], rank))
