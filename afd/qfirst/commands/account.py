"""``afd-qfirst account``: bytes, crossovers, residence, wire and shares, published beside ours."""

from __future__ import annotations

import argparse
import json

from afd.qfirst.account import KNOWN, Figure, figures, resolve
from afd.qfirst.output import table


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Adds the command."""
    command = subparsers.add_parser("account", help="published accounting beside ours")
    command.add_argument(
        "--model", required=True, metavar="|".join([*KNOWN, "PATH"]),
        help="a model of the paper, a checkpoint folder or its config.json",
    )  # fmt: skip
    command.add_argument("--json", action="store_true")
    return command


def run(options: argparse.Namespace) -> int:
    """Prints the account of one model."""
    name, config = resolve(options.model)
    rows = figures(name, config)
    if options.json:
        print(json.dumps({"model": name, "rows": [row.as_row() for row in rows]}, indent=2))
    else:
        print(_text(rows))
    return 0


def _text(rows: list[Figure]) -> str:
    cells = [
        [
            row.name,
            row.published or "-",
            f"{row.ours:.6g}",
            "-" if row.difference is None else f"{row.difference:+.1%}",
            {True: "yes", False: "no", None: "-"}[row.agrees],
        ]
        for row in rows
    ]
    notes = [f"{row.name}: {row.note}" for row in rows if row.note and row.published]
    header = ["figure", "published", "ours", "difference", "same rounded"]
    return "\n\n".join([table(header, cells), *(["\n".join(notes)] if notes else [])])
