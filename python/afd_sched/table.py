"""Slots of every attention rank's request table, numbered through: rank * slots + slot."""

from __future__ import annotations

from heapq import heappop, heappush


class TableManager:
    """Hands out a rank's lowest free slot, so that two runs of the same requests agree."""

    def __init__(self, ranks: int, slots: int) -> None:
        self.slots = slots
        # Ascending, so each is a heap already.
        self._free = [list(range(r * slots, (r + 1) * slots)) for r in range(ranks)]

    def free(self, rank: int) -> int:
        """Number of a rank's free slots."""
        return len(self._free[rank])

    def take(self, rank: int) -> int:
        """A free slot of a rank; ask ``free`` first."""
        return heappop(self._free[rank])

    def give_back(self, slot: int) -> None:
        """Returns a slot that no step in flight names."""
        heappush(self._free[slot // self.slots], slot)
