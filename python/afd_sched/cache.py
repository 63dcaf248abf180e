"""Pages of one attention rank's KV cache.

page   [ free | held by a slot | retired, but a step in flight still names it ]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class CacheManager:
    """A stack of free pages and the pages each slot holds, in order of position."""

    def __init__(self, pages: int, page_size: int, slots: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self.free = pages
        self._held: list[list[NDArray[np.int32]]] = [[] for _ in range(slots)]
        self.held_count = np.zeros(slots, np.int32)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all pages hold."""
        return self.pages * self.page_size

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` positions need."""
        return -(-tokens // self.page_size)

    def take(self, count: int) -> NDArray[np.int32]:
        """``count`` free pages; ask ``free`` first."""
        self.free -= count
        return self._stack[self.free : self.free + count][::-1].copy()

    def hold(self, slot: int, pages: NDArray[np.int32]) -> None:
        """Appends pages to what a slot holds."""
        self._held[slot].append(pages)
        self.held_count[slot] += len(pages)

    def hold_one_each(self, slots: NDArray[np.int32], pages: NDArray[np.int32]) -> None:
        """Appends one page to each of several slots."""
        for slot, page in zip(slots.tolist(), pages, strict=True):
            self._held[slot].append(page[None])
        self.held_count[slots] += 1

    def release(self, slot: int) -> None:
        """Frees all pages of a slot that no step in flight names."""
        for pages in self._held[slot]:
            self._stack[self.free : self.free + len(pages)] = pages
            self.free += len(pages)
        self._held[slot].clear()
        self.held_count[slot] = 0
