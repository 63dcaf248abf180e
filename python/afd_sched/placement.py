"""Which attention rank a request goes to: where its prefix lives, unless that rank has too much
to do; otherwise where the load is least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

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
        self._residents = residents
        self._slots = residents.table.slots
        self._reserved = [0] * len(residents.cache.pages)
        free = np.array([residents.table.free(r) for r in range(len(self._reserved))])
        room = residents.cache.free + np.array(residents.tree.evictable)
        # A page of growth for each running request, so that a new one pushes none out at once.
        self._spare = room - residents.running.count
        self._load = 2 - free / self._slots - room / residents.cache.pages
        self._load[free == 0] = np.inf

    def choose(self, tokens: int, path: Sequence[Node]) -> tuple[int, int] | None:
        """A rank for a request of ``tokens``, and how many nodes of its known prefix ``path`` the
        rank holds; None if it fits nowhere."""
        load, spare = self._load, self._spare
        need = self._residents.cache.pages_for(tokens + 1)
        least = int(load.argmin())
        bound = load[least] + CACHE_SLACK
        for count in range(len(path), 0, -1):
            holders = path[count - 1].holdings
            best = min(holders, key=load.__getitem__) if len(holders) > 1 else next(iter(holders))
            # Cached pages that nobody uses count as room, so only the others are saved.
            saved = sum(len(h.pages) for n in path[:count] if (h := n.holdings[best]).locks)
            if load[best] <= bound and load[best] < np.inf and need - saved <= spare[best]:
                return best, count
        if need > spare[least]:
            least = int(np.where(spare >= need, load, np.inf).argmin())
        if need > spare[least] or load[least] == np.inf:
            return None
        return least, sum(least in node.holdings for node in path)

    def take(self, rank: int, pages: int) -> None:
        """A request that needs ``pages`` of its own has entered."""
        residents = self._residents
        self._reserved[rank] += pages
        room = residents.cache.free[rank] + residents.tree.evictable[rank] - self._reserved[rank]
        self._spare[rank] = room - residents.running.count[rank]
        free = residents.table.free(rank)
        load = 2 - free / self._slots - room / residents.cache.pages[rank]
        self._load[rank] = load if free else np.inf
