"""What the workers do not know yet: gathered between plans, told in a rank's next plan."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from afd_sched.cache import CacheManager
from afd_sched.ints import pack_few_int32, pack_int32, unpack_pairs
from afd_sched.messages import Admit, StepPlan
from afd_sched.req import Req

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
T = TypeVar("T")
_NOBODY: I64 = np.zeros(0, np.int64)


def _take(deltas: dict[int, T], ranks: Container[int]) -> dict[int, T]:
    """Takes out what is for ``ranks``."""
    return {rank: deltas.pop(rank) for rank in [*deltas] if rank in ranks}


class PlanDeltas:
    """Deltas by rank; slots come numbered through all ranks and leave numbered within theirs."""

    def __init__(self, slots_per_rank: int, cache: CacheManager) -> None:
        self._slots = slots_per_rank
        self._cache = cache
        self._retired: dict[int, list[int]] = {}
        self._admitted: dict[int, dict[int, Admit]] = {}
        # (slot, page) pairs as they are sent, and whose they are.
        self._grown: dict[int, bytes] = {}
        self._growing = _NOBODY

    def admit(self, entered: Sequence[Req], admits: Sequence[Admit]) -> None:
        """Requests enter slots, with whatever pages these hold when that is told."""
        admitted, slots = self._admitted, self._slots
        for req, admit in zip(entered, admits, strict=True):
            of_rank = admitted.get(rank := req.slot // slots)
            if of_rank is None:
                admitted[rank] = {req.slot: admit}
            else:
                of_rank[req.slot] = admit

    def grow(self, slots: I64, pages: I32) -> None:
        """Each slot gets one more page; slots in ascending order of rank, none of them new."""
        self._growing = np.concatenate((self._growing, slots))
        for rank, pairs in self._by_rank(slots, pages).items():
            self._grown[rank] = self._grown.get(rank, b"") + pairs

    def retire(self, slots: list[int]) -> None:
        """Slots leave; of one that was never announced nothing is said at all."""
        if len(self._growing):
            for slot in self._growing[np.isin(self._growing, slots)].tolist():
                self._shrink(slot)
        for slot in slots:
            rank = slot // self._slots
            if slot in self._admitted.get(rank, ()):
                del self._admitted[rank][slot]
            else:
                self._retired.setdefault(rank, []).append(slot - rank * self._slots)

    def _shrink(self, slot: int) -> None:
        """The slot leaves before it was told of its page."""
        rank = slot // self._slots
        pairs = unpack_pairs(self._grown[rank])
        self._grown[rank] = pack_int32(pairs[pairs[:, 0] != slot - rank * self._slots])

    def forget(self, rank: int) -> None:
        """The rank's worker is gone, and with it the table that the deltas were for."""
        self._retired.pop(rank, None)
        self._admitted.pop(rank, None)
        self._grown.pop(rank, None)
        self._growing = self._growing[self._growing // self._slots != rank]

    def plans(
        self,
        step: int,
        lanes: int,
        ranks: list[int],
        extended: tuple[I64, I32],
    ) -> dict[int, StepPlan]:
        """The plan of each of ``ranks``, which share one object where nothing changed.
        ``extended``: slots that run prompt tokens, in order of rank, and how many."""
        plans = dict.fromkeys(ranks, StepPlan(step=step, lanes=lanes))
        # Mostly all of them, but for ranks that have nothing to run.
        retired = _take(self._retired, plans)
        admitted = _take(self._admitted, plans)
        grown, first = _take(self._grown, plans), self._first_pages(admitted)
        growing = self._growing
        untold = [*self._grown]
        self._growing = growing[np.isin(growing // self._slots, untold)] if untold else _NOBODY
        extend = self._by_rank(*extended)
        for rank in {**grown, **retired, **admitted, **extend}:
            plans[rank] = StepPlan(
                step,
                lanes,
                pack_few_int32(retired[rank]) if rank in retired else b"",
                tuple(admitted[rank].values()) if rank in admitted else (),
                grown.get(rank, b"") + first.get(rank, b""),
                extend.get(rank, b""),
            )
        return plans

    def _first_pages(self, admitted: dict[int, dict[int, Admit]]) -> dict[int, bytes]:
        """All pages of newly announced slots, by rank."""
        if not admitted:
            return {}
        slots = [slot for rank in sorted(admitted) for slot in admitted[rank]]
        return self._by_rank(*self._cache.held_pages(np.array(slots, np.int64)))

    def _by_rank(self, slots: I64, values: I32) -> dict[int, bytes]:
        """Pairs of (slot, value) as bytes; slots in ascending order of rank."""
        if not len(slots):
            return {}
        ranks = slots // self._slots
        pairs = np.empty((len(slots), 2), np.int32)
        pairs[:, 0] = slots - ranks * self._slots
        pairs[:, 1] = values
        data = pack_int32(pairs)
        counts = np.bincount(ranks)
        ends = 8 * np.cumsum(counts)
        parts = zip((ends - 8 * counts).tolist(), ends.tolist(), strict=True)
        return {rank: data[first:end] for rank, (first, end) in enumerate(parts) if first < end}
