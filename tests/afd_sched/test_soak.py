"""A control plane that runs for long: memory stays flat, and numbers near their ends are safe."""

from __future__ import annotations

import gc
import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from afd_sched.decode import LAST_UID
from afd_sched.flight import StepsExhausted
from afd_sched.ints import pack_int32
from afd_sched.messages import (
    Abort,
    FfnResult,
    FfnStep,
    Generate,
    SamplingParams,
    StepPlan,
    StepResult,
    Tokens,
)
from afd_sched.replica import SlotTable
from afd_sched.req import RequestRefused
from afd_sched.scheduler import STEP_LIMIT, Scheduler, SchedulerConfig
from afd_sched.steps import StepLoop
from tests.afd_sched.fleet import EOS, VOCAB
from tests.afd_sched.harness import Harness

PAGES = (40, 56)
CONFIG = SchedulerConfig(
    attention_ranks=len(PAGES),
    ffn_ranks=1,
    num_lanes=2,
    max_running_requests=6,
    chunked_prefill_size=24,
    page_size=4,
    context_length=128,
    eos_token_ids=EOS,
    overlap=True,
    priority_scheduling=True,
    max_queued_requests=2,
)


@dataclass
class Counts:
    """What a run has seen."""

    steps: int = 0
    ended: int = 0
    aborted: int = 0
    refused: int = 0


class Soak:
    """The production loop, without sockets, over slot tables whose tokens are random."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(CONFIG, PAGES)
        self.loop = StepLoop(self.scheduler, CONFIG.attention_ranks, CONFIG.ffn_ranks)
        self.counts = Counts()
        self._random = random.Random(0)
        self._numbers = np.random.default_rng(0)
        self._tables = [SlotTable(CONFIG.max_running_requests, 32) for _ in PAGES]
        self._plans: deque[tuple[int, StepPlan | FfnStep]] = deque()
        self._open: list[int] = []
        self._uid = 0
        # A few system prompts, so that the prefix cache has hits and evictions.
        self._known = [self._numbers.integers(2, VOCAB, 40).tolist() for _ in range(12)]

    def _arrive(self) -> None:
        draw = self._random
        known = draw.choice(self._known)[: draw.randint(0, 40)]
        ids = pack_int32([*known, *draw.choices(range(2, VOCAB), k=draw.randint(1, 12))])
        sampling = SamplingParams(
            max_new_tokens=draw.randint(1, 60),
            ignore_eos=draw.random() < 0.5,
            stop_token_ids=(7,) if draw.random() < 0.1 else (),
        )
        message = Generate(self._uid, ids, sampling, priority=draw.randint(-1, 1))
        if self.loop.generate(message) is None:
            self._open.append(self._uid)
        else:
            self.counts.refused += 1
        self._uid += 1

    def step(self) -> None:
        """Arrivals, now and then an abort, and one worker's work on the oldest plan."""
        draw = self._random
        while len(self._open) < 16 and draw.random() < 0.7:
            self._arrive()
        if draw.random() < 0.02 and self._open:
            self.counts.aborted += 1
            self.loop.abort(Abort(self._open.pop(draw.randrange(len(self._open)))))
        for rank, message in self.loop.advance(0.0):
            if isinstance(message, Tokens):
                self._deliver(message)
            elif isinstance(message, StepPlan | FfnStep):
                assert rank is not None
                self._plans.append((rank, message))
        self.loop.tidy()
        while self._plans:
            self._run(*self._plans.popleft())

    def _deliver(self, message: Tokens) -> None:
        self.counts.steps += 1
        finished = np.frombuffer(message.finished, np.int8)
        if finished.any():
            over = set(np.frombuffer(message.uids, np.int64)[finished > 0].tolist())
            assert over <= set(self._open)
            self._open = [uid for uid in self._open if uid not in over]
            self.counts.ended += len(over)

    def _run(self, rank: int, plan: StepPlan | FfnStep) -> None:
        if isinstance(plan, FfnStep):
            self.loop.result(FfnResult(plan.step, rank, 0, 0))
            return
        batch = self._tables[rank].apply(plan)
        tokens = self._numbers.integers(0, VOCAB * 2, len(batch.sample_rows), np.int32)
        self._tables[rank].record(tokens)
        self.loop.result(StepResult(plan.step, rank, pack_int32(tokens), 0, 0, 0, 0))

    def sizes(self) -> dict[str, int]:
        """Everything in the scheduler that could grow."""
        scheduler, residents = self.scheduler, self.scheduler._residents
        return {
            "requests": len(scheduler._reqs),
            "residents": len(residents.by_slot),
            "left": len(residents._left),
            "remembered": len(residents._prompts),
            "freeing": len(residents._freeing),
            "retracted": len(scheduler._retracted),
            "in flight": scheduler.in_flight,
            "unwritten": len(residents.history._unwritten),
            "uncounted": len(self.loop._uncounted),
            "nodes": residents.tree.nodes,
            "leaves": sum(map(len, residents.tree._leaves)),
            "stops": len(scheduler._stops._watching) + len(scheduler._stops._many),
            "prompts": sum(map(len, scheduler._prefill._prompts.values())),
            "deltas": len(scheduler._deltas._retired) + len(scheduler._deltas._admitted),
        }


