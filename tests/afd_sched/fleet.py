"""Attention workers without tensors, built on the product's SlotTable, and what they must answer.

A rank's KV cache is modelled by content: each row writes (token, position) into its page and then
reads its whole history back through the page table. The next token is a hash of that history, so
a wrong row, page, position or pool entry changes the output.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from afd_sched.ints import unpack_int32, unpack_pairs
from afd_sched.messages import SamplingParams, StepPlan
from afd_sched.replica import RankBatch, SlotTable

VOCAB = 24
EOS = (0, 1)


def next_token(history: Sequence[int], seed: int) -> int:
    """The token after ``history``; the position enters through its length."""
    return zlib.crc32(np.array([seed, *history], "<i8").tobytes()) % VOCAB


def sequential(prompt: Sequence[int], sampling: SamplingParams, total_limit: int) -> list[int]:
    """What a request generates when it runs alone, one token at a time."""
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(EOS))
    tokens = list(prompt)
    limit = min(len(prompt) + sampling.max_new_tokens, total_limit)
    while len(tokens) < limit:
        tokens.append(next_token(tokens, sampling.seed))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class FakeRank:
    """One attention worker: plans queue up in ``receive``, ``run`` executes the oldest."""

    def __init__(self, slots: int, pages: int, page_size: int, context_length: int) -> None:
        self._table = SlotTable(slots=slots, pages_per_slot=-(-context_length // page_size))
        self._page_size = page_size
        self._kv = np.full((pages, page_size, 2), -1, np.int64)
        self._queue: deque[StepPlan] = deque()
        # page -> slots that hold it; only cached prefixes are held by several.
        self._holders: dict[int, set[int]] = {}
        self._uid: dict[int, int] = {}
        # step -> pages of the slots that ran in it, kept until the step is committed.
        self._named: dict[int, set[int]] = {}
        self._named_slots: dict[int, set[int]] = {}
        self.max_rows = 0
        self.ran: tuple[RankBatch, NDArray[np.int32]] | None = None

    @property
    def pending(self) -> int:
        """Plans received and not run."""
        return len(self._queue)

    def receive(self, plan: StepPlan) -> None:
        """Checks that the plan reuses nothing that a step in flight names, and queues it."""
        for slot in unpack_int32(plan.retired).tolist():
            for holders in self._holders.values():
                holders.discard(slot)
            del self._uid[slot]
        cached: dict[int, int] = {}
        for admit in plan.admitted:
            assert admit.slot not in self._uid, "a slot was given away twice"
            for step, slots in self._named_slots.items():
                assert admit.slot not in slots, f"slot {admit.slot} reused before commit of {step}"
            self._uid[admit.slot] = admit.uid
            assert admit.cached_tokens % self._page_size == 0
            cached[admit.slot] = admit.cached_tokens // self._page_size
        for slot, page in unpack_pairs(plan.pages).tolist():
            assert slot in self._uid, "pages for an empty slot"
            assert 0 <= page < len(self._kv)
            shared = cached.get(slot, 0) > 0
            cached[slot] = cached.get(slot, 0) - 1
            if not shared:
                assert not self._holders.get(page), "a page that is to be written has an owner"
                for step, pages in self._named.items():
                    assert page not in pages, f"page {page} reused before commit of {step}"
            self._holders.setdefault(page, set()).add(slot)
        self._named[plan.step] = {page for page, slots in self._holders.items() if slots}
        self._named_slots[plan.step] = set(self._uid)
        self._queue.append(plan)

    def committed(self, step: int) -> None:
        """The scheduler may now reuse what only ``step`` named."""
        self._named.pop(step, None)
        self._named_slots.pop(step, None)

    def run(self) -> tuple[int, NDArray[np.int32]]:
        """Runs the oldest plan; its step and sampled tokens."""
        plan = self._queue.popleft()
        batch = self._table.apply(plan)
        self.max_rows = max(self.max_rows, len(batch.row_slot))
        assert plan.lanes >= 1
        tokens = self._forward(batch)
        self._table.record(tokens)
        self.ran = batch, tokens
        return plan.step, tokens

    def replay(self) -> NDArray[np.int32]:
        """Runs the latest step's rows once more: the same rows, into the same places."""
        assert self.ran is not None
        return self._forward(self.ran[0])

    def _forward(self, batch: RankBatch) -> NDArray[np.int32]:
        page, offset = np.divmod(batch.row_position, self._page_size)
        pages = batch.page_table[batch.row_slot, page]
        places = list(zip(pages.tolist(), offset.tolist(), strict=True))
        assert len(set(places)) == len(places), "two rows of a step write one place"
        self._kv[pages, offset, 0] = batch.row_token
        self._kv[pages, offset, 1] = batch.row_position
        histories = [self._history(batch, row) for row in range(len(batch.row_slot))]
        assert np.array_equal(batch.row_slot[batch.sample_rows], batch.sample_slots)
        assert np.array_equal(batch.position, batch.row_position[batch.sample_rows] + 1)
        tokens = [
            next_token(histories[row], int(seed))
            for row, seed in zip(batch.sample_rows.tolist(), batch.seed, strict=True)
        ]
        return np.array(tokens, np.int32)

    def _history(self, batch: RankBatch, row: int) -> list[int]:
        length = int(batch.row_position[row]) + 1
        positions = np.arange(length)
        pages = batch.page_table[batch.row_slot[row], positions // self._page_size]
        cells = self._kv[pages, positions % self._page_size]
        assert np.array_equal(cells[:, 1], positions), "a row reads a place that is not its own"
        return [int(token) for token in cells[:, 0]]
