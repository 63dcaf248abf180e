"""Slots of every attention rank's request table, numbered through: rank * slots + slot."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


class TableManager:
    """Hands out a rank's lowest free slot, so that two runs of the same requests agree.

    ``all_free``: free slots of all ranks together.
    """

    def __init__(self, ranks: int, slots: int) -> None:
        self.slots = slots
        self.all_free = ranks * slots
        # Ascending, so each is a heap already.
        self._free = [list(range(r * slots, (r + 1) * slots)) for r in range(ranks)]

    def free(self, rank: int) -> int:
        """Number of a rank's free slots."""
        return len(self._free[rank])

    def take(self, rank: int) -> int:
        """A free slot of a rank; ask ``free`` first."""
        self.all_free -= 1
        return heappop(self._free[rank])

    def close(self, rank: int) -> None:
        """The rank has no slots any more, free or taken, until ``reopen``."""
        self.all_free -= len(self._free[rank])
        self._free[rank] = []

    def reopen(self, rank: int) -> None:
        """All slots of the rank are free."""
        self._free[rank] = list(range(rank * self.slots, (rank + 1) * self.slots))
        self.all_free += self.slots

    def give_back(self, slots: Sequence[int]) -> None:
        """Returns slots that no step in flight names."""
        self.all_free += len(slots)
        for slot in slots:
            heappush(self._free[slot // self.slots], slot)