def _soak(steps: int) -> None:
    process = psutil.Process()
    soak = Soak()
    bounds = {"nodes": sum(PAGES), "leaves": sum(PAGES), "unwritten": 0, "uncounted": 0}
    marks: list[int] = []
    enabled = gc.isenabled()
    # What other tests left behind is not ours.
    gc.collect()
    gc.disable()
    try:
        while soak.counts.steps < steps:
            soak.step()
            if soak.counts.steps % 1000 == 0:
                for name, size in soak.sizes().items():
                    assert size <= bounds.get(name, 16), f"{size} {name}"
            if soak.counts.steps >= steps * (len(marks) + 2) // 10:
                marks.append(process.memory_info().rss)
        # The coordinator runs without a collector, so nothing may need one.
        assert gc.collect() < 1000
    finally:
        if enabled:
            gc.enable()
    counts = soak.counts
    print(f"{counts}, {(max(marks) - marks[0]) / 2**20:.1f} MiB grown, {soak.loop.values()}")
    assert max(marks) - marks[0] < 4 * 2**20
    assert min(counts.ended, counts.aborted, counts.refused) > 10
    assert soak.scheduler.retractions > 0 and soak.scheduler.cache_hit_rate > 0.1


def test_memory_is_flat_over_five_thousand_steps_of_churn() -> None:
    _soak(5_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_a_million_steps_of_churn() -> None:
    _soak(1_000_000)


def _outputs(first_step: int, first_uid: int) -> list[list[int]]:
    config = SchedulerConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}
        | {"first_step": first_step, "max_queued_requests": None}
    )
    harness = Harness(config, list(PAGES), first_uid)
    draw = random.Random(3)
    for _ in range(24):
        prompt = draw.choices(range(VOCAB), k=draw.randint(1, 30))
        harness.add(prompt, SamplingParams(max_new_tokens=draw.randint(1, 40)))
    harness.drain()
    harness.check_outputs()
    return [harness.delivered[uid] for uid in sorted(harness.delivered)]


@pytest.mark.parametrize("first_step", [2**31 - 9, 2**32 - 9])
@pytest.mark.parametrize("first_uid", [2**31 - 9, 2**32 - 9, LAST_UID - 24])
def test_step_and_request_numbers_may_be_large(first_step: int, first_uid: int) -> None:
    assert _outputs(first_step, first_uid) == _outputs(0, 0)


def test_the_last_step_and_the_last_request_number_are_refused_by_name() -> None:
    scheduler = Scheduler(
        SchedulerConfig(
            **{name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}
            | {"first_step": STEP_LIMIT - 1}
        ),
        PAGES,
    )
    ids = pack_int32([3])
    with pytest.raises(RequestRefused, match="request ids"):
        scheduler.add(LAST_UID, ids, SamplingParams())
    scheduler.add(LAST_UID - 1, ids, SamplingParams(ignore_eos=True))
    assert scheduler.plan() is not None
    with pytest.raises(StepsExhausted, match="restart the engine"):
        scheduler.plan()
