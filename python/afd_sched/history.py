"""Committed tokens, kept in cells that lie as the KV cache lies: rank, page, offset.

The cell of position p holds the token that the row at p sampled. A row has a page when it is
planned, so its cell exists, and the store is as bounded as the cache is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class TokenHistory:
    """One int32 per KV position of all ranks; memory is touched as positions are."""

    def __init__(
        self, ranks: int, slots_per_rank: int, pages_per_rank: int, page_size: int
    ) -> None:
        self._page_size = page_size
        self._tokens = np.zeros((ranks * pages_per_rank, page_size), np.int32)
        self._flat = self._tokens.reshape(-1)
        self._first_page = np.repeat(np.arange(ranks) * pages_per_rank, slots_per_rank)
        self._base = np.zeros(ranks * slots_per_rank, np.int64)
        self._unwritten: list[tuple[I64, I32]] = []

    def turn_page(self, slots: I64, pages: I32, index: I64) -> None:
        """Each slot's last page is ``pages``, the ``index``-th it holds."""
        self._base[slots] = (self._first_page[slots] + pages - index) * self._page_size

    def cells(self, slots: I64, ends: I32) -> I64:
        """The cells of some slots' last rows, which lie on their last pages; ``ends`` [all slots]:
        rows of every slot."""
        cells: I64 = (self._base + ends)[slots] - 1
        return cells

    def write(self, cells: I64, tokens: I32) -> None:
        """Keeps committed tokens; each lies in a cache line of its own, so ``flush`` puts them
        there when nobody waits."""
        self._unwritten.append((cells, tokens))

    def flush(self) -> None:
        """Puts kept tokens where they belong; ``read`` does it too."""
        for cells, tokens in self._unwritten:
            self._flat[cells] = tokens
        self._unwritten.clear()

    def read(self, slots: I64, pages: I32, counts: I64) -> bytes:
        """The cells of several slots' pages end to end, a page at a time, as int32 bytes.
        ``pages``: ``counts`` of each slot."""
        self.flush()
        rows: I32 = self._tokens[np.repeat(self._first_page[slots], counts) + pages]
        return rows.tobytes()
