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

    def turn_page(self, slots: I64, pages: I32, index: I64) -> None:
        """Each slot's last page is ``pages``, the ``index``-th it holds."""
        self._base[slots] = (self._first_page[slots] + pages - index) * self._page_size

    def cells(self, slots: I64, positions: I32) -> I64:
        """Cells of rows at ``positions``, which lie on each slot's last page."""
        cells: I64 = self._base[slots] + positions
        return cells

    def write(self, cells: I64, tokens: I32) -> None:
        """Keeps committed tokens."""
        self._flat[cells] = tokens

    def read(self, slot: int, pages: I32, first: int, count: int) -> I32:
        """Tokens that the ``count`` rows from position ``first`` on sampled; ``pages`` are all
        that the slot holds."""
        begin, end = first // self._page_size, (first + count - 1) // self._page_size + 1
        rows: I32 = self._tokens[self._first_page[slot] + pages[begin:end]].reshape(-1)
        offset = first - begin * self._page_size
        return rows[offset : offset + count]
