"""Who goes first and where: placement, policies, priorities, and the limit of the queue."""

from __future__ import annotations

import msgspec
import pytest

from afd_sched.ints import pack_int32
from afd_sched.messages import SamplingParams
from afd_sched.placement import Placement
from afd_sched.policy import PATIENCE_STEPS, PRIORITY_BOUND, PRIORITY_STEPS, SchedulePolicy
from afd_sched.prefill import PrefillManager
from afd_sched.req import Req, RequestRefused
from afd_sched.residents import Residents
from afd_sched.scheduler import SchedulerConfig
from tests.afd_sched.fleet import EOS
from tests.afd_sched.harness import Harness

BASE = SchedulerConfig(
    attention_ranks=2,
    ffn_ranks=1,
    num_lanes=2,
    max_running_requests=16,
    chunked_prefill_size=256,
    page_size=4,
    context_length=128,
    eos_token_ids=EOS,
    overlap=True,
)
PREFIX = list(range(2, 22)) * 2
ONE = SamplingParams(max_new_tokens=1, ignore_eos=True)
FEW = SamplingParams(max_new_tokens=4, ignore_eos=True)
LONG = SamplingParams(max_new_tokens=60, ignore_eos=True)


def changed(**fields: object) -> SchedulerConfig:
    return msgspec.structs.replace(BASE, **fields)


def _admissions(harness: Harness) -> dict[int, tuple[int, int]]:
    """Plans one step; rank and cached tokens of each request that it admits."""
    bundle = harness.plan()
    assert bundle is not None
    return {
        admit.uid: (rank, admit.cached_tokens)
        for rank, plan in bundle.plans.items()
        for admit in plan.admitted
    }


def _warm(harness: Harness) -> int:
    """Makes one rank know PREFIX; its number."""
    uid = harness.add(PREFIX, FEW)
    [(rank, cached)] = [_admissions(harness)[uid]]
    assert cached == 0
    harness.drain()
    return rank


def test_a_request_goes_where_its_prefix_lives() -> None:
    harness = Harness(BASE, [400, 400])
    rank = _warm(harness)
    # Load alone would send the second elsewhere.
    uids = [harness.add([*PREFIX, last], FEW) for last in range(2)]
    assert _admissions(harness) == {uid: (rank, len(PREFIX)) for uid in uids}
    harness.drain()
    harness.check_outputs()


def test_a_prompt_that_is_known_whole_still_runs_its_last_token() -> None:
    harness = Harness(BASE, [400, 400])
    rank = _warm(harness)
    uid = harness.add(PREFIX, FEW)
    assert _admissions(harness) == {uid: (rank, len(PREFIX) - BASE.page_size)}
    harness.drain()
    harness.check_outputs()


def test_a_prompt_is_shared_while_its_request_still_runs() -> None:
    harness = Harness(BASE, [400, 400])
    first = harness.add(PREFIX, LONG)
    [rank] = {rank for rank, _ in _admissions(harness).values()}
    for _ in range(4):
        harness.advance()
    assert first not in harness.finished
    uid = harness.add([*PREFIX, 5], FEW)
    harness.scheduler.tidy()
    harness.run_rank(rank)
    harness.commit()
    assert _admissions(harness) == {uid: (rank, len(PREFIX))}
    harness.drain()
    harness.check_outputs()


def test_an_overloaded_rank_does_not_draw_more_to_its_prefix() -> None:
    harness = Harness(BASE, [400, 400])
    rank = _warm(harness)
    uids = [harness.add([*PREFIX, last], LONG) for last in range(16)]
    placed = _admissions(harness)
    here = [uid for uid in uids if placed[uid][0] == rank]
    # The cached rank leads, but not by more than the slack, of slots and pages together.
    assert len(uids) / 2 <= len(here) <= len(uids) / 2 + 2
    assert all(placed[uid] == (rank, len(PREFIX)) for uid in here)
    assert all(placed[uid] == (1 - rank, 0) for uid in uids if uid not in here)


def test_ranks_of_different_capacity_fill_evenly() -> None:
    harness = Harness(changed(radix_cache=False), [60, 180])
    for first in range(14):
        harness.add([first] * 16, LONG)
    ranks = [rank for rank, _ in _admissions(harness).values()]
    small, large = ranks.count(0), ranks.count(1)
    assert small + large == 14
    # Load is slots/16 + pages/60 against slots/16 + pages/180.
    assert abs(small * (1 / 16 + 4 / 60) - large * (1 / 16 + 4 / 180)) <= 1 / 16 + 4 / 60


def _placement(pages: list[int], running: int = 0) -> Placement:
    """Ranks with so many free pages of four tokens, each with so many running requests."""
    residents = Residents(pages, page_size=4, slots=16, pages_per_slot=64, radix=True)
    residents.running.count += running
    return Placement(residents)


def test_where_the_lightest_rank_lacks_pages_the_lightest_that_has_them_is_chosen() -> None:
    placement = _placement([20, 200, 100])
    placement.take(1, 10, [])
    assert placement.choose(70, []) == (0, 0)
    assert placement.choose(100, []) == (2, 0)  # rank 1 has room as well, and more to do
    assert placement.choose(700, []) == (1, 0)
    assert placement.choose(1000, []) is None


def test_every_running_request_keeps_a_page_to_grow_into() -> None:
    assert _placement([10]).choose(39, []) == (0, 0)
    assert _placement([10]).choose(40, []) is None  # its own next token needs an eleventh
    assert _placement([10], running=1).choose(36, []) is None
    placement = _placement([10])
    placement.take(0, 3, [])
    assert placement.choose(23, []) == (0, 0)
    assert placement.choose(24, []) is None


