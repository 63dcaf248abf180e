"""The running requests of all attention ranks: plain arrays by slot, so that a steady step touches
no object per request or per rank.

    fed      rows planned so far; the next row has this position
    prompt   tokens known at admission: below it a slot extends, from it on it decodes
    room     positions that the slot's pages hold
    end      rows after which nothing is left to run: the row at end - 1 samples the last token

Slots that are not resident sort behind all others: their uid counts as LAST_UID, which none has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_NEVER = np.iinfo(np.int32).max
LAST_UID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Slots in the order of a step's rows: by rank, then by uid."""

    slots: I64
    uids: I64

    def only(self, rows: I64 | NDArray[np.bool_]) -> RowOrder:
        """Some of the rows, by index or mask."""
        return RowOrder(self.slots[rows], self.uids[rows])


class DecodeManager:
    """State by slot; slots are numbered through all ranks.

    A slot is *resident* while it is in its worker's table and *open* while it still delivers
    tokens. ``count`` [ranks]: resident slots; ``decoding`` [ranks]: those of them that decode.
    ``advance`` is 1 where a slot decodes, else 0.
    """

    def __init__(self, ranks: int, slots: int) -> None:
        self._slots = slots
        total = ranks * slots
        self.uid = np.full(total, -1, np.int64)
        self.fed = np.zeros(total, np.int32)
        self.prompt = np.zeros(total, np.int32)
        self.quota = np.zeros(total, np.int32)
        self.generated = np.zeros(total, np.int32)
        self.open = np.zeros(total, np.bool_)
        self.ignore_eos = np.zeros(total, np.bool_)
        self.advance = np.zeros(total, np.int32)
        # A slot that is not resident never reaches these.
        self.room = np.full(total, _NEVER, np.int32)
        self.end = np.full(total, _NEVER, np.int32)
        self.count = np.zeros(ranks, np.int64)
        self.decoding = np.zeros(ranks, np.int64)
        self._key = np.full((ranks, slots), LAST_UID, np.int64)
        self._sorted = np.tile(np.arange(slots), (ranks, 1))
        self._changed = np.ones(ranks, np.bool_)
        self._order = RowOrder(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def enter(self, slots: I64, uids: I64, tokens: I64, limits: I64, ignore_eos: I64) -> None:
        """Requests of ``tokens`` known tokens, at most ``limits`` in all, take slots; their ``fed``
        and ``room`` are set when they get pages."""
        self.uid[slots] = self._key.reshape(-1)[slots] = uids
        self.prompt[slots] = tokens
        self.quota[slots] = limits - tokens
        self.end[slots] = limits - 1
        self.generated[slots] = 0
        self.open[slots] = True
        self.ignore_eos[slots] = ignore_eos
        ranks = slots // self._slots
        self.count += np.bincount(ranks, minlength=len(self.count))
        self._changed[ranks] = True

    def extend(self, slots: I64, counts: NDArray[np.int32], done: I64) -> None:
        """Prompts advance; those of ``done`` have run, and decode from the next step on."""
        self.fed[slots] += counts
        self.advance[done] = 1
        self.decoding += np.bincount(done // self._slots, minlength=len(self.count))

    def close(self, slots: I64) -> None:
        """No more tokens are delivered; the next plan retires those that are still resident."""
        self.open[slots] = False
        self.end[slots] = np.where(self.end[slots] == _NEVER, _NEVER, 0)

    def spent(self) -> I64:
        """Resident slots with nothing left to run: closed, or their last row is planned."""
        return np.flatnonzero(self.fed >= self.end)

    def at_page_end(self) -> I64:
        """Resident slots whose next row needs a new page; a prompt's pages come with it."""
        return np.flatnonzero(self.fed >= self.room)

    def retire(self, slots: I64) -> None:
        """The slots leave the workers' tables with the next plans."""
        ranks = slots // self._slots
        self.count -= np.bincount(ranks, minlength=len(self.count))
        leaving = ranks[self.advance[slots] > 0]
        self.decoding -= np.bincount(leaving, minlength=len(self.count))
        self.advance[slots] = 0
        self.room[slots] = self.end[slots] = _NEVER
        self._key.reshape(-1)[slots] = LAST_UID
        self._changed[ranks] = True

    @property
    def order(self) -> RowOrder:
        """All resident slots."""
        rows = np.flatnonzero(self._changed)
        if len(rows):
            self._changed[:] = False
            slots = np.argsort(self._key[rows], axis=1)
            self._sorted[rows] = slots + (rows * self._slots)[:, None]
            taken = np.arange(self._slots) < self.count[:, None]
            slots = self._sorted[taken]
            self._order = RowOrder(slots, self.uid[slots])
        return self._order

    def slots_of(self, rank: int) -> I64:
        """A rank's resident slots, by uid."""
        _ = self.order
        return self._sorted[rank, : self.count[rank]]
