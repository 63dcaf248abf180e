"""Slots of one attention rank's request table."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class TableManager:
    """Hands out the lowest free slot, so that two runs of the same requests agree."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        heapify(self._free)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """A free slot; ask ``free`` first."""
        return heappop(self._free)

    def give_back(self, slot: int) -> None:
        """Returns a slot that no step in flight names."""
        heappush(self._free, slot)
