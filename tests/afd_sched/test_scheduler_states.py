"""The scheduler under random arrivals, aborts, stops and tiny page pools, in any interleaving."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from afd_sched.messages import SamplingParams
from afd_sched.scheduler import SchedulerConfig
from tests.afd_sched.fleet import EOS, VOCAB
from tests.afd_sched.harness import Harness

CONFIGS = st.builds(
    SchedulerConfig,
    attention_ranks=st.integers(1, 3),
    ffn_ranks=st.integers(0, 2),
    num_lanes=st.integers(1, 4),
    max_running_requests=st.integers(1, 4),
    chunked_prefill_size=st.integers(1, 7),
    page_size=st.integers(1, 4),
    context_length=st.integers(6, 40),
    eos_token_ids=st.just(EOS),
    overlap=st.booleans(),
    radix_cache=st.booleans(),
)


class SchedulerStates(RuleBasedStateMachine):
    """Teardown runs everything to its end and compares every output with a sequential run."""

    @initialize(config=CONFIGS, data=st.data())
    def start(self, config: SchedulerConfig, data: st.DataObject) -> None:
        pages = data.draw(
            st.lists(
                st.integers(4, 12),
                min_size=config.attention_ranks,
                max_size=config.attention_ranks,
            )
        )
        self.harness = Harness(config, pages)

    @rule(
        data=st.data(),
        new=st.integers(1, 30),
        ignore_eos=st.booleans(),
        stop_ids=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    )
    def arrive(self, data: st.DataObject, new: int, ignore_eos: bool, stop_ids: list[int]) -> None:
        longest = min(self.harness.scheduler.max_total_tokens - 1, 14)
        prompt = self._known(data) if data.draw(st.booleans()) else []
        prompt += data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=longest))
        prompt = prompt[-longest:] if data.draw(st.booleans()) else prompt[:longest]
        sampling = SamplingParams(
            max_new_tokens=new,
            seed=len(self.harness.prompts) % 5,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop_ids),
        )
        self.harness.add(prompt, sampling)

    def _known(self, data: st.DataObject) -> list[int]:
        """What an earlier request said and heard so far, up to any point."""
        prompts, delivered = self.harness.prompts, self.harness.delivered
        if not prompts:
            return []
        uid = data.draw(st.integers(0, len(prompts) - 1))
        tokens = prompts[uid] + delivered[uid]
        return tokens[: data.draw(st.integers(0, len(tokens)))]

    @rule(back=st.integers(-1, 8))
    def abort(self, back: int) -> None:
        self.harness.abort(len(self.harness.prompts) - 1 - back)

    @rule()
    def plan(self) -> None:
        self.harness.plan()

    @rule(rank=st.integers(0, 2))
    def run_rank(self, rank: int) -> None:
        if rank < len(self.harness.ranks):
            self.harness.run_rank(rank)

    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @rule()
    def tidy(self) -> None:
        self.harness.scheduler.tidy()

    @precondition(lambda self: len(self.harness.prompts) > 0)
    @rule(steps=st.integers(1, 6))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.harness.advance()

    @invariant()
    def conserved(self) -> None:
        if hasattr(self, "harness"):
            self.harness.check_conservation()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()
            self.harness.check_pools_are_full()
            self.harness.check_outputs()


TestSchedulerStates = SchedulerStates.TestCase
TestSchedulerStates.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
