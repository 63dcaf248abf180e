"""The console script ``afd-qfirst``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from afd.errors import AfdError
from afd.qfirst.commands import account, convert, diagnose, report, schedule, train

COMMANDS: tuple[ModuleType, ...] = (account, convert, diagnose, report, schedule, train)


def parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    top = argparse.ArgumentParser(
        prog="afd-qfirst", description="Query-first decode: accounting, diagnostics, conversion."
    )
    subparsers = top.add_subparsers(dest="command", required=True)
    for module in COMMANDS:
        module.add_parser(subparsers).set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a bad input ends with status 2 and one sentence."""
    options = parser().parse_args(argv)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AfdError, OSError) as error:
        print(f"afd-qfirst: {error}", file=sys.stderr)
        return 2
    return status
