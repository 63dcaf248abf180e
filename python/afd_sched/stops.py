"""Stop tokens of single requests; a step in which nobody names any pays nothing for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_COLUMNS = 4
_NONE = -1


class StopTokens:
    """A few stop tokens per slot in columns, so that a step is matched at once; a request with
    more than that is looked up by itself."""

    def __init__(self, slots: int) -> None:
        self._few = np.full((slots, _COLUMNS), _NONE, np.int64)
        self._many: dict[int, frozenset[int]] = {}
        self._watching: set[int] = set()

    def watch(self, slot: int, ids: Sequence[int]) -> None:
        """The slot's request ends at any of ``ids``; what no token can be is left out."""
        ids = [token for token in ids if 0 <= token < 2**31]
        if not ids:
            return
        self._watching.add(slot)
        if len(ids) > _COLUMNS:
            self._many[slot] = frozenset(ids)
        else:
            self._few[slot, : len(ids)] = ids

    def forget(self, slots: Sequence[int]) -> None:
        """The slots' requests are over."""
        for slot in self._watching.intersection(slots) if self._watching else ():
            self._watching.remove(slot)
            self._many.pop(slot, None)
            self._few[slot] = _NONE

    def mark(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int32],
        finished: NDArray[np.int8],
        reason: int,
    ) -> None:
        """Sets ``reason`` where a slot's token is one of its own stop tokens."""
        if not self._watching:
            return
        finished[(self._few[slots] == tokens[:, None]).any(axis=1)] = reason
        if self._many:
            for at, slot in enumerate(slots.tolist()):
                if slot in self._many and int(tokens[at]) in self._many[slot]:
                    finished[at] = reason
