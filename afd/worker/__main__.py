"""A worker process: ``python -m afd.worker`` with its WorkerConfig as JSON on standard input."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from afd.config import Role, WorkerConfig
from afd.worker.lifeline import end_with_launcher
from afd_sched.links import WorkerLink
from afd_sched.messages import (
    PROTOCOL_VERSION,
    FfnStep,
    Hello,
    Ready,
    StepPlan,
    Stop,
    WorkerFailed,
)

_log = logging.getLogger("afd.worker")


def _serve(config: WorkerConfig, link: WorkerLink) -> None:
    # The two workers' imports differ in weight: an FFN rank needs no decoder.
    if config.role is Role.ATTENTION:
        from afd.worker.attention import AttentionWorker

        attention = AttentionWorker(config)
        link.send(Ready(rank=config.rank, pages=attention.pages))
        while not isinstance(message := link.recv(None), Stop):
            if isinstance(message, StepPlan):
                link.send(attention.step(message))
    else:
        from afd.worker.ffn import FfnWorker

        ffn = FfnWorker(config)
        link.send(Ready(rank=config.rank, pages=ffn.pages))
        while not isinstance(message := link.recv(None), Stop):
            if isinstance(message, FfnStep):
                link.send(ffn.step(message))


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
    try:
        link.send(
            Hello(
                version=PROTOCOL_VERSION,
                role=config.role.value,
                rank=config.rank,
                pid=os.getpid(),
            )
        )
        _serve(config, link)
    except (AfdError, MegamoeError, ValueError, MemoryError) as error:
        _log.debug("failed", exc_info=True)
        link.send(WorkerFailed(rank=config.rank, reason=str(error) or type(error).__name__))
        return 1
    finally:
        link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
