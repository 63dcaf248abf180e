"""The worker's own table of slots: what a StepPlan's delta is applied to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd_sched.ints import unpack_int32, unpack_pairs
from afd_sched.messages import Admit, StepPlan

I32 = NDArray[np.int32]


class PlanError(Exception):
    """A plan contradicts the table: a slot or page that cannot be."""


@dataclass(frozen=True, slots=True)
class RankBatch:
    """Rows of one step in uid order; arrays belong to the table and change with the next plan.

    ``row_*`` [rows]; ``sample_rows`` indexes the rows whose logits are sampled; the sampling
    arrays and ``position`` (of the token to be sampled, within the whole sequence) match it.
    """

    row_slot: I32
    row_position: I32
    row_token: I32
    page_table: I32
    sample_rows: I32
    sample_slots: I32
    temperature: NDArray[np.float32]
    top_k: I32
    top_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]


class SlotTable:
    """Slots by number, pages [slots, pages_per_slot], and the token pool."""

    def __init__(self, slots: int, pages_per_slot: int) -> None:
        self._uid = np.full(slots, -1, np.int64)
        self._prompt_tokens = np.zeros(slots, np.int32)
        self._prompts: dict[int, I32] = {}
        self._fed = np.zeros(slots, np.int32)
        self._page_table = np.zeros((slots, pages_per_slot), np.int32)
        self._page_count = np.zeros(slots, np.int32)
        self._pool = np.zeros(slots, np.int32)
        self._temperature = np.zeros(slots, np.float32)
        self._top_k = np.zeros(slots, np.int32)
        self._top_p = np.zeros(slots, np.float32)
        self._seed = np.zeros(slots, np.uint64)
        self._order = np.zeros(0, np.int32)
        self._sampled = self._order

    def apply(self, plan: StepPlan) -> RankBatch:
        """Applies the delta and lays out the step's rows; raises PlanError."""
        self._change(plan)
        order = self._order
        fed, prompt = self._fed[order], self._prompt_tokens[order]
        decoding = fed >= prompt
        if decoding.all() and not plan.extend:
            return self._decode(order, fed)
        return self._mixed(order, fed, prompt, decoding, unpack_pairs(plan.extend))

    def record(self, tokens: NDArray[np.int32]) -> None:
        """Keeps the step's sampled tokens, in the order of ``sample_rows``, for the next step."""
        self._pool[self._sampled] = tokens

    def _change(self, plan: StepPlan) -> None:
        if not (plan.retired or plan.admitted or plan.pages):
            return
        for slot in unpack_int32(plan.retired).tolist():
            if self._uid[slot] < 0:
                raise PlanError(f"step {plan.step} retires slot {slot}, which is empty")
            self._uid[slot] = -1
            self._prompts.pop(slot, None)
        for admit in plan.admitted:
            self._admit(plan.step, admit)
        if plan.pages:
            self._append_pages(plan.step, unpack_pairs(plan.pages))
        slots = np.flatnonzero(self._uid >= 0).astype(np.int32)
        self._order = slots[np.argsort(self._uid[slots])]

    def _admit(self, step: int, admit: Admit) -> None:
        slot = admit.slot
        if self._uid[slot] >= 0:
            raise PlanError(
                f"step {step} admits request {admit.uid} to slot {slot}, which is taken"
            )
        prompt = unpack_int32(admit.tokens)
        if not 0 <= admit.cached_tokens < len(prompt):
            raise PlanError(
                f"step {step} admits request {admit.uid} with {admit.cached_tokens} of "
                f"{len(prompt)} tokens cached; one at least must run"
            )
        self._uid[slot] = admit.uid
        self._prompts[slot] = prompt
        self._prompt_tokens[slot] = len(prompt)
        self._fed[slot] = admit.cached_tokens
        self._page_count[slot] = 0
        self._temperature[slot] = admit.temperature
        self._top_k[slot] = admit.top_k
        self._top_p[slot] = admit.top_p
        self._seed[slot] = admit.seed

    def _append_pages(self, step: int, pairs: I32) -> None:
        by_slot = np.argsort(pairs[:, 0], kind="stable")
        slots, pages = pairs[by_slot, 0], pairs[by_slot, 1]
        _, first, counts = np.unique(slots, return_index=True, return_counts=True)
        within = np.arange(len(slots)) - np.repeat(first, counts)
        at = self._page_count[slots] + within
        if at.size and at.max() >= self._page_table.shape[1]:
            raise PlanError(f"step {step} gives a slot more pages than its table holds")
        self._page_table[slots, at] = pages
        np.add.at(self._page_count, slots, 1)

    def _batch(
        self, row_slot: I32, row_position: I32, row_token: I32, sample_rows: I32, slots: I32
    ) -> RankBatch:
        self._sampled = slots
        return RankBatch(
            row_slot=row_slot,
            row_position=row_position,
            row_token=row_token,
            page_table=self._page_table,
            sample_rows=sample_rows,
            sample_slots=slots,
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            seed=self._seed[slots],
            position=self._fed[slots].astype(np.int64),
        )

    def _decode(self, order: I32, fed: I32) -> RankBatch:
        self._fed[order] = fed + 1
        rows = np.arange(len(order), dtype=np.int32)
        return self._batch(order, fed, self._pool[order], rows, order)

    def _mixed(
        self, order: I32, fed: I32, prompt: I32, decoding: NDArray[np.bool_], extend: I32
    ) -> RankBatch:
        chunk = np.zeros(len(self._uid), np.int32)
        chunk[extend[:, 0]] = extend[:, 1]
        counts = np.where(decoding, 1, chunk[order]).astype(np.int32)
        ends = np.cumsum(counts, dtype=np.int32)
        row_slot = np.repeat(order, counts)
        within = np.arange(len(row_slot), dtype=np.int32) - np.repeat(ends - counts, counts)
        row_position = np.repeat(fed, counts) + within
        row_token = self._pool[row_slot]
        for at in np.flatnonzero(~decoding & (counts > 0)).tolist():
            begin, end = int(fed[at]), int(fed[at] + counts[at])
            prompt_ids = self._prompts[int(order[at])]
            row_token[ends[at] - counts[at] : ends[at]] = prompt_ids[begin:end]
        self._fed[order] = fed + counts
        samples = (counts > 0) & (fed + counts >= prompt)
        return self._batch(row_slot, row_position, row_token, ends[samples] - 1, order[samples])
