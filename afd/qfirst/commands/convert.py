"""`afd-qfirst convert`: moves a checkpoint's queries half a layer back and repairs it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from afd.qfirst.errors import QFirstError
from afd.tools.default_model import require_torch
from afd.tools.stages import Stages


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """The command's flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "convert", help="rewire a trained checkpoint to an early query and repair it"
    )
    parser.add_argument("--model", required=True, metavar="PATH",
                        help="a checkpoint folder, a .gguf file, or smollm2")  # fmt: skip
    parser.add_argument("--corpus", required=True, type=Path, nargs="+", metavar="FILE",
                        help="UTF-8 text: 90 %% to train on, the last 5 %% to test")  # fmt: skip
    parser.add_argument("--steps", type=int, required=True, metavar="N")
    parser.add_argument("--seed", type=int, required=True, metavar="S")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--half-layers", type=int, default=1, metavar="H", help="1, 3, 5 or 7")
    held_out_help = "none, 1-3 or 1,4 (default: none, or 1-3 if deeper than one half-layer)"
    parser.add_argument("--hold-out", metavar="LAYERS", help=held_out_help)
    parser.add_argument("--train", choices=("wq", "wq+wo"), default="wq")
    parser.add_argument("--start", choices=("fit", "copy"), default="fit",
                        help="W_q fitted in closed form first, or the old W_q")  # fmt: skip
    parser.add_argument("--learning-rate", type=float, default=2e-3, metavar="R")
    parser.add_argument("--batch", type=int, default=2, metavar="B", help="windows a step")
    parser.add_argument("--window", type=int, default=512, metavar="T", help="tokens of one")
    parser.add_argument("--score-windows", type=int, default=32, metavar="N")
    parser.add_argument("--score-window", type=int, default=1024, metavar="T")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--attention", choices=("products", "fused"), default="products")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--save-every", type=int, default=25, metavar="N", help="steps")
    parser.add_argument("--work", type=Path, default=None, metavar="DIR",
                        help="where arms and scores are kept (default: in --out)")  # fmt: skip
    return parser


def held_out(text: str | None) -> tuple[int, ...] | None:
    """Layers of a --hold-out value; raises QFirstError for anything but none, 1-3, 1,4."""
    if text is None:
        return None
    if text == "none":
        return ()
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise QFirstError(f"--hold-out {text} is neither none nor layers as in 1-3 or 1,4")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(layers))


def run(args: argparse.Namespace) -> int:
    """Writes DIR/model and DIR/record.json; prints the table of the record."""
    _check(args)
    require_torch()
    from afd.qfirst.repair import run_convert

    console = Console(stderr=True)
    started = time.monotonic()
    command = "afd-qfirst " + shlex.join(sys.argv[1:])
    try:
        with Progress(console=console, transient=True) as progress:
            table = run_convert.convert(
                args, held_out(args.hold_out), command, Stages(progress),
                lambda: time.monotonic() - started,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("afd-qfirst: interrupted; the same command goes on from the last saved step",
              file=sys.stderr)  # fmt: skip
        return 130
    print(table)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("steps", "batch", "score_windows", "threads", "save_every"):
        if getattr(args, name) < (0 if name == "steps" else 1):
            raise QFirstError(f"--{name.replace('_', '-')} must not be {getattr(args, name)}")
    if args.window < 2 or args.score_window < 2:
        raise QFirstError("--window and --score-window must be at least 2 tokens")
    if not args.learning_rate > 0:
        raise QFirstError(f"--learning-rate must be positive, not {args.learning_rate:g}")
    if (args.out / "model").exists():
        raise QFirstError(
            f"{args.out / 'model'} exists already; choose another --out (with --work "
            f"{args.work or args.out / 'work'} nothing is trained twice)"
        )
