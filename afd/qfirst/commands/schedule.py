"""``afd-qfirst schedule``: both wirings under one pool, as a table, JSON or a Gantt chart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from afd.qfirst.errors import QFirstError
from afd.qfirst.output import require_matplotlib, table
from afd.qfirst.schedule import Load, Query, Run, simulate

# Sweeps no shorter than a feed-forward, and a request that ends alone.
_EXAMPLE = ("4,2,4", "4,2,1", "4,4,1", "4,4,1")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Adds the command."""
    command = subparsers.add_parser("schedule", help="issue times and the pool, both wirings")
    add = command.add_argument
    add("--sweeps", action="append", metavar="T,T,…", help="one request's sweep of each layer; "
        f"repeat per request (default: {' '.join(_EXAMPLE)})")  # fmt: skip
    add("--arrivals", metavar="T,T,…", help="one a request (default: all at 0)")
    add("--ffn", type=float, default=1.0, metavar="T", help="service time of a batch")
    add("--batch", type=int, default=2, help="requests that must wait together to leave")
    add("--max-wait", type=float, metavar="T", help="a request waits no longer (default: for ever)")
    add("--across-layers", action="store_true", help="a batch may mix layers")
    add("--json", action="store_true")
    add("--plot", type=Path, metavar="FILE", help="Gantt chart, .png or .svg")
    return command


def run(options: argparse.Namespace) -> int:
    """Simulates both wirings and prints them."""
    require_matplotlib(options.plot)
    sweeps = tuple(_times("--sweeps", text) for text in options.sweeps or _EXAMPLE)
    arrivals = (0.0,) * len(sweeps)
    if options.arrivals is not None:
        arrivals = _times("--arrivals", options.arrivals)
    load = Load(
        sweeps, arrivals, options.ffn, options.batch, options.max_wait, options.across_layers
    )
    runs = [simulate(load, query) for query in Query]
    if options.plot is not None:
        from afd.qfirst.gantt import draw

        draw(runs, options.plot)
    print(json.dumps({"runs": [_json(r) for r in runs]}, indent=2) if options.json else _text(runs))
    return 0


def _times(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise QFirstError(f"{flag} {text!r} is not numbers with commas, such as 4,2,4") from error


def _json(run: Run) -> dict[str, Any]:
    return {
        "query": run.query.value,
        "requests": [
            {
                "sweep_start": run.sweep_start[r],
                "issue": run.issue[r],
                "answered": run.answered[r],
                "interruptions": run.interruptions(r),
                "finished": r not in run.stuck(),
            }
            for r in range(len(run.load.sweeps))
        ],
        "batches": [{"members": b.members, "start": b.start, "end": b.end} for b in run.batches],
        "last_finish": run.finish() if len(run.stuck()) < len(run.load.sweeps) else None,
        "never_leave": run.stuck(),
    }


def _text(runs: list[Run]) -> str:
    blocks = []
    for run in runs:
        rows = [
            [
                f"R{r + 1}",
                _list(run.issue[r]),
                _list(run.answered[r]),
                _list(run.interruptions(r)),
                "never" if r in run.stuck() else f"{run.answered[r][-1]:g}",
            ]
            for r in range(len(run.load.sweeps))
        ]
        header = ["request", "issued", "answered", "sweep chain idle for", "finished"]
        departures = ", ".join(
            f"{b.start:g}: " + " ".join(f"R{r + 1}·{layer + 1}" for r, layer in b.members)
            for b in run.batches
        )
        lines = [f"{run.query} query", table(header, rows), f"departures  {departures}"]
        lines += [
            f"R{r + 1} waits at the pool for ever; --max-wait lets it go" for r in run.stuck()
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _list(values: list[float]) -> str:
    return " ".join(f"{v:g}" for v in values)
