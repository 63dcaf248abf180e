"""The worker's loop over real sockets, with executors whose steps end when a test says so."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from afd.worker.loop import Seat, Synchronous, WrongPlanError, serve
from afd_sched.links import CoordinatorLink, WorkerLink, worker_identity
from afd_sched.messages import FfnResult, FfnStep, Hello, Message, StepPlan, Stop

PATIENCE_S = 20


class Scripted:
    """Takes ``hold_ns`` a step and keeps what it was given."""

    def __init__(self, rank: int, hold_ns: int) -> None:
        self.due_ns = 0
        self.begun: list[tuple[int, int, int]] = []
        self._rank, self._hold_ns = rank, hold_ns

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        now = time.monotonic_ns()
        self.begun.append((plan.step, arrived_ns, now))
        self.due_ns = now + self._hold_ns

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


def test_ranks_of_one_process_run_side_by_side_each_in_order(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/c"
    coordinator = CoordinatorLink(endpoint)
    executors = [Scripted(0, 20_000_000), Scripted(1, 500_000), Scripted(2, 0)]
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
    results = _receive(coordinator, 12)
    for rank in range(3):
        own = [m.step for who, m in results if who == worker_identity(rank)]  # type: ignore[attr-defined]
        assert own == [0, 1, 2, 3]
        begun = executors[rank].begun
        assert [step for step, _, _ in begun] == [0, 1, 2, 3]
        # A plan that waits for the one before it keeps the time at which it came.
        assert all(sent_ns <= arrived <= now for _, arrived, now in begun)
    slow = executors[0].begun
    assert slow[3][2] - slow[3][1] > 40_000_000, "the last plan came while the first step ran"
    # One hears Stop in the middle of a step, and the others go on.
    coordinator.send(worker_identity(0), FfnStep(4, 1, b""))
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
