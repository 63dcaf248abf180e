"""A worker's loop: plans in, results out, for one rank or for several that share a process.

    recv ─► [ plans waiting ] ─► begin ─► (due) ─► finish ─► send

The executor is the seam: the same loop runs steps on tensors and plays simulated ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import zmq

from afd_sched.links import WorkerLink
from afd_sched.messages import FfnResult, FfnStep, Ping, Pong, StepPlan, StepResult, Stop

Plan = TypeVar("Plan", bound=StepPlan | FfnStep)
_NS_PER_MS = 1_000_000


class StepExecutor(Protocol):
    """Runs a rank's steps, one at a time."""

    @property
    def due_ns(self) -> int:
        """When ``finish`` has the result, on time.monotonic_ns's clock; 0 means now."""
        ...

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        """Starts a step, whose plan arrived at ``arrived_ns``; may as well run it to its end."""
        ...

    def finish(self) -> StepResult | FfnResult:
        """The result of the step that was begun."""
        ...


class Synchronous(Generic[Plan]):
    """The StepExecutor of a worker whose ``step`` returns when the step is done."""

    due_ns = 0

    def __init__(self, step: Callable[[Plan], StepResult | FfnResult], plans: type[Plan]) -> None:
        self._step = step
        self._plans = plans
        self._result: StepResult | FfnResult

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        """See StepExecutor; raises WrongPlanError for the other role's."""
        if not isinstance(plan, self._plans):
            raise WrongPlanError(plan)
        self._result = self._step(plan)

    def finish(self) -> StepResult | FfnResult:
        """See StepExecutor."""
        return self._result


class WrongPlanError(ValueError):
    """A rank got the other role's plan."""

    def __init__(self, plan: object) -> None:
        super().__init__(f"{type(plan).__name__} was sent to a rank of the other role")


class Seat:
    """One rank in this process: its link, its executor, and the plans that wait."""

    def __init__(self, link: WorkerLink, executor: StepExecutor) -> None:
        self.link = link
        self.over = False
        self._executor = executor
        self._waiting: deque[tuple[StepPlan | FfnStep, int]] = deque()
        self._running = False

    @property
    def due_ns(self) -> int | None:
        """When this seat wants to act again without a message; None if never."""
        return self._executor.due_ns if self._running else None

    def receive(self) -> None:
        """Takes in every message that is here."""
        while not self.over and (message := self.link.recv(0)) is not None:
            if isinstance(message, Stop):
                self.over = True
                self.link.dismiss()
            elif isinstance(message, Ping):
                self.link.send(Pong(self.link.rank, message.sent_ns, time.monotonic_ns()))
            else:
                self._waiting.append((message, time.monotonic_ns()))

    def advance(self) -> None:
        """Finishes what is due and begins what waits; raises what the executor raises."""
        while not self.over:
            if self._running:
                if self._executor.due_ns > time.monotonic_ns():
                    return
                self.link.send(self._executor.finish())
                self._running = False
            if not self._waiting:
                return
            self._executor.begin(*self._waiting.popleft())
            self._running = True


def serve(seats: Sequence[Seat]) -> None:
    """Runs until every seat has heard Stop."""
    poller = zmq.Poller()
    by_socket = {seat.link.socket: seat for seat in seats}
    for socket in by_socket:
        poller.register(socket, zmq.POLLIN)
    while by_socket:
        for socket, _ in poller.poll(_patience_ms(by_socket.values())):
            by_socket[socket].receive()
        for socket, seat in list(by_socket.items()):
            seat.advance()
            if seat.over:
                poller.unregister(socket)
                del by_socket[socket]


def _patience_ms(seats: Iterable[Seat]) -> int | None:
    """How long a message may be waited for; whole milliseconds, so what is left of the last one is
    slept here."""
    due = [seat.due_ns for seat in seats if seat.due_ns is not None]
    if not due:
        return None
    left_ns = min(due) - time.monotonic_ns()
    if 0 < left_ns < _NS_PER_MS:
        time.sleep(left_ns / 1e9)
    return max(0, left_ns // _NS_PER_MS)
