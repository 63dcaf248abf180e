"""The console script ``afd-plan``."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from afd.plan import commands
from afd.plan.cuts import Cut
from afd.plan.errors import PlanError


def number(text: str) -> float:
    """Any finite number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def positive(text: str) -> float:
    """A finite number above zero."""
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} must be above zero")
    return value


def nonnegative(text: str) -> float:
    """A finite number, zero allowed."""
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be zero or more")
    return value


def count(text: str) -> int:
    """A whole number above zero."""
    value = positive(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def tokens(text: str) -> float:
    """``8192``, ``8K`` or ``1M`` (K = 1,024)."""
    scale = {"k": 1024, "m": 1024**2}.get(text[-1:].lower(), 1)
    try:
        return float(count(text if scale == 1 else text[:-1]) * scale)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; tokens are written 8192 or 8K") from None


def ratio(text: str) -> tuple[int, int]:
    """``7:1``."""
    m, _, n = text.partition(":")
    if not (m.isdigit() and n.isdigit() and int(m) and int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not M:N, for example 7:1")
    return int(m), int(n)


def parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    top = argparse.ArgumentParser(prog="afd-plan", description=__doc__)
    sub = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("recommend", "what to run, and whether to disaggregate at all"),
        ("sweep", "M:N by context"),
        ("explain", "every term of one layout"),
        ("report", "a static HTML report"),
    ):
        _workload_flags(sub.add_parser(name, help=text))
    _flags_of(sub)
    project = sub.add_parser("project", help="Rubin + LPX")
    _common(project)
    project.add_argument("--model", action="append")
    project.add_argument("--context", type=tokens, nargs="+", default=[8192.0, 16384.0])
    project.add_argument("--hardware", default="gb200", help="where the shares are taken from")
    project.add_argument(
        "--batch", type=count, help="colocated batch per GPU; default: from memory"
    )
    project.add_argument("--racks", type=count, default=2, help="LPX racks per Rubin rack")
    project.add_argument("--kv-bytes", type=positive, default=2.0)
    for name, text in (("validate", "compare with measured rows"),
                       ("calibrate", "fit the calibration to measured rows")):  # fmt: skip
        command = sub.add_parser(name, help=text)
        _common(command)
        command.add_argument("csv", type=Path)
        command.add_argument("--hardware", default="gb200")
        command.add_argument("--kv-bytes", type=positive, default=2.0)
        command.add_argument("--kernels", choices=("auto", "tables", "roofline"), default="auto")
        command.add_argument("--calibration", type=Path, help="a TOML from `calibrate`")
        command.add_argument("--leave-one-out", action="store_true")
    _common(sub.add_parser("fidelity", help="published numbers beside ours"))
    _measure_flags(sub.add_parser("measure", help="time a model's layer on this CPU"))
    return top


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true")
    command.add_argument("--plot", type=Path, help="PNG, SVG or HTML")


def _workload_flags(command: argparse.ArgumentParser) -> None:
    _common(command)
    add = command.add_argument
    add("--model", required=True, help="a known name, a checkpoint folder or its config.json")
    add("--hardware", default="gb200", help="a known name, a TOML, or cpu (measured now)")
    add("--context", type=tokens, nargs="+", default=[8192.0], help="tokens; 8K is 8,192")
    add("--gpus", type=count, help="default: one whole scale-up domain")
    add("--slo-tpot-ms", type=positive)
    add("--lanes", type=int, nargs="+", choices=(1, 2, 3, 4), default=[1, 2, 3, 4])
    add("--cut", nargs="+", choices=[c.value for c in Cut] + ["all"],
        default=[Cut.ROUTED_TOKENS.value])  # fmt: skip
    add("--kv-bytes", type=positive, default=2.0, help="bytes per KV element")
    add("--kernels", choices=("auto", "tables", "roofline"), default="auto")
    add("--calibration", type=Path, help="a TOML from `calibrate`")
    add("--measurements", type=Path, help="your own kernel times, TOML or CSV")
    add("--skew", type=nonnegative, help="expert popularity ∝ rank^-SKEW; 0 is even")
    add("--expert-counts", type=Path, help="JSON list of tokens per expert, measured")
    add("--context-cv", type=nonnegative, default=0.0,
        help="standard deviation of contexts over their mean")  # fmt: skip
    add("--survive-node-loss", action="store_true", help="N − 1 FFN nodes must hold all experts")


def _flags_of(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    choices = sub.choices
    choices["sweep"].add_argument("--ratios", type=ratio, nargs="+")
    choices["explain"].add_argument("--ratio", type=ratio)
    choices["explain"].add_argument("--batch", type=count)
    choices["report"].add_argument("--out", type=Path, default=Path("afd-plan.html"))


def _measure_flags(command: argparse.ArgumentParser) -> None:
    _common(command)
    add = command.add_argument
    add("--model", required=True, help="a known name, a checkpoint folder or its config.json")
    add("--batch", type=count, nargs="+", default=[1, 2, 4, 8, 16, 32])
    add("--context", type=tokens, nargs="+", default=[512.0, 2048.0])
    add("--expert-parallel", type=count, nargs="+",
        help="ranks that share the experts; default: powers of two up to the cores")  # fmt: skip
    add("--threads", type=count, default=1, help="of one rank")
    add("--out", type=Path, default=Path("measurements.csv"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a bad input ends with status 2 and one sentence."""
    options = parser().parse_args(argv)
    try:
        data, text, charts = commands.COMMANDS[options.command](options)
        if options.plot is not None:
            from afd.plan.output.plots import save

            save(charts, options.plot)
    except PlanError as error:
        print(f"afd-plan: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"afd-plan: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        print(json.dumps(data, indent=2) if options.json else text, flush=True)
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
