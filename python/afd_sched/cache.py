"""Pages of every attention rank's KV cache, in arrays that all ranks share.

page   [ free | held by slots, or by the prefix cache, or both ]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from afd_sched.ints import positions_within, unpack_int32

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class CacheManager:
    """A stack of free pages per rank, and the pages each slot holds, in order of position.

    Slots are numbered through all ranks, pages within a rank. ``free`` [ranks]; ``held`` [slots]:
    pages a slot holds. Where a method takes several slots they are in ascending order of rank.
    """

    def __init__(
        self, pages: Sequence[int], page_size: int, slots_per_rank: int, pages_per_slot: int
    ) -> None:
        self.pages = np.array(pages, np.int64)
        self.page_size = page_size
        self._slots = slots_per_rank
        self._width = int(self.pages.max())
        # The lowest page is on top; the bottom of a smaller rank's row is never reached.
        self._stack = (self.pages[:, None] - 1 - np.arange(self._width)).astype(np.int32)
        self.free = self.pages.copy()
        self.held = np.zeros(len(pages) * slots_per_rank, np.int64)
        self._table = np.zeros((len(self.held), pages_per_slot), np.int32)

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` positions need."""
        return -(-tokens // self.page_size)

    def append(self, slots: I64, counts: I64 | None = None) -> I32:
        """Gives each slot ``counts`` more pages, or one; a rank's ``free`` must suffice. Returns
        them."""
        ranks = slots // self._slots
        if counts is not None:
            ranks = np.repeat(ranks, counts)
        taken = np.bincount(ranks, minlength=len(self.free))
        first = np.cumsum(taken) - taken
        top = self.free[ranks] - 1 - (np.arange(len(ranks)) - first[ranks])
        pages = self._stack[ranks, top]
        self.free -= taken
        at = self.held[slots]
        if counts is None:
            self._table[slots, at] = pages
            self.held[slots] = at + 1
        else:
            at_pages = np.repeat(at, counts) + positions_within(counts)
            self._table[np.repeat(slots, counts), at_pages] = pages
            self.held[slots] = at + counts
        return pages

    def held_pages(self, slots: I64) -> tuple[I64, I32]:
        """The pages of several slots end to end, with the slot of each."""
        counts = self.held[slots]
        most = int(counts.max(initial=0))
        pages = self._table[slots, :most]
        return np.repeat(slots, counts), pages[np.arange(most) < counts[:, None]]

    def share(self, slot: int, pages: bytes) -> None:
        """The first pages (int32 bytes) of an empty slot are others' too; who they belong to is not
        kept here."""
        shared = unpack_int32(pages)
        self._table[slot, : len(shared)] = shared
        self.held[slot] = len(shared)

    def drop(self, slots: I64) -> None:
        """The slots hold nothing any more; ``give_back`` says which pages are free for it."""
        self.held[slots] = 0

    def reset(self, rank: int) -> None:
        """All pages of a rank are free, and its slots hold none."""
        pages = int(self.pages[rank])
        self._stack[rank, :pages] = np.arange(pages - 1, -1, -1)
        self.free[rank] = pages
        self.held[rank * self._slots : (rank + 1) * self._slots] = 0

    def give_back(self, ranks: I64, pages: I32) -> None:
        """Frees pages that no step in flight names, with the rank of each; ranks ascend."""
        returned = np.bincount(ranks, minlength=len(self.free))
        first = np.cumsum(returned) - returned
        self._stack[ranks, self.free[ranks] + (np.arange(len(ranks)) - first[ranks])] = pages
        self.free += returned
