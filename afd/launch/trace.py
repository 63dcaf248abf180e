"""Spans as a trace in Chrome's JSON format (Trace Event Format), which Perfetto opens.

One process a rank. Thread 0 holds its phases, nested as they ran; thread 1 + l shows lane l away at
the experts, from its dispatch to the end of its wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afd_sched.spans import Phase

_NAMES = {
    Phase.STEP: "step",
    Phase.ATTEND: "attention",
    Phase.SWEEP: "KV sweep",
    Phase.ROUTE: "route",
    Phase.DISPATCH: "dispatch",
    Phase.WAIT: "wait",
    Phase.COMBINE: "combine",
    Phase.HEAD: "head",
    Phase.SAMPLE: "sample",
    Phase.FFN_WAIT: "wait",
    Phase.FFN_TILES: "tiles",
    Phase.COMMIT: "commit",
    Phase.PLAN: "plan",
    Phase.PUBLISH: "publish",
}
_DETAILS = {
    Phase.STEP: "prompt_tokens",
    Phase.PLAN: "prompt_tokens",
    Phase.SWEEP: "context",
    Phase.FFN_TILES: "tiles",
}


@dataclass(frozen=True, slots=True)
class Track:
    """One process: its rank (-1: coordinator), name, spans.RECORD records, how far its clock is
    ahead of the coordinator's, and whether its memory ran full."""

    rank: int
    name: str
    records: NDArray[np.void]
    shift_ns: int
    full: bool


def write_trace(path: Path, tracks: list[Track]) -> None:
    """Writes a JSON object with ``traceEvents``; times in µs from the first span on."""
    starts = [int(t.records["begin_ns"].min()) - t.shift_ns for t in tracks if len(t.records)]
    zero_ns = min(starts, default=0)
    with path.open("w", encoding="utf-8") as file:
        cut = [track.name for track in tracks if track.full]
        head = {"clock": "CLOCK_MONOTONIC", "cut_short": ", ".join(cut)}
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n')
        separator = ""
        for track in tracks:
            for event in _events(track, zero_ns):
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
        file.write("\n]}\n")


def _events(track: Track, zero_ns: int) -> Iterator[dict[str, Any]]:
    pid = track.rank + 2
    yield _meta("process_name", pid, 0, name=track.name)
    yield _meta("process_sort_index", pid, 0, sort_index=pid)
    yield _meta("thread_name", pid, 0, name="phases")
    away: dict[int, tuple[int, int, int]] = {}
    named: set[int] = set()
    for record in track.records.tolist():
        phase, lane, layer, step, begin_ns, duration_ns, rows, detail = record
        args: dict[str, int] = {"step": step}
        if layer >= 0:
            args |= {"layer": layer, "lane": lane}
        if rows:
            args["rows"] = rows
        if phase in _DETAILS and detail:
            args[_DETAILS[phase]] = detail
        begin_us = (begin_ns - track.shift_ns - zero_ns) / 1000
        yield _complete(_NAMES[phase], pid, 0, begin_us, duration_ns / 1000, args)
        if phase == Phase.DISPATCH:
            away[lane] = (step, layer, begin_ns + duration_ns)
        elif phase == Phase.WAIT and away.get(lane, ())[:2] == (step, layer):
            gone_ns = away.pop(lane)[2]
            if lane not in named:
                named.add(lane)
                yield _meta("thread_name", pid, 1 + lane, name=f"lane {lane} away")
            gone_us = (gone_ns - track.shift_ns - zero_ns) / 1000
            length_us = (begin_ns + duration_ns - gone_ns) / 1000
            yield _complete("away", pid, 1 + lane, gone_us, length_us, args)


def _complete(
    name: str, pid: int, tid: int, begin_us: float, length_us: float, args: dict[str, int]
) -> dict[str, Any]:
    # The format counts in µs; nanoseconds are its third decimal.
    times = {"ts": round(begin_us, 3), "dur": round(length_us, 3)}
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, **times, "args": args}


def _meta(kind: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
