"""Whole runs of the scheduler: what one-step-ahead planning costs, fairness, refusals, order."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_sched.ints import pack_int32, unpack_int32, unpack_pairs
from afd_sched.messages import SamplingParams
from afd_sched.req import FinishReason, RequestRefused
from afd_sched.scheduler import BadResult, Scheduler, SchedulerConfig, StepOrderError
from tests.afd_sched.fleet import EOS, VOCAB, next_token, sequential
from tests.afd_sched.harness import Harness

BASE = SchedulerConfig(
    attention_ranks=2,
    ffn_ranks=1,
    num_lanes=2,
    max_running_requests=8,
    chunked_prefill_size=16,
    page_size=4,
    context_length=64,
    eos_token_ids=EOS,
    overlap=True,
)


def changed(**fields: object) -> SchedulerConfig:
    return msgspec.structs.replace(BASE, **fields)


def _workload(harness: Harness, seed: int, requests: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(requests):
        prompt = random.integers(0, VOCAB, random.integers(1, 30)).tolist()
        new = int(random.integers(1, 34))
        harness.add(
            prompt,
            SamplingParams(
                max_new_tokens=new, seed=int(random.integers(2**62)), ignore_eos=bool(new % 2)
            ),
        )


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_outputs_do_not_depend_on_overlap_or_on_retraction(seed: int) -> None:
    outputs = []
    for overlap in (True, False):
        # The second pool holds one long request at a time, and little else.
        for pages in ([200, 200], [18, 21]):
            harness = Harness(changed(overlap=overlap, context_length=64), pages)
            _workload(harness, seed, 30)
            harness.drain()
            harness.check_pools_are_full()
            harness.check_outputs()
            assert pages == [18, 21] or harness.scheduler.retractions == 0
            outputs.append(harness.delivered)
    assert all(output == outputs[0] for output in outputs)


def test_requests_that_outgrow_the_pages_are_retracted_and_lose_nothing() -> None:
    for radix_cache in (True, False):
        harness = Harness(changed(attention_ranks=1, radix_cache=radix_cache), [17])
        for first in range(4):
            harness.add([first] * 9, SamplingParams(max_new_tokens=40, ignore_eos=True))
        harness.drain()
        harness.check_outputs()
        assert harness.scheduler.retractions > 0


def test_the_same_requests_make_the_same_plans() -> None:
    def plans() -> list[bytes]:
        harness = Harness(BASE, [18, 21])
        _workload(harness, 3, 20)
        encoded = []
        while harness.scheduler.running + harness.scheduler.waiting or harness.bundles:
            if bundle := harness.plan():
                encoded.append(msgspec.msgpack.encode(list(bundle.plans.items())))
            for rank in range(2):
                harness.run_rank(rank)
            harness.commit()
        return encoded

    assert plans() == plans()


def _rows(overlap: bool, sampling: SamplingParams, prompt: list[int]) -> int:
    """Steps that one request takes, alone on one rank."""
    harness = Harness(changed(overlap=overlap, attention_ranks=1), [40])
    harness.add(prompt, sampling)
    harness.drain()
    harness.check_outputs()
    return harness._last_step + 1


def test_a_length_limit_wastes_no_row_and_an_eos_at_most_one() -> None:
    prompt = [5, 6, 7]
    by_length = SamplingParams(max_new_tokens=9, ignore_eos=True)
    assert _rows(True, by_length, prompt) == _rows(False, by_length, prompt) == 9
    stop = next_token([*prompt, next_token(prompt, 0)], 0)
    by_stop = SamplingParams(max_new_tokens=9, ignore_eos=True, stop_token_ids=(stop,))
    tokens = sequential(prompt, by_stop, 64)
    assert len(tokens) < 9
    assert _rows(False, by_stop, prompt) == len(tokens)
    assert _rows(True, by_stop, prompt) == len(tokens) + 1


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    harness = Harness(changed(attention_ranks=1, max_running_requests=4), [16])
    for _ in range(4):
        harness.add([3, 4], SamplingParams(max_new_tokens=12, ignore_eos=True))
    large = harness.add([7] * 56, SamplingParams(max_new_tokens=8, ignore_eos=True))
    for _ in range(200):
        harness.add([3, 4], SamplingParams(max_new_tokens=12, ignore_eos=True))
        harness.advance()
        if large in harness.finished:
            break
    assert harness.finished[large] is FinishReason.LENGTH
    assert harness.scheduler.waiting > 0, "small requests were still arriving"


def test_requests_spread_over_ranks_and_a_step_mixes_prompts_and_decodes() -> None:
    harness = Harness(changed(max_running_requests=2), [40, 40])
    for _ in range(2):
        harness.add([2] * 6, SamplingParams(max_new_tokens=20, ignore_eos=True))
    first = harness.plan()
    assert first is not None and sorted(first.plans) == [0, 1]
    assert [len(plan.admitted) for plan in first.plans.values()] == [1, 1]
    harness.add([2] * 20, SamplingParams(max_new_tokens=2, ignore_eos=True))
    second = harness.plan()
    assert second is not None and second.extend_tokens == BASE.chunked_prefill_size
    harness.drain()
    harness.check_outputs()
    # The third request's chunk and a decode row shared a step of one rank.
    assert max(rank.max_rows for rank in harness.ranks) == BASE.chunked_prefill_size + 1


def test_a_steady_plan_says_next_to_nothing() -> None:
    harness = Harness(changed(attention_ranks=1, page_size=16, overlap=False), [40])
    for _ in range(8):
        harness.add([2, 3], SamplingParams(max_new_tokens=12, ignore_eos=True))
    for step in range(8):
        bundle = harness.plan()
        assert bundle is not None
        if step:
            assert len(msgspec.msgpack.encode(bundle.plans[0])) <= 100
        harness.run_rank(0)
        harness.commit()


def test_a_request_that_can_never_run_is_refused_with_a_sentence() -> None:
    scheduler = Scheduler(changed(attention_ranks=1, page_size=4), [8])
    ids = pack_int32(range(2, 40))
    with pytest.raises(RequestRefused, match="empty"):
        scheduler.add(0, b"", SamplingParams())
    with pytest.raises(RequestRefused, match="32 tokens"):
        scheduler.add(1, ids[: 4 * 32], SamplingParams())
    scheduler.add(2, ids[: 4 * 31], SamplingParams())
    with pytest.raises(RequestRefused, match="already open"):
        scheduler.add(2, ids[:4], SamplingParams())
    with pytest.raises(RequestRefused, match="not 7 bytes"):
        scheduler.add(3, ids[:7], SamplingParams())
    scheduler.abort(12345)
    assert scheduler.waiting == 1 and scheduler.plan() is not None


def test_a_request_for_no_token_is_refused() -> None:
    scheduler = Scheduler(changed(attention_ranks=1), [40])
    with pytest.raises(RequestRefused):
        scheduler.add(0, pack_int32(range(17)), SamplingParams(max_new_tokens=0))


def test_plans_and_commits_out_of_order_are_errors() -> None:
    scheduler = Scheduler(changed(attention_ranks=1), [40])
    assert scheduler.plan() is None
    scheduler.add(0, pack_int32([2, 3]), SamplingParams(max_new_tokens=9, ignore_eos=True))
    one = pack_int32([5])
    assert scheduler.plan() is not None and scheduler.plan() is not None
    with pytest.raises(StepOrderError, match="committed first"):
        scheduler.plan()
    with pytest.raises(StepOrderError, match="step 1 is not the oldest"):
        scheduler.commit(1, {0: one})
    with pytest.raises(StepOrderError, match=r"ranks \[0\]"):
        scheduler.commit(0, {1: one})
    with pytest.raises(BadResult, match="returned 2 tokens, 1 were planned"):
        scheduler.commit(0, {0: pack_int32([5, 6])})
    # A refused commit has changed nothing.
    batch = scheduler.commit(0, {0: one})
    assert batch.tokens.tolist() == [5] and batch.finished.tolist() == [FinishReason.RUNNING]
    with pytest.raises(StepOrderError):
        scheduler.commit(0, {0: one})


def test_a_slot_that_got_no_row_is_not_reused_while_its_plan_is_in_flight() -> None:
    config = changed(attention_ranks=1, max_running_requests=2, chunked_prefill_size=2)
    harness = Harness(config, [32])
    harness.add([5] * 6, SamplingParams(max_new_tokens=4, ignore_eos=True))
    second = harness.add([6] * 3, SamplingParams(max_new_tokens=4, ignore_eos=True))
    harness.plan()  # the first prompt takes the whole chunk
    harness.abort(second)
    harness.add([7] * 3, SamplingParams(max_new_tokens=4, ignore_eos=True))
    bundle = harness.plan()
    assert bundle is not None and not bundle.plans[0].admitted
    harness.drain()
    harness.check_outputs()


def test_what_a_step_in_flight_returns_is_kept_when_another_rank_is_lost() -> None:
    harness = Harness(changed(attention_ranks=2), [32, 32])
    for prompt in ([5] * 3, [6] * 3):
        harness.add(prompt, SamplingParams(max_new_tokens=12, ignore_eos=True))
    for _ in range(3):
        harness.advance()
    while harness.plan() is not None:
        pass
    harness.lose_rank(0)
    for _ in range(3):
        harness.advance()
    harness.restore_rank(0)
    # Whoever ran on rank 1 goes on elsewhere from the tokens that were kept.
    harness.lose_rank(1)
    harness.restore_rank(1)
    harness.drain()
    harness.check_outputs()


def test_a_prompt_is_not_remembered_with_the_pages_of_the_slots_next_request() -> None:
    config = changed(attention_ranks=1, max_running_requests=1, page_size=4)
    harness = Harness(config, [32])
    harness.add([5] * 8, SamplingParams(max_new_tokens=2, ignore_eos=True))
    while not harness.finished:  # and nobody tidies meanwhile
        harness.plan()
        harness.run_rank(0)
        harness.commit()
    harness.add([6] * 8, SamplingParams(max_new_tokens=9, ignore_eos=True))
    bundle = harness.plan()
    assert bundle is not None and bundle.plans[0].admitted
    harness.scheduler.tidy()
    harness.check_conservation()
    harness.drain()
    harness.check_outputs()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_page_given_ahead_is_not_told_of_once_its_request_has_left(overlap: bool) -> None:
    config = changed(attention_ranks=1, max_running_requests=1, page_size=2, overlap=overlap)
    harness = Harness(config, [32])
    leaving = harness.add([5, 5], SamplingParams(max_new_tokens=9, ignore_eos=True))
    harness.plan()
    harness.scheduler.tidy()  # its next row begins a page
    assert harness.scheduler._cache.held.tolist() == [2]
    harness.run_rank(0)
    harness.commit()
    harness.abort(leaving)
    harness.add([6, 6, 6, 6, 6], SamplingParams(max_new_tokens=4, ignore_eos=True))
    bundle = harness.plan()
    assert bundle is not None
    plan = bundle.plans[0]
    assert unpack_int32(plan.retired).tolist() == [0]
    assert unpack_pairs(plan.pages)[:, 0].tolist() == [0] * 3  # the new request's own
    harness.drain()
    harness.check_pools_are_full()
    harness.check_outputs()


def test_a_page_given_ahead_is_not_told_to_a_lost_ranks_new_worker() -> None:
    config = changed(attention_ranks=1, max_running_requests=1, page_size=2)
    harness = Harness(config, [32])
    harness.add([5, 5], SamplingParams(max_new_tokens=9, ignore_eos=True))
    harness.plan()
    harness.scheduler.tidy()  # its next row begins a page
    harness.lose_rank(0)
    harness.restore_rank(0)
    harness.commit()
    bundle = harness.plan()
    assert bundle is not None
    assert unpack_pairs(bundle.plans[0].pages)[:, 0].tolist() == [0]
    harness.drain()
    harness.check_pools_are_full()
    harness.check_outputs()


def test_a_request_leaves_with_its_last_plan_and_its_whole_answer_is_remembered() -> None:
    harness = Harness(changed(attention_ranks=1, page_size=4, overlap=True), [32])
    uid = harness.add([5] * 4, SamplingParams(max_new_tokens=9, ignore_eos=True))
    harness.advance()
    while harness.scheduler._running.count.any():
        harness.advance()
    assert uid not in harness.finished
    harness.drain()
    harness.scheduler.tidy()
    # The last token has no row, so the last of 13 is not in the cache.
    known = pack_int32([5] * 4 + harness.delivered[uid])
    assert harness.scheduler._residents.known_tokens(known) == 12


def test_what_is_kept_for_later_is_gone_after_tidy_though_nothing_ends() -> None:
    harness = Harness(changed(attention_ranks=1), [32])
    harness.add([5] * 3, SamplingParams(max_new_tokens=20, ignore_eos=True))
    history = harness.scheduler._residents.history
    for _ in range(6):
        harness.advance()
        harness.scheduler.tidy()
        assert not history._unwritten
    assert not harness.finished


def test_a_rank_cannot_return_the_tokens_that_another_owes() -> None:
    scheduler = Scheduler(changed(attention_ranks=2), [40, 40])
    for uid in range(2):
        ids = pack_int32([2, 3])
        scheduler.add(uid, ids, SamplingParams(max_new_tokens=9, ignore_eos=True))
    bundle = scheduler.plan()
    assert bundle is not None and sorted(bundle.plans) == [0, 1]
    with pytest.raises(BadResult, match="rank 0 returned 2 tokens, 1 were planned"):
        scheduler.commit(0, {0: pack_int32([5, 6]), 1: b""})


def test_a_lost_ranks_prompt_in_flight_is_not_taken_for_its_slots_next_one() -> None:
    config = changed(attention_ranks=2, max_running_requests=1, page_size=2, chunked_prefill_size=2)
    harness = Harness(config, [32, 32])
    lost = harness.add([5, 5], SamplingParams(max_new_tokens=9, ignore_eos=True))
    harness.add([6, 6], SamplingParams(max_new_tokens=20, ignore_eos=True))
    harness.plan()
    harness.lose_rank(0)
    harness.restore_rank(0)
    harness.abort(lost)
    prompt = [7] * 8
    harness.add(prompt, SamplingParams(max_new_tokens=4, ignore_eos=True))
    harness.plan()  # only a part of it runs
    harness.run_rank(1)
    harness.commit()
    harness.scheduler.tidy()
    assert harness.scheduler._residents.match(pack_int32(prompt)) == []
    harness.drain()
    harness.check_outputs()
