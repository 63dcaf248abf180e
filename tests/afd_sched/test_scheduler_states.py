"""The scheduler under random arrivals, aborts, stops, priorities, lost and replaying workers and
tiny page pools, in any interleaving."""

from __future__ import annotations

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from afd_sched.messages import SamplingParams
from afd_sched.policy import SchedulePolicy
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
    radix_cache=st.sampled_from([True, True, True, False]),
    schedule_policy=st.sampled_from(SchedulePolicy),
    priority_scheduling=st.just(True),
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
        count=st.integers(1, 4),
        new=st.integers(1, 30),
        ignore_eos=st.booleans(),
        priority=st.integers(-2, 2),
        stop_ids=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    )
    def arrive(
        self,
        data: st.DataObject,
        count: int,
        new: int,
        ignore_eos: bool,
        priority: int,
        stop_ids: list[int],
    ) -> None:
        longest = min(self.harness.scheduler.max_total_tokens - 1, 20)
        prompt = self._known(data)
        least = 0 if prompt else 1
        prompt += data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=least, max_size=6))
        for at in range(count):
            sampling = SamplingParams(
                max_new_tokens=new + at,
                seed=len(self.harness.prompts) % 3,
                ignore_eos=ignore_eos,
                stop_token_ids=tuple(stop_ids),
            )
            # The first ones are the same prompt, as when a user asks for several answers.
            self.harness.add((prompt + [at] * (at // 2))[:longest], sampling, priority)

    def _known(self, data: st.DataObject) -> list[int]:
        """What an earlier request said and heard so far, up to any point."""
        prompts, delivered = self.harness.prompts, self.harness.delivered
        if not prompts:
            return []
        uid = data.draw(st.integers(0, len(prompts) - 1))
        tokens = prompts[uid] + delivered[uid]
        whole = st.just(len(tokens))
        return tokens[: data.draw(st.one_of(whole, st.integers(0, len(tokens))))]

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

    @rule(rank=st.integers(0, 2), fault=st.sampled_from(["replay", "lose", "restore"]))
    def fault(self, rank: int, fault: str) -> None:
        if rank >= len(self.harness.ranks):
            return
        if fault == "replay":
            self.harness.replay_rank(rank)
        elif fault == "restore" or rank in self.harness.lost:
            self.harness.restore_rank(rank)
        else:
            self.harness.lose_rank(rank)

    @rule()
    def tidy(self) -> None:
        self.harness.scheduler.tidy()

    @precondition(lambda self: len(self.harness.prompts) > 0)
    @rule(steps=st.integers(1, 12))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.harness.advance()

    @invariant()
    def conserved(self) -> None:
        if hasattr(self, "harness"):
            self.harness.check_conservation()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            for rank in range(len(self.harness.ranks)):
                self.harness.restore_rank(rank)
            self.harness.drain()
            self.harness.check_pools_are_full()
            self.harness.check_outputs()
            event(f"prefix cache was used: {self.harness.scheduler.cache_hit_rate > 0}")
            event(f"requests were retracted: {self.harness.scheduler.retractions > 0}")


TestSchedulerStates = SchedulerStates.TestCase
TestSchedulerStates.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
