"""`afd-qfirst train`: arms of the paper, small and from scratch, under a written protocol."""

from __future__ import annotations

import argparse
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
        "train", help="train small arms from scratch as a protocol file says"
    )
    parser.add_argument("--protocol", type=Path, required=True, metavar="FILE",
                        help="sizes, steps, thresholds and prior, written before")  # fmt: skip
    parser.add_argument("--corpus", type=Path, required=True, nargs="+", metavar="FILE")
    parser.add_argument("--records", type=Path, required=True, metavar="DIR",
                        help="gets a record per run; runs that have one are done")  # fmt: skip
    parser.add_argument("--arm", action="append", metavar="NAME", help="default: all; repeatable")
    parser.add_argument("--seed", action="append", type=int, metavar="S",
                        help="default: all of the protocol; repeatable")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the arms that have no record yet; prints the report once all have."""
    require_torch()
    import torch

    from afd.qfirst.repair.corpus import read_corpus
    from afd.qfirst.repair.protocols import ScratchProtocol, read_protocol
    from afd.qfirst.repair.reports import protocol_report
    from afd.qfirst.repair.scratch import Campaign, scratch_data

    if args.threads < 1:
        raise QFirstError(f"--threads must be at least 1, not {args.threads}")
    protocol = read_protocol(args.protocol)
    if not isinstance(protocol, ScratchProtocol):
        raise QFirstError(f"{args.protocol} is a conversion's protocol, not one of training")
    arms = _chosen("--arm", args.arm, protocol.arms)
    seeds = _chosen("--seed", args.seed, protocol.seeds)
    torch.set_num_threads(args.threads)
    command = "afd-qfirst " + shlex.join(sys.argv[1:])
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            data = scratch_data(read_corpus(args.corpus), protocol)
            campaign = Campaign(
                protocol, data, args.records, command, Stages(progress), time.monotonic
            )
            campaign.run(arms, seeds)
    except KeyboardInterrupt:
        print("afd-qfirst: interrupted; the same command goes on from the last saved step",
              file=sys.stderr)  # fmt: skip
        return 130
    missing = [n for n in protocol.names() if not (args.records / f"{n}.json").is_file()]
    if missing:
        print(f"{len(missing)} runs of the protocol have no record yet, {missing[0]} the first")
    else:
        print(protocol_report(protocol, args.records))
    return 0


def _chosen(flag: str, wanted: list[Any] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in wanted or ():
        if value not in known:
            names = ", ".join(str(k) for k in known)
            raise QFirstError(f"{flag} {value} is not in the protocol, which has {names}")
    return tuple(wanted or known)
