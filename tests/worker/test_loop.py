"""The worker's loop over real sockets, with executors whose steps end when a test says so."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from afd.worker.loop import Seat, Synchronous, WrongPlanError, serve
from afd_sched.links import CoordinatorLink, WorkerLink, worker_identity
from afd_sched.messages import FfnResult, FfnStep, Hello, Message, Ping, Pong, StepPlan, Stop

PATIENCE_S = 20


class Scripted:
    """Takes ``step_ns`` a step, or as long as a test holds it, and keeps what it was given."""

    def __init__(self, rank: int, step_ns: int) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.held = threading.Event()
        self.begins = threading.Semaphore(0)
        self._rank, self._step_ns = rank, step_ns
        self._planned_ns = 0

    @property
    def due_ns(self) -> int:
        """A millisecond away for as long as the step is held."""
        return time.monotonic_ns() + 1_000_000 if self.held.is_set() else self._planned_ns

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        now = time.monotonic_ns()
        self.begun.append((plan.step, arrived_ns, now))
        self._planned_ns = now + self._step_ns
        self.begins.release()

    def finish(self) -> FfnResult:
        assert time.monotonic_ns() >= self.due_ns
        return FfnResult(self.begun[-1][0], self._rank, 0, 0)


def _receive(link: CoordinatorLink, count: int) -> list[tuple[bytes, Message]]:
    got: list[tuple[bytes, Message]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < count and time.monotonic() < deadline:
        link.socket.poll(100)
        while (arrived := link.recv()) is not None:
            got.append(arrived)
    assert len(got) == count
    return got


def test_ranks_of_one_process_run_side_by_side_each_in_order(sockets: Path) -> None:
    endpoint = f"ipc://{sockets}/c"
    coordinator = CoordinatorLink(endpoint)
    executors = [Scripted(0, 2_000_000), Scripted(1, 500_000), Scripted(2, 0)]
    executors[0].held.set()
    seats = [Seat(WorkerLink(endpoint, e), executor) for e, executor in enumerate(executors)]
    for rank, seat in enumerate(seats):
        seat.link.send(Hello(1, "ffn", rank, 1))
    _receive(coordinator, 3)
    thread = threading.Thread(target=serve, args=(seats,), daemon=True)
    thread.start()
    sent_ns = time.monotonic_ns()
    for step in range(4):
        for rank in range(3):
            coordinator.send(worker_identity(rank), FfnStep(step, 1, b""))
    results = _receive(coordinator, 8)
    assert {who for who, _ in results} == {worker_identity(1), worker_identity(2)}
    # Messages of one peer keep their order: the answer says that all four plans are there.
    coordinator.send(worker_identity(0), Ping(0))
    assert isinstance(_receive(coordinator, 1)[0][1], Pong)
    released_ns = time.monotonic_ns()
    executors[0].held.clear()
    results += _receive(coordinator, 4)
    for rank in range(3):
        own = [m.step for who, m in results if who == worker_identity(rank)]  # type: ignore[attr-defined]
        assert own == [0, 1, 2, 3]
        begun = executors[rank].begun
        assert [step for step, _, _ in begun] == [0, 1, 2, 3]
        # A plan that waits for the one before it keeps the time at which it came.
        assert all(sent_ns <= arrived <= now for _, arrived, now in begun)
    (_, _, first), (_, _, second), *_, (_, last_arrived, _) = executors[0].begun
    assert first < released_ns < second and last_arrived < released_ns
    # One hears Stop in the middle of a step, and the others go on.
    executors[0].held.set()
    coordinator.send(worker_identity(0), FfnStep(4, 1, b""))
    assert all(executors[0].begins.acquire(timeout=PATIENCE_S) for _ in range(5))
    coordinator.send(worker_identity(0), Stop())
    coordinator.send(worker_identity(1), FfnStep(4, 1, b""))
    assert [who for who, _ in _receive(coordinator, 1)] == [worker_identity(1)]
    for rank in (1, 2):
        coordinator.send(worker_identity(rank), Stop())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    for seat in seats:
        seat.link.close()
    coordinator.close()


def test_a_synchronous_worker_takes_its_own_roles_plans_only() -> None:
    executor = Synchronous(lambda plan: FfnResult(plan.step, 2, 0, 0), FfnStep)
    executor.begin(FfnStep(5, 1, b""), 0)
    assert executor.due_ns == 0 and executor.finish() == FfnResult(5, 2, 0, 0)
    with pytest.raises(WrongPlanError, match="StepPlan"):
        executor.begin(StepPlan(6, 1), 0)
