"""The coordinator's link counts what it carries."""

from __future__ import annotations

from pathlib import Path

import msgspec

from afd_sched.links import CoordinatorLink, WorkerLink, worker_identity
from afd_sched.messages import Ready, StepPlan


def test_bytes_out_and_in_are_those_of_the_messages(sockets: Path) -> None:
    endpoint = f"ipc://{sockets}/c"
    link, worker = CoordinatorLink(endpoint), WorkerLink(endpoint, 3)
    try:
        ready = Ready(3, 100)
        worker.send(ready)
        link.socket.poll()
        assert link.recv() == (worker_identity(3), ready)
        plans = [StepPlan(0, 2), StepPlan(1, 2, pages=bytes(80))]
        for plan in plans:
            link.send(worker_identity(3), plan)
            assert worker.recv(None) == plan
        sizes = [len(msgspec.msgpack.encode(plan)) for plan in plans]
        assert link.values()["control_bytes_out"] == sum(sizes)
        assert link.values()["control_bytes_in"] == len(msgspec.msgpack.encode(ready))
    finally:
        worker.close()
        link.close()
