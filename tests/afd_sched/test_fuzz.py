"""Nothing that arrives can do more than be refused: decoders, and the coordinator behind them."""

from __future__ import annotations

import os
import random
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_sched import coordinator
from afd_sched.coordinator import Coordinator, CoordinatorConfig
from afd_sched.links import FRONTEND, CoordinatorLink, worker_identity
from afd_sched.messages import (
    Abort,
    FfnResult,
    Generate,
    SamplingParams,
    StepResult,
    ToCoordinator,
    ToFrontend,
    ToWorker,
)
from afd_sched.scheduler import Scheduler
from afd_sched.steps import StepLoop
from tests.afd_sched.fleet import EOS, sequential
from tests.afd_sched.mutations import example, mutants
from tests.afd_sched.run_coordinator import PATIENCE_MS, Fleet

UNIONS = (ToCoordinator, ToFrontend, ToWorker)
_INPUTS, _SLOW_INPUTS = 6_000, 1_000_000


def _decode_all(union: typing.Any, count: int, seed: int) -> int:
    decoder = msgspec.msgpack.Decoder(union)
    kinds = typing.get_args(union)
    accepted = 0
    for data in mutants(union, count, seed):
        try:
            message = decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError):
            continue
        assert isinstance(message, kinds)
        again = decoder.decode(msgspec.msgpack.encode(message))
        # repr: a NaN differs from itself.
        assert repr(again) == repr(message)
        accepted += 1
    return accepted


@pytest.mark.parametrize("union", UNIONS, ids=["coordinator", "frontend", "worker"])
def test_a_mutant_is_refused_or_is_a_message(union: typing.Any) -> None:
    accepted = _decode_all(union, _INPUTS, seed=1)
    assert _INPUTS // 100 < accepted < _INPUTS // 2, "the mutants are all junk, or all valid"


@pytest.mark.slow
def test_a_million_mutants() -> None:
    for seed, union in enumerate(UNIONS):
        _decode_all(union, _SLOW_INPUTS // len(UNIONS) + 1, seed=10 + seed)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_or_is_a_message(data: bytes) -> None:
    for union in UNIONS:
        try:
            message = msgspec.msgpack.decode(data, type=union)
        except (msgspec.MsgspecError, RecursionError):
            continue
        assert isinstance(message, typing.get_args(union))


def test_a_message_nested_without_end_is_refused(sockets: Path) -> None:
    link = CoordinatorLink(f"ipc://{sockets}/c")
    try:
        assert link._read([zmq.Frame(b"x"), zmq.Frame(b"\x91" * 100_000)]) is None
        assert link.messages.count == 1
    finally:
        link.close()


def test_a_message_of_several_frames_is_refused_whole(sockets: Path) -> None:
    link = CoordinatorLink(f"ipc://{sockets}/c")
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
            sender.setsockopt(zmq.IDENTITY, FRONTEND)
            sender.connect(f"ipc://{sockets}/c")
            first, second = (msgspec.msgpack.encode(Abort(uid)) for uid in (1, 2))
            sender.send_multipart([b"", first])
            sender.send_multipart([first, first, first])
            sender.send(second)
            got = None
            while got is None:
                assert link.socket.poll(PATIENCE_MS)
                got = link.recv()
            assert got == (FRONTEND, Abort(2))
            assert link.messages.count == 2
    finally:
        link.close()


CONFIG = CoordinatorConfig(
    attention_ranks=2,
    ffn_ranks=1,
    num_lanes=2,
    max_running_requests=4,
    chunked_prefill_size=16,
    page_size=4,
    context_length=64,
    eos_token_ids=EOS,
    overlap=True,
    endpoint="",
    start_timeout_s=1.0,
    log_level="error",
    lifeline_fd=-1,
)


@pytest.fixture
def running(sockets: Path) -> Iterator[Coordinator]:
    """A coordinator in this process, with a request in flight."""
    lifeline, writer = os.pipe()
    link = CoordinatorLink(f"ipc://{sockets}/c")
    config = msgspec.structs.replace(CONFIG, lifeline_fd=lifeline)
    under_test = Coordinator(config, link)
    _start_run(under_test)
    try:
        yield under_test
    finally:
        link.close()
        os.close(lifeline)
        os.close(writer)


_LONG = SamplingParams(max_new_tokens=50, ignore_eos=True)


def _start_run(coordinator: Coordinator) -> None:
    """With a request in flight."""
    loop = coordinator._loop = StepLoop(Scheduler(coordinator._config, [20, 20]), 2, 1)
    message = Generate(10**6, np.arange(2, 9, dtype=np.int32).tobytes(), _LONG)
    assert loop.generate(message) is None
    list(loop.advance(0.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_rogue_peer_can_end_a_run_by_name_and_do_nothing_else(
    running: Coordinator, seed: int
) -> None:
    """Valid messages with odd values, under the identities of workers and front end alike."""
    rng = random.Random(seed)
    kinds = typing.get_args(ToCoordinator)
    senders = [FRONTEND, b"stranger", *map(worker_identity, range(4))]
    ends = 0
    for _ in range(1500):
        message = example(rng.choice(kinds), rng)
        if hasattr(message, "rank") and rng.random() < 0.8:
            message = msgspec.structs.replace(message, rank=rng.randrange(-1, 4))
        if isinstance(message, StepResult | FfnResult) and rng.random() < 0.8:
            message = msgspec.structs.replace(message, step=rng.randrange(4))
        try:
            running._handle(rng.choice(senders), message)
            assert running._loop is not None
            list(running._loop.advance(1.0))
            running._loop.tidy()
        except coordinator._Over:
            ends += 1  # and the run goes on, to be shot at
        except coordinator.RunFailed:
            ends += 1
            _start_run(running)  # for nothing can be committed after a bad result
    assert running._link.messages.count > 500
    assert ends > 0


@pytest.mark.parametrize("count", [3000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_a_socket_under_fire_serves_on(sockets: Path, count: int) -> None:
    with Fleet(sockets) as fleet, zmq.Context() as context:
        fleet.start_all()
        fleet.receive()
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(fleet.endpoint)
        first = fleet.generate(0, [5, 6], max_new_tokens=40, ignore_eos=True)
        for i, data in enumerate(mutants(ToCoordinator, count, seed=3)):
            stranger.send_multipart([data] * (1 if i % 50 else 3))
        second = fleet.generate(1, [7], max_new_tokens=40, ignore_eos=True)
        tokens = fleet.collect({0, 1})
        assert tokens[0] == sequential([5, 6], first, 64)
        assert tokens[1] == sequential([7], second, 64)
        while (values := fleet.stats())["messages_refused"] < count:
            pass
        assert values["messages_refused"] == count
        stranger.close()
        assert fleet.errors == []
