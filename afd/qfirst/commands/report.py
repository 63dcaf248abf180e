"""`afd-qfirst report`: tables from run records; a record that is missing is an error."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from afd.tools.default_model import require_torch


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """The command's flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report", help="print the tables of a protocol's runs, or of single conversions"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--protocol", type=Path, metavar="FILE",
                        help="all of its runs, from --records")  # fmt: skip
    source.add_argument("--record", type=Path, action="append", metavar="FILE",
                        help="a conversion's record.json; repeatable")  # fmt: skip
    parser.add_argument("--records", type=Path, default=Path("."), metavar="DIR")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the report, or writes it whole into --out."""
    require_torch()
    from afd.qfirst.repair.files import write_whole
    from afd.qfirst.repair.protocols import read_protocol
    from afd.qfirst.repair.reports import protocol_report, runs_report

    if args.protocol is not None:
        text = protocol_report(read_protocol(args.protocol), args.records)
    else:
        text = runs_report(args.record)
    if args.out is None:
        print(text)
    else:
        write_whole(args.out, text + "\n")
    return 0
