"""Requests that hold a slot, from their admission until no step in flight names them.

slot   [ free | in the worker's table, or about to be | retired, last step still in flight ]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from afd_sched.cache import CacheManager
from afd_sched.decode import DecodeManager
from afd_sched.history import TokenHistory
from afd_sched.ints import positions_within, unpack_int32
from afd_sched.radix import PAGE_ID_BYTES, Node, RadixCache
from afd_sched.req import TOKEN_BYTES, Req
from afd_sched.table import TableManager

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_SLOT = attrgetter("slot")


@dataclass(slots=True)
class Resident:
    """A request in a slot. ``tokens``: its tokens at admission, int32 bytes. Its first
    ``depth`` pages are the prefix cache's, down to ``node``; once it has left, some of these may
    be doubles of what the cache had already (``spare``, int32 bytes)."""

    req: Req
    tokens: bytes
    node: Node
    depth: int
    spare: bytes = b""


@dataclass(slots=True)
class Left:
    """Requests that have left their ``slots``, or are about to, with what these hold: ``counts``
    pages each, ``pages`` end to end; ``fed`` rows of theirs are planned, and of their tokens
    ``prompt`` and ``generated`` are known. Nobody else writes to the pages until they are given
    back."""

    slots: I64
    residents: list[Resident]
    pages: I32
    counts: I64
    fed: I32
    prompt: I32
    generated: I32


def _only(left: Left, keep: NDArray[np.bool_]) -> Left:
    residents = [r for r, kept in zip(left.residents, keep.tolist(), strict=True) if kept]
    pages = left.pages[np.repeat(keep, left.counts)]
    return Left(
        left.slots[keep],
        residents,
        pages,
        left.counts[keep],
        left.fed[keep],
        left.prompt[keep],
        left.generated[keep],
    )


class Residents:
    """Slots, pages and the prefix cache of all attention ranks; slots are numbered through."""

    def __init__(
        self,
        pages_per_rank: Sequence[int],
        page_size: int,
        slots: int,
        pages_per_slot: int,
        radix: bool,
    ) -> None:
        ranks = len(pages_per_rank)
        self._page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._slots = slots
        self._radix = radix
        self.table = TableManager(ranks, slots)
        self.cache = CacheManager(pages_per_rank, page_size, slots, pages_per_slot)
        self.tree = RadixCache(ranks, page_size)
        self.running = DecodeManager(ranks, slots)
        self.history = TokenHistory(ranks, slots, max(pages_per_rank), page_size)
        self.by_slot: dict[int, Resident] = {}
        # What ``tidy`` is to do: prompts that have run, by slot, and requests that have left.
        self._prompts: list[tuple[int, Resident]] = []
        self._left: list[Left] = []
        # Retired slots with the last step that may name them.
        self._freeing: deque[tuple[int, Left]] = deque()

    # ------------------------------------------------------------------------------- entering

    def match(self, tokens: bytes) -> list[Node]:
        """The known prefix of a request's tokens; at least one token is left to run."""
        if not self._radix:
            return []
        return self.tree.match(tokens, len(tokens) - TOKEN_BYTES)

    def known_tokens(self, tokens: bytes) -> int:
        """How many of a request's first tokens some rank has in its prefix cache."""
        return sum(len(node.key) for node in self.match(tokens)) // TOKEN_BYTES

    def enter(self, req: Req, rank: int, path: Sequence[Node]) -> int:
        """Takes a slot and the cached pages of ``path``; returns the number of these. ``settle``
        completes the admissions of a plan."""
        slot = req.slot = self.table.take(rank)
        node, depth = self.tree.root, 0
        if path:
            node = path[-1]
            self.tree.lock(path, rank)
            self.cache.share(slot, b"".join([step.holdings[rank].pages for step in path]))
            depth = int(self.cache.held[slot])
        self.by_slot[slot] = Resident(req, req.tokens, node, depth)
        return depth

    def settle(self, entered: Sequence[Req], now: int) -> None:
        """Rows and pages of newly admitted requests, for all tokens that are not cached."""
        reqs = sorted(entered, key=_SLOT)
        slots = np.array([req.slot for req in reqs])
        tokens = np.array([req.count for req in reqs])
        self.running.enter(
            slots,
            np.array([req.uid for req in reqs]),
            tokens,
            np.array([req.limit for req in reqs]),
            np.array([req.sampling.ignore_eos for req in reqs]),
        )
        self.running.fed[slots] = self.cache.held[slots] * self._page_size
        counts = -(-tokens // self._page_size) - self.cache.held[slots]
        taken = np.bincount(slots // self._slots, counts, len(self.cache.free))
        for rank in np.flatnonzero(taken > self.cache.free).tolist():
            self.evict(rank, int(taken[rank]), now)
        pages = self.cache.append(slots, counts)
        held = self.cache.held[slots]
        self.running.room[slots] = held * self._page_size
        self.history.turn_page(slots, pages[np.cumsum(counts) - 1], held - 1)

    def grow(self, slots: I64) -> I32:
        """One more page for each slot; returns them."""
        index = self.cache.held[slots]
        pages = self.cache.append(slots)
        self.running.room[slots] += self._page_size
        self.history.turn_page(slots, pages, index)
        return pages

    def evict(self, rank: int, count: int, now: int) -> None:
        """Makes ``count`` pages free, or as many as nobody uses."""
        self.tidy(now)
        missing = count - int(self.cache.free[rank])
        # A page for each slot more than needed, so that a full pool is not visited every step.
        if missing > 0 and (given := self.tree.evict(rank, missing + self._slots)):
            pages = unpack_int32(given)
            self.cache.give_back(np.full(len(pages), rank), pages)

    # ------------------------------------------------------------------------------- losing

    def lose(self, rank: int) -> None:
        """Empties a rank whose worker is gone, with its pages and its prefix cache; it takes no
        request until ``restore``."""
        resident = self.running.slots_of(rank)
        if len(resident):
            self.running.retire(resident)
        mine = range(rank * self._slots, (rank + 1) * self._slots)
        for slot in mine:
            self.by_slot.pop(slot, None)
        self._prompts = [(slot, r) for slot, r in self._prompts if slot not in mine]
        self._left = [_only(left, left.slots // self._slots != rank) for left in self._left]
        self._freeing = deque(
            (last, _only(left, left.slots // self._slots != rank)) for last, left in self._freeing
        )
        self.tree.forget(rank)
        self.cache.reset(rank)
        self.table.close(rank)

    def restore(self, rank: int) -> None:
        """The rank has a new worker, which knows nothing."""
        self.table.reopen(rank)

    # ------------------------------------------------------------------------------- running

    def remember(self, slots: Sequence[int]) -> None:
        """Prompts that have run become part of the prefix cache, with the next ``tidy``, while
        their requests go on."""
        if self._radix:
            self._prompts += [(slot, self.by_slot[slot]) for slot in slots]

    @property
    def untidy(self) -> bool:
        """Whether ``tidy`` has something to do."""
        return bool(self._prompts or self._left)

    def tidy(self, now: int) -> None:
        """Moves prompts that have run and requests that have left into the prefix cache. Nobody
        waits for it, unless pages are short."""
        self.history.flush()
        if self._prompts:
            self._remember(now)
        for left in self._left:
            self._leave(left, now)
        self._left.clear()

    def _remember(self, now: int) -> None:
        """Prompts that have run, of requests that still do; the others leave with them."""
        running = [(slot, r) for slot, r in self._prompts if self.by_slot.get(slot) is r]
        self._prompts.clear()
        slots = np.array([slot for slot, _ in running], np.int64)
        pages = self.cache.held_pages(slots)[1].tobytes()
        end = 0
        for (slot, resident), held in zip(running, self.cache.held[slots].tolist(), strict=True):
            begin, end = end, end + held * PAGE_ID_BYTES
            tokens, rank = resident.tokens, slot // self._slots
            at = resident.depth * self._page_bytes
            # Another request was faster: to use its pages beside the doubles that the slot has
            # would keep both from being freed, and could leave too few for a request to run alone.
            if not self.tree.holds_next(resident.node, tokens, at, rank):
                whole = len(tokens) // self._page_bytes
                self._insert(resident, rank, tokens, pages[begin:end], whole, now)

    def _leave(self, left: Left, now: int) -> None:
        """Leaves to the prefix cache all whole pages that requests have filled, and frees the
        rest."""
        known = left.prompt + left.generated
        # Every row that was planned has run.
        filled = (np.minimum(left.fed, known) // self._page_size).tolist()
        answers, ranks = self._answers(left), left.slots // self._slots
        pages = left.pages.tobytes()
        end = 0
        rest: list[bytes] = []
        for resident, rank, held, whole, answer in zip(
            left.residents, ranks.tolist(), left.counts.tolist(), filled, answers, strict=True
        ):
            begin, end = end, end + held * PAGE_ID_BYTES
            own = pages[begin:end]
            self._insert(resident, rank, resident.tokens + answer, own, whole, now)
            self.tree.unlock(resident.node, rank, now)
            rest.append(resident.spare + own[resident.depth * PAGE_ID_BYTES :])
        free = unpack_int32(b"".join(rest))
        self.cache.give_back(np.repeat(ranks, [len(r) // PAGE_ID_BYTES for r in rest]), free)

    def _insert(
        self, resident: Resident, rank: int, tokens: bytes, pages: bytes, whole: int, now: int
    ) -> None:
        """Hands the first ``whole`` of the slot's ``pages`` over, as far as they are still its
        own."""
        depth, size = resident.depth, self._page_bytes
        if whole <= depth:
            return
        own = pages[depth * PAGE_ID_BYTES : whole * PAGE_ID_BYTES]
        resident.node, spare = self.tree.insert(
            resident.node, tokens, depth * size, whole * size, own, rank, now
        )
        resident.spare += spare
        resident.depth = whole

    def generated(self, slots: I64) -> list[bytes]:
        """What the requests of slots generated since their admission, as far as it is committed;
        int32 bytes."""
        return self._answers(self._holdings(slots))

    def _holdings(self, slots: I64) -> Left:
        running = self.running
        return Left(
            slots,
            [self.by_slot[slot] for slot in slots.tolist()],
            self.cache.held_pages(slots)[1],
            self.cache.held[slots],
            running.fed[slots],
            running.prompt[slots],
            running.generated[slots],
        )

    def _answers(self, left: Left) -> list[bytes]:
        first = left.prompt.astype(np.int64) - 1
        tokens = left.generated.astype(np.int64)
        begin, end = first // self._page_size, -(-(first + tokens) // self._page_size)
        counts = np.where(tokens > 0, end - begin, 0)
        at = np.repeat(np.cumsum(left.counts) - left.counts + begin, counts)
        data = self.history.read(left.slots, left.pages[at + positions_within(counts)], counts)
        starts = (np.cumsum(counts) - counts - begin) * self._page_size + first
        bounds = zip((starts * TOKEN_BYTES).tolist(), (tokens * TOKEN_BYTES).tolist(), strict=True)
        return [data[start : start + size] for start, size in bounds]

    # ------------------------------------------------------------------------------- leaving

    def retire(self, slots: I64, last_step: int) -> None:
        """The slots leave the workers' tables; no step after ``last_step`` names them."""
        self.running.retire(slots)
        self._freeing.append((last_step, self._holdings(slots)))

    def awaits_pages(self, rank: int) -> bool:
        """Whether slots of a rank wait for their last step to be committed."""
        return any((left.slots // self._slots == rank).any() for _, left in self._freeing)

    def free(self, committed: int) -> None:
        """Returns to their pools the retired slots that no step after ``committed`` names; with
        the prefix cache on, their pages come with the next ``tidy``."""
        while self._freeing and self._freeing[0][0] <= committed:
            left = self._freeing.popleft()[1]
            slots = left.slots
            if not len(slots):
                continue
            # All else has stood since they retired.
            left.generated = self.running.generated[slots]
            if self._radix:
                self._left.append(left)
            else:
                ranks = np.repeat(slots // self._slots, left.counts)
                self.cache.give_back(ranks, left.pages)
            self.cache.drop(slots)
            freed = slots.tolist()
            for slot in freed:
                del self.by_slot[slot]
            self.table.give_back(freed)
