"""The running requests of one attention rank: plain arrays by slot, so that a steady step touches
no object per request.

    fed      rows planned so far; the next row has this position
    prompt   tokens known at admission: below it a slot extends, from it on it decodes
    limit    total tokens; the row at position limit - 2 samples the last one
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HISTORY_TOKENS = 64


class DecodeManager:
    """State by slot. ``resident``: in the worker's table. ``open``: still delivering tokens.

    ``count`` requests are resident; they entered with ``load_tokens`` tokens in all.
    """

    def __init__(self, slots: int) -> None:
        self.uid = np.full(slots, -1, np.int64)
        self.fed = np.zeros(slots, np.int32)
        self.prompt = np.zeros(slots, np.int32)
        self.limit = np.zeros(slots, np.int32)
        self.resident = np.zeros(slots, np.bool_)
        self.open = np.zeros(slots, np.bool_)
        self.ignore_eos = np.zeros(slots, np.bool_)
        self.last_step = np.full(slots, -1, np.int64)
        self.generated = np.zeros(slots, np.int32)
        self._history = np.zeros((slots, _HISTORY_TOKENS), np.int32)
        self._order: NDArray[np.int32] | None = None
        self.count = 0
        self.load_tokens = 0

    def enter(self, slot: int, uid: int, tokens: int, limit: int, ignore_eos: bool) -> None:
        """A request takes a slot."""
        self.uid[slot] = uid
        self.fed[slot] = 0
        self.prompt[slot] = tokens
        self.limit[slot] = limit
        self.resident[slot] = self.open[slot] = True
        self.ignore_eos[slot] = ignore_eos
        self.last_step[slot] = -1
        self.generated[slot] = 0
        self.count += 1
        self.load_tokens += tokens
        self._order = None

    def retire(self, slot: int) -> None:
        """The slot leaves the worker's table with the next plan."""
        self.resident[slot] = False
        self.count -= 1
        self.load_tokens -= int(self.prompt[slot])
        self._order = None

    @property
    def order(self) -> NDArray[np.int32]:
        """Resident slots in uid order: the order of a batch's rows."""
        if self._order is None:
            slots = np.flatnonzero(self.resident).astype(np.int32)
            self._order = slots[np.argsort(self.uid[slots])]
        return self._order

    def record(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """Appends one committed token to each slot's history."""
        at = self.generated[slots]
        if len(at) and at.max() >= self._history.shape[1]:
            self._history = np.concatenate([self._history, np.zeros_like(self._history)], axis=1)
        self._history[slots, at] = tokens
        self.generated[slots] = at + 1

    def history(self, slot: int) -> NDArray[np.int32]:
        """The tokens committed since this slot's admission."""
        return self._history[slot, : self.generated[slot]].copy()
