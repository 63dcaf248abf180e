"""The coordinator process: ``python -m afd_sched`` with its config as JSON on standard input."""

from __future__ import annotations

import gc
import logging
import signal
import sys

from afd_sched.coordinator import decode_config, run


def main() -> int:
    """Runs until Stop or until the launcher is gone; the exit status."""
    # Ctrl-C belongs to the launcher, which ends its processes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A full collection walks every request and cached page run, for milliseconds; the scheduler
    # makes no reference cycles (the soak test runs without a collector).
    gc.disable()
    config = decode_config(sys.stdin.buffer.read())
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s coordinator: %(levelname)s %(message)s",
    )
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