def test_a_prompt_of_higher_priority_goes_before_one_that_has_begun() -> None:
    prefill = PrefillManager(budget_tokens=4, slots_per_rank=8)
    low, high = (
        Req(uid, b"", 0, ONE, 99, order, 0, slot=uid, remaining=6)
        for uid, order in enumerate([(0, 0), (-256, 1)])
    )
    prefill.add([low])
    assert (deal := prefill.deal(set())).slots == [0] and deal.counts == [4]
    prefill.add([high])
    assert (deal := prefill.deal(set())).slots == [1] and deal.done == []
    assert (deal := prefill.deal(set())).slots == [1, 0] and deal.counts == [2, 2]
    assert deal.done == [1, 0]


def _order(harness: Harness, uids: list[int]) -> list[int]:
    """The order in which requests end, one slot, one token each."""
    while harness.scheduler.running + harness.scheduler.waiting or harness.bundles:
        harness.advance()
    ended = list(harness.finished)
    return [uids.index(uid) for uid in ended if uid in uids]


def test_a_higher_priority_goes_first_and_equals_in_the_order_of_arrival() -> None:
    config = changed(attention_ranks=1, max_running_requests=1, priority_scheduling=True)
    harness = Harness(config, [100])
    priorities = [0, 1, 0, -3, 2, 1]
    uids = [harness.add([2, 3], ONE, priority) for priority in priorities]
    assert _order(harness, uids) == [4, 1, 5, 0, 2, 3]


def test_a_priority_needs_its_flag_and_has_bounds() -> None:
    ids = pack_int32([2, 3])
    plain = Harness(BASE, [100, 100]).scheduler
    with pytest.raises(RequestRefused, match="--enable-priority-scheduling"):
        plain.add(0, ids, ONE, 1)
    scheduler = Harness(changed(priority_scheduling=True), [100, 100]).scheduler
    with pytest.raises(RequestRefused, match=f"from -{PRIORITY_BOUND} to {PRIORITY_BOUND}"):
        scheduler.add(0, ids, ONE, PRIORITY_BOUND + 1)
    scheduler.add(0, ids, ONE, PRIORITY_BOUND)


@pytest.mark.parametrize("gap", [1, 2])
def test_a_low_priority_waits_longer_but_does_not_starve(gap: int) -> None:
    config = changed(
        attention_ranks=1, max_running_requests=1, priority_scheduling=True, overlap=False
    )
    harness = Harness(config, [100])
    low = harness.add([2, 3], ONE, 0)
    steps = 0
    while low not in harness.finished:
        # More of the higher priority than can ever be served.
        harness.add([2, 3], ONE, gap)
        harness.advance()
        steps += 1
        assert steps <= gap * PRIORITY_STEPS + 2
    assert steps >= gap * PRIORITY_STEPS


def test_the_longest_known_prefix_goes_first_until_others_lose_patience() -> None:
    config = changed(
        attention_ranks=1,
        max_running_requests=1,
        schedule_policy=SchedulePolicy.LPM,
        overlap=False,
    )
    harness = Harness(config, [400])
    _warm(harness)
    unknown = harness.add([3, 3, 3, 3, 3], ONE)
    part = harness.add([*PREFIX[:8], 1], ONE)
    whole = harness.add([*PREFIX, 1], ONE)
    uids = [unknown, part, whole]
    for _ in range(2):
        harness.advance()
    assert [uid for uid in harness.finished if uid in uids] == [whole, part]
    steps = 2
    while unknown not in harness.finished:
        harness.add([*PREFIX, 1], ONE)
        harness.add([*PREFIX, 1], ONE)
        harness.advance()
        steps += 1
        assert steps <= PATIENCE_STEPS + 3
    assert steps >= PATIENCE_STEPS


def test_a_full_queue_refuses_with_a_sentence_and_free_slots_do_not_count() -> None:
    config = changed(attention_ranks=1, max_running_requests=3, max_queued_requests=2)
    harness = Harness(config, [400])
    for _ in range(5):
        harness.add([2, 3], LONG)
    with pytest.raises(RequestRefused, match="2 requests wait .* --max-queued-requests is 2"):
        harness.add([2, 3], LONG)
    harness.plan()
    with pytest.raises(RequestRefused, match="queue is full"):
        harness.add([2, 3], LONG)
    harness.abort(0)
    harness.abort(3)
    harness.add([2, 3], LONG)
    harness.drain()
    harness.check_outputs()


def test_the_hit_rate_counts_tokens_that_were_not_run_again() -> None:
    harness = Harness(BASE, [400, 400])
    _warm(harness)
    assert harness.scheduler.cache_hit_rate == 0
    harness.add([*PREFIX, 3], FEW)
    harness.drain()
    assert harness.scheduler.cache_hit_rate == len(PREFIX) / (2 * len(PREFIX) + 1)
    without = Harness(changed(radix_cache=False), [400, 400])
    _warm(without)
    without.add(PREFIX, FEW)
    without.drain()
    assert without.scheduler.cache_hit_rate == 0


def test_two_of_the_same_prompt_at_once_leave_the_last_all_the_pages_it_needs() -> None:
    config = changed(attention_ranks=1, page_size=2, overlap=False)
    harness = Harness(config, [6])
    harness.add([2, 3, 4, 5], SamplingParams(max_new_tokens=2, ignore_eos=True))
    last = harness.add([2, 3, 4, 5], SamplingParams(max_new_tokens=30, ignore_eos=True))
    assert len(_admissions(harness)) == 2
    harness.drain()
    harness.check_outputs()
    assert len(harness.delivered[last]) == 8 and harness.scheduler.retractions == 0
