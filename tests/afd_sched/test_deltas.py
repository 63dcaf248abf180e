"""What a rank is not told in one plan it is told in its next, unless it has become untrue."""

from __future__ import annotations

import numpy as np

from afd_sched.cache import CacheManager
from afd_sched.deltas import PlanDeltas
from afd_sched.ints import unpack_int32, unpack_pairs
from afd_sched.messages import StepPlan

SLOTS = 2
NO_PROMPTS = np.zeros(0, np.int64), np.zeros(0, np.int32)


def told(plan: StepPlan) -> tuple[list[int], list[list[int]]]:
    return unpack_int32(plan.retired).tolist(), unpack_pairs(plan.pages).tolist()


def grow(deltas: PlanDeltas, *pairs: tuple[int, int]) -> None:
    slots, pages = zip(*pairs, strict=True)
    deltas.grow(np.array(slots, np.int64), np.array(pages, np.int32))


def test_pages_of_several_moments_wait_for_their_ranks_and_go_with_their_slots() -> None:
    deltas = PlanDeltas(SLOTS, CacheManager([9, 9], 4, SLOTS, 9))
    grow(deltas, (0, 3), (1, 4), (2, 5), (3, 6))
    grow(deltas, (1, 7), (2, 8))
    plans = deltas.plans(0, 1, [0], NO_PROMPTS)
    assert told(plans[0]) == ([], [[0, 3], [1, 4], [1, 7]])
    deltas.retire([3])
    plans = deltas.plans(1, 1, [0, 1], NO_PROMPTS)
    assert told(plans[0]) == ([], [])
    assert told(plans[1]) == ([1], [[0, 5], [0, 8]])


def test_a_new_worker_is_told_nothing_of_the_one_before_it() -> None:
    deltas = PlanDeltas(SLOTS, CacheManager([9, 9], 4, SLOTS, 9))
    grow(deltas, (0, 3), (2, 5))
    deltas.retire([3])
    deltas.forget(1)
    deltas.retire([2])
    plans = deltas.plans(0, 1, [0, 1], NO_PROMPTS)
    assert told(plans[0]) == ([], [[0, 3]])
    assert told(plans[1]) == ([0], [])
