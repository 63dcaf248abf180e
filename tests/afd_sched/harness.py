"""The real Scheduler driving FakeRanks, with every invariant checked after each move."""

from __future__ import annotations

import numpy as np

from afd_sched.ints import pack_int32, unpack_int32
from afd_sched.messages import SamplingParams
from afd_sched.req import FinishReason
from afd_sched.scheduler import Scheduler, SchedulerConfig, StepBundle, TokenBatch
from tests.afd_sched.fleet import EOS, FakeRank, sequential
from tests.afd_sched.trees import check_tree


class Harness:
    """Moves: ``add``, ``abort``, ``plan``, ``run_rank``, ``commit``; ``drain`` runs to the end."""

    def __init__(
        self, config: SchedulerConfig, pages_per_rank: list[int], first_uid: int = 0
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config, pages_per_rank)
        self._pages_per_rank = pages_per_rank
        self.ranks = [self._worker(rank) for rank in range(len(pages_per_rank))]
        self.lost: set[int] = set()
        self.bundles: list[StepBundle] = []
        self.results: dict[int, dict[int, bytes]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.samplings: dict[int, SamplingParams] = {}
        self.delivered: dict[int, list[int]] = {}
        self.finished: dict[int, FinishReason] = {}
        self.aborted: set[int] = set()
        self._first_uid = first_uid
        self._last_step = config.first_step - 1

    def _worker(self, rank: int) -> FakeRank:
        config, pages = self.config, self._pages_per_rank[rank]
        return FakeRank(config.max_running_requests, pages, config.page_size, config.context_length)

    def add(self, prompt: list[int], sampling: SamplingParams, priority: int = 0) -> int:
        """A request with the next uid."""
        uid = self._first_uid + len(self.prompts)
        self.scheduler.add(uid, pack_int32(prompt), sampling, priority)
        self.prompts[uid], self.samplings[uid], self.delivered[uid] = prompt, sampling, []
        return uid

    def abort(self, uid: int) -> None:
        """Also of a finished or unknown uid."""
        self.scheduler.abort(uid)
        if uid in self.prompts and uid not in self.finished:
            self.aborted.add(uid)

    def plan(self) -> StepBundle | None:
        """Plans a step if the depth allows one, and hands it to the ranks."""
        if not self.scheduler.may_plan:
            return None
        bundle = self.scheduler.plan()
        if bundle is None:
            return None
        config = self.config
        assert bundle.step == self._last_step + 1
        self._last_step = bundle.step
        assert 1 <= bundle.lanes <= config.num_lanes
        assert (bundle.ffn is not None) == (config.ffn_ranks > 0)
        if bundle.ffn is not None:
            assert bundle.ffn.step == bundle.step and bundle.ffn.lanes == bundle.lanes
            assert unpack_int32(bundle.ffn.attention_ranks).tolist() == sorted(bundle.plans)
        for rank, plan in bundle.plans.items():
            assert plan.step == bundle.step and plan.lanes == bundle.lanes
            self.ranks[rank].receive(plan)
        self.bundles.append(bundle)
        self.results[bundle.step] = {}
        assert len(self.bundles) <= (2 if config.overlap else 1)
        return bundle

    def run_rank(self, rank: int) -> None:
        """The rank runs its oldest plan; nothing if it has none."""
        worker = self.ranks[rank]
        if worker.pending:
            step, tokens = worker.run()
            self.results[step][rank] = pack_int32(tokens)
            assert worker.max_rows <= (
                self.config.max_running_requests + self.config.chunked_prefill_size
            )

    def replay_rank(self, rank: int) -> None:
        """The rank runs its latest step once more, as it does when an FFN rank was lost in it."""
        worker = self.ranks[rank]
        if worker.ran is not None:
            assert worker.replay().tolist() == worker.ran[1].tolist()

    def lose_rank(self, rank: int) -> None:
        """The rank's worker dies with all it knows; the steps in flight go on without it."""
        self.scheduler.lose(rank)
        self.lost.add(rank)
        self.ranks[rank] = self._worker(rank)
        for bundle in self.bundles:
            bundle.plans.pop(rank, None)
            self.results[bundle.step].pop(rank, None)

    def restore_rank(self, rank: int) -> None:
        """A new worker takes a lost rank's place."""
        if rank in self.lost:
            self.lost.remove(rank)
            self.scheduler.restore(rank)

    def commit(self) -> TokenBatch | None:
        """Commits the oldest step if all its ranks have run."""
        if not self.bundles or self.results[self.bundles[0].step].keys() != (
            self.bundles[0].plans.keys()
        ):
            return None
        step = self.bundles.pop(0).step
        batch = self.scheduler.commit(step, self.results.pop(step))
        for worker in self.ranks:
            worker.committed(step)
        self._deliver(step, batch)
        return batch

    def _deliver(self, step: int, batch: TokenBatch) -> None:
        assert batch.step == step
        uids = batch.uids.tolist()
        assert len(uids) == len(set(uids)), "one token each"
        for uid, token, reason in zip(
            uids, batch.tokens.tolist(), batch.finished.tolist(), strict=True
        ):
            assert uid not in self.finished, "a token after the last one"
            assert uid not in self.aborted, "a token after the abort"
            self.delivered[uid].append(token)
            if reason:
                self.finished[uid] = FinishReason(reason)

    def advance(self) -> bool:
        """As the coordinator does: plans as far ahead as it may, then one step is run and
        committed; whether anything happened."""
        planned = False
        while self.plan() is not None:
            planned = True
        self.scheduler.tidy()
        for rank in range(len(self.ranks)):
            self.run_rank(rank)
        return self.commit() is not None or planned

    def drain(self, most_steps: int = 20_000) -> None:
        """Runs until no request is open; more than ``most_steps`` moves is starvation."""
        for _ in range(most_steps):
            open_requests = self.scheduler.running + self.scheduler.waiting
            if not (open_requests or self.bundles):
                break
            assert self.advance(), "open requests, and nothing happens"
            self.check_conservation()
        else:
            raise AssertionError("a request starves")
        assert self.plan() is None
        self.check_conservation()

    def check_conservation(self) -> None:
        """Every slot and page of every rank is in exactly one place; only cached pages are shared,
        and the prefix cache's counts are what its tree and its users say."""
        scheduler, slots = self.scheduler, self.config.max_running_requests
        residents = scheduler._residents
        cache, tree = residents.cache, residents.tree
        freeing = [slot for _, left in residents._freeing for slot in left.slots.tolist()]
        assert len(set(freeing)) == len(freeing)
        cached = check_tree(tree, residents, self.config.page_size)
        for rank in range(len(self.ranks)):
            mine = range(rank * slots, (rank + 1) * slots)
            resident = set(residents.running.slots_of(rank).tolist())
            leaving = {slot for slot in freeing if slot in mine}
            free = residents.table._free[rank]
            assert len(set(free)) == len(free)
            in_use = sorted([*resident, *leaving, *free])
            assert in_use == ([] if rank in self.lost else list(mine))
            held = cache.held_pages(np.array(mine))[1].tolist()
            for left in residents._left:
                owners = np.repeat(left.slots // slots, left.counts)
                held += left.pages[owners == rank].tolist()
            own = [page for page in held if page not in cached[rank]]
            everywhere = own + list(cached[rank]) + cache._stack[rank, : cache.free[rank]].tolist()
            assert sorted(everywhere) == list(range(cache.pages[rank]))
            assert not any(cache.held[slot] for slot in free)
            assert all(residents.by_slot[slot].req.slot == slot for slot in resident)
        assert len(residents.by_slot) == len(freeing) + int(residents.running.count.sum())

    def check_pools_are_full(self) -> None:
        """Nothing is left behind once all is done, but what the prefix cache may give up."""
        residents = self.scheduler._residents
        for rank in range(len(self.ranks)):
            residents.evict(rank, 10**6, 0)
            assert residents.table.free(rank) == self.config.max_running_requests
        assert residents.cache.free.tolist() == residents.cache.pages.tolist()
        assert residents.tree.nodes == 0 and not residents.tree.root.children
        assert not (residents.by_slot or residents._freeing or self.scheduler._stops._watching)

    def check_outputs(self) -> None:
        """What was delivered is what each request generates alone (a prefix, if it was aborted)."""
        for uid, prompt in self.prompts.items():
            sampling = self.samplings[uid]
            total = self.scheduler.max_total_tokens
            expected = sequential(prompt, sampling, total)
            got = self.delivered[uid]
            if uid in self.aborted:
                assert got == expected[: len(got)]
                continue
            assert got == expected
            stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(EOS))
            reason = FinishReason.STOP if got[-1] in stops else FinishReason.LENGTH
            assert self.finished[uid] is reason
