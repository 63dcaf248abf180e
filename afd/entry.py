"""Where every command begins and ends: Ctrl-C finds no moment at which it is not in order."""

from __future__ import annotations

import signal
import sys
from importlib import import_module

_EXIT_INTERRUPTED = 130


def afd_launch() -> int:
    """The console script; see ``afd.launch.cli.main``."""
    return _run("afd-launch", "afd.launch.cli")


def afd_plan() -> int:
    """The console script; see ``afd.plan.cli.main``."""
    return _run("afd-plan", "afd.plan.cli")


def afd_qfirst() -> int:
    """The console script; see ``afd.qfirst.cli.main``."""
    return _run("afd-qfirst", "afd.qfirst.cli")


def afd_upcycle() -> int:
    """The console script; see ``afd.tools.upcycle.main``."""
    return _run("afd-upcycle", "afd.tools.upcycle")


def _run(command: str, module: str) -> int:
    try:
        # Here, as loading the modules is most of what a short command does.
        return int(import_module(module).main())
    except KeyboardInterrupt:
        pass
    finally:
        # All is closed: what is left is a line and the interpreter's own end, which would take a
        # late Ctrl-C for the death of the command.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"{command}: interrupted", file=sys.stderr)
    return _EXIT_INTERRUPTED
