"""The coordinator process over real ipc sockets: runs, failures, strangers and nonsense."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import zmq

from afd_sched.links import WorkerLink
from afd_sched.messages import (
    PROTOCOL_VERSION,
    Abort,
    Failed,
    GetStats,
    Hello,
    Message,
    RankLost,
    Ready,
    Rejected,
    Started,
    Stats,
    StepResult,
    Stop,
    Tokens,
    WorkerFailed,
)
from tests.afd_sched.fleet import sequential
from tests.afd_sched.run_coordinator import (
    CONTEXT_TOKENS,
    PAGE_TOKENS,
    PAGES,
    PATIENCE_MS,
    Fleet,
)


def _stop(fleet: Fleet) -> None:
    """An orderly end: every worker hears Stop, no fake worker saw a contradiction, status 0."""
    fleet.frontend.send(Stop())
    assert fleet.process.wait(PATIENCE_MS / 1000) == 0
    for thread in fleet.threads:
        thread.join(PATIENCE_MS / 1000)
    assert fleet.errors == []
    assert fleet.stopped == set(range(fleet.attention_ranks + fleet.ffn_ranks))


@pytest.mark.parametrize(("ffn_ranks", "overlap"), [(1, True), (2, False), (0, True)])
def test_requests_are_answered_as_if_each_ran_alone(
    sockets: Path, ffn_ranks: int, overlap: bool
) -> None:
    with Fleet(sockets, ffn_ranks=ffn_ranks, overlap=overlap) as fleet:
        fleet.start_all()
        started = fleet.receive()
        assert started == Started(PAGES * PAGE_TOKENS, CONTEXT_TOKENS)
        prompts = {uid: [2 + uid % 9, *range(3, 3 + uid)] for uid in range(20)}
        params = {
            uid: fleet.generate(uid, prompt, max_new_tokens=10 + uid, ignore_eos=uid % 2 == 0)
            for uid, prompt in prompts.items()
        }
        tokens = fleet.collect(set(prompts))
        for uid, prompt in prompts.items():
            assert tokens[uid] == sequential(prompt, params[uid], CONTEXT_TOKENS)
        fleet.frontend.send(GetStats())
        stats = fleet.receive()
        assert isinstance(stats, Stats)
        assert stats.values["tokens"] == sum(map(len, tokens.values()))
        assert stats.values["running"] == stats.values["waiting"] == 0
        assert stats.values["wire_bytes_out"] * 2 == stats.values["wire_bytes_back"] * 3 > 0
        assert stats.values["messages_refused"] == 0
        _stop(fleet)


def test_a_request_that_cannot_run_is_rejected_and_others_go_on(sockets: Path) -> None:
    with Fleet(sockets) as fleet:
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        fleet.generate(0, [])
        rejected = fleet.receive()
        assert isinstance(rejected, Rejected) and rejected.uid == 0 and "empty" in rejected.reason
        fleet.generate(1, [3] * CONTEXT_TOKENS)
        rejected = fleet.receive()
        assert isinstance(rejected, Rejected) and str(CONTEXT_TOKENS) in rejected.reason
        fleet.generate(2, [3], max_new_tokens=50, ignore_eos=True)
        fleet.frontend.send(Abort(2))
        fleet.frontend.send(Abort(999))
        params = fleet.generate(3, [4, 5], max_new_tokens=4)
        # Request 2's early tokens may come; collect() takes both until 3 is done.
        seen: list[int] = []
        expected = sequential([4, 5], params, CONTEXT_TOKENS)
        while len(seen) < len(expected):
            seen += [t for u, t in _pairs(fleet.receive()) if u == 3]
        assert seen == expected
        _stop(fleet)


def _pairs(message: Message) -> list[tuple[int, int]]:
    assert isinstance(message, Tokens)
    uids, tokens = memoryview(message.uids).cast("q"), memoryview(message.tokens).cast("i")
    return list(zip(uids, tokens, strict=True))


def test_a_start_that_takes_too_long_names_who_is_missing(sockets: Path) -> None:
    for timeout_s in (0.5, 2.0, 8.0):
        with Fleet(sockets, start_timeout_s=timeout_s) as fleet:
            fleet.hello()
            fleet.start_worker(0)
            failed = fleet.receive()
            assert isinstance(failed, Failed)
            assert f"attention rank 1, FFN rank 2 did not become ready within {timeout_s:g} s" in (
                failed.reason
            )
            assert fleet.process.wait(PATIENCE_MS / 1000) == 1
        # A slow machine may take longer to start the worker that does come.
        if "attention rank 0" not in failed.reason:
            return
    raise AssertionError(failed.reason)


def test_a_worker_that_fails_ends_the_run_by_name_and_stops_the_others(sockets: Path) -> None:
    def fail(rank: int, answer: Message) -> Message:
        return WorkerFailed(rank, "out of memory") if answer.step == 3 else answer  # type: ignore[attr-defined]

    with Fleet(sockets) as fleet:
        fleet.hello()
        fleet.start_worker(0)
        fleet.start_worker(1, fail)
        fleet.start_worker(2)
        assert isinstance(fleet.receive(), Started)
        for uid in range(4):
            fleet.generate(uid, [3, 4], max_new_tokens=40, ignore_eos=True)
        while not isinstance(message := fleet.receive(), Failed):
            pass
        assert message == Failed(1, "out of memory")
        assert fleet.process.wait(PATIENCE_MS / 1000) == 1
        for thread in fleet.threads:
            thread.join(PATIENCE_MS / 1000)
        assert fleet.stopped == {0, 1, 2}


def test_a_lost_rank_ends_the_run_with_the_launchers_reason(sockets: Path) -> None:
    with Fleet(sockets) as fleet:
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        fleet.frontend.send(RankLost(2, "FFN rank 2 was killed by signal 9"))
        assert fleet.receive() == Failed(2, "FFN rank 2 was killed by signal 9")
        assert fleet.process.wait(PATIENCE_MS / 1000) == 1


@pytest.mark.parametrize("started", [False, True])
def test_the_coordinator_does_not_outlive_its_launcher(sockets: Path, started: bool) -> None:
    with Fleet(sockets) as fleet:
        if started:
            fleet.start_all()
            assert isinstance(fleet.receive(), Started)
        fleet.cut_lifeline()
        fleet.process.wait(PATIENCE_MS / 1000)


def test_another_protocol_version_is_refused_with_both_numbers(sockets: Path) -> None:
    with Fleet(sockets) as fleet:
        fleet.hello(PROTOCOL_VERSION + 1)
        failed = fleet.receive()
        assert isinstance(failed, Failed)
        assert str(PROTOCOL_VERSION + 1) in failed.reason and str(PROTOCOL_VERSION) in failed.reason


def test_nonsense_is_counted_and_the_run_goes_on(sockets: Path) -> None:
    with Fleet(sockets) as fleet, zmq.Context() as context:
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.IDENTITY, b"stranger")
        stranger.connect(fleet.endpoint)
        rng = random.Random(7)
        real = msgspec.msgpack.encode(StepResult(0, 0, bytes(8), 1, 2, 3, 4))
        sent = 0
        for _ in range(200):
            cut = rng.randrange(len(real))
            for junk in (rng.randbytes(rng.randrange(60)), real[:cut]):
                stranger.send(junk)
                sent += 1
        # A real message from one who may not send it, and too many frames.
        stranger.send(msgspec.msgpack.encode(Stop()))
        stranger.send(msgspec.msgpack.encode(WorkerFailed(1, "not I")))
        stranger.send(msgspec.msgpack.encode(Hello(PROTOCOL_VERSION + 1, "attention", 0, 1)))
        stranger.send_multipart([b"a", b"b", b"c"])
        sent += 4
        params = fleet.generate(0, [5, 6], max_new_tokens=12, ignore_eos=True)
        assert fleet.collect({0})[0] == sequential([5, 6], params, CONTEXT_TOKENS)
        refused = 0.0
        while refused < sent:
            fleet.frontend.send(GetStats())
            stats = fleet.receive()
            assert isinstance(stats, Stats)
            refused = stats.values["messages_refused"]
        assert refused == sent
        stranger.close(0)
        _stop(fleet)


def test_a_workers_other_protocol_version_ends_the_start_by_name(sockets: Path) -> None:
    with Fleet(sockets) as fleet:
        fleet.hello()
        worker = WorkerLink(fleet.endpoint, 1)
        worker.send(Hello(PROTOCOL_VERSION + 1, "attention", 1, 1))
        failed = fleet.receive()
        assert isinstance(failed, Failed) and failed.rank == 1
        assert str(PROTOCOL_VERSION + 1) in failed.reason
        worker.close()


def test_a_rank_that_does_not_exist_does_not_complete_the_fleet(sockets: Path) -> None:
    with Fleet(sockets, start_timeout_s=1.5) as fleet:
        fleet.hello()
        fleet.start_worker(0)
        fleet.start_worker(1)
        stranger = WorkerLink(fleet.endpoint, 99)
        stranger.send(Ready(99, 5))
        failed = fleet.receive()
        stranger.close()
        assert isinstance(failed, Failed) and "FFN rank 2" in failed.reason


@pytest.mark.parametrize("tokens", [b"", b"abc", bytes(8)], ids=["none", "ragged", "two"])
def test_a_result_of_the_wrong_size_ends_the_run_by_name(sockets: Path, tokens: bytes) -> None:
    def wrong(rank: int, answer: Message) -> Message:
        later = isinstance(answer, StepResult) and answer.step == 1
        return msgspec.structs.replace(answer, tokens=tokens) if later else answer

    with Fleet(sockets, attention_ranks=1) as fleet:
        fleet.hello()
        fleet.start_worker(0, wrong)
        fleet.start_worker(1)
        assert isinstance(fleet.receive(), Started)
        fleet.generate(0, [3, 4], max_new_tokens=9, ignore_eos=True)
        while isinstance(message := fleet.receive(), Tokens):
            pass
        assert isinstance(message, Failed) and message.rank == 0


def test_a_worker_cannot_speak_for_another(sockets: Path) -> None:
    def lie(rank: int, answer: Message) -> Message:
        return msgspec.structs.replace(answer, rank=0) if answer.step == 2 else answer  # type: ignore[attr-defined]

    with Fleet(sockets, attention_ranks=1, ffn_ranks=1) as fleet:
        fleet.hello()
        fleet.start_worker(0)
        fleet.start_worker(1, lie)
        assert isinstance(fleet.receive(), Started)
        fleet.generate(0, [5, 6], max_new_tokens=6, ignore_eos=True)
        seen = 0
        while seen < 2:
            seen += len(_pairs(fleet.receive()))
        # Step 2 stays open: its FFN result was refused.
        while True:
            fleet.frontend.send(GetStats())
            stats = fleet.receive()
            assert isinstance(stats, Stats)
            if stats.values["messages_refused"]:
                break
        assert stats.values["steps"] == 2
