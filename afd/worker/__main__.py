"""A worker process: ``python -m afd.worker`` with its WorkerConfig as JSON on standard input."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from afd.config import Role, WorkerConfig
from afd.worker.lifeline import end_with_launcher
from afd.worker.loop import Seat, StepExecutor, Synchronous, serve
from afd_sched.links import WorkerLink
from afd_sched.messages import (
    PROTOCOL_VERSION,
    FfnStep,
    Hello,
    Ready,
    StepPlan,
    WorkerFailed,
)
from afd_sched.replica import PlanError
from afd_sched.spans import Recorder

_log = logging.getLogger("afd.worker")


def _executor(config: WorkerConfig) -> tuple[StepExecutor, int]:
    """The rank's executor, its weights loaded, and its KV pages."""
    recorder = Recorder(config.timeline_fd) if config.timeline_fd >= 0 else None
    executor, pages = _worker(config, recorder)
    if recorder is None:
        return executor, pages
    from afd.worker.watched_steps import WatchedExecutor

    return WatchedExecutor(executor, recorder), pages


def _worker(config: WorkerConfig, recorder: Recorder | None) -> tuple[StepExecutor, int]:
    # The two workers' imports differ in weight: an FFN rank needs no decoder.
    if config.role is Role.ATTENTION:
        from afd.worker.attention import AttentionWorker

        attention = AttentionWorker(config, recorder)
        return Synchronous(attention.step, StepPlan), attention.pages
    from afd.worker.ffn import FfnWorker

    ffn = FfnWorker(config, recorder)
    return Synchronous(ffn.step, FfnStep), ffn.pages


def main() -> int:
    """Runs until Stop; 0 on an orderly end, 1 after a failure that was reported."""
    from afd._megamoe import MegamoeError
    from afd.errors import AfdError

    # Ctrl-C belongs to the launcher, which ends its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerConfig)
    end_with_launcher(config.lifeline_fd)
    name = config.topology.describe(config.rank)
    logging.basicConfig(
        level=config.log_level.upper(), format=f"%(asctime)s {name}: %(levelname)s %(message)s"
    )
    link = WorkerLink(config.endpoint, config.rank, config.keys)
    seat: Seat | None = None
    try:
        link.send(
            Hello(
                version=PROTOCOL_VERSION,
                role=config.role.value,
                rank=config.rank,
                pid=os.getpid(),
            )
        )
        executor, pages = _executor(config)
        link.send(Ready(rank=config.rank, pages=pages))
        seat = Seat(link, executor)
        serve([seat])
    except (AfdError, MegamoeError, PlanError, ValueError, MemoryError) as error:
        _log.debug("failed", exc_info=True)
        if seat is not None:
            seat.receive()
            if seat.over:  # the launch was closed in the middle of the step
                return 0
        link.send(WorkerFailed(rank=config.rank, reason=str(error) or type(error).__name__))
        return 1
    finally:
        link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
