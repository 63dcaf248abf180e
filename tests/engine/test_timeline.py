"""A timeline of real workers: well formed, nested, causal across processes; and the planner's file.

The checks are those of the Trace Event Format that Perfetto's importer relies on: complete events
with times in microseconds, which nest on each thread.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from afd import LLM, SamplingParams
from afd.errors import ConfigError
from afd.plan.cli import main as afd_plan
from afd.plan.measurements import TERMS, read_measurements

OPTIONS = {"skip_tokenizer_init": True, "threads": 1, "m": 2, "n": 2}
# Long beside the moment in which all four requests are handed in, so that they run together.
PARAMS = SamplingParams(max_new_tokens=100, ignore_eos=True)
Event = dict[str, Any]


def _maps_a_timeline(process: psutil.Process) -> bool:
    maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    return "afd-timeline" in maps


@pytest.fixture(scope="module")
def run(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Event], Path]:
    folder = tmp_path_factory.mktemp("timeline")
    files = {name: str(folder / name) for name in ("timeline", "measurements")}
    with LLM(checkpoint("qwen3"), **OPTIONS, **files) as llm:
        assert all(_maps_a_timeline(child) for child in psutil.Process().children())
        llm.generate([[1, 2, 3], [4, 5], [6], [7, 8]], PARAMS)
    trace = json.loads((folder / "timeline").read_text(encoding="utf-8"))
    assert trace["otherData"]["cut_short"] == ""
    return trace["traceEvents"], folder / "measurements"


def _spans(events: list[Event]) -> dict[tuple[str, str], list[Event]]:
    """(process name, span name) -> spans, in time order."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        found[names[event["pid"]], event["name"]].append(event)
    return found


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


# Half a nanosecond: what writing microseconds with three decimals may lose.
_ROUNDING_US = 0.0005 * 2


def test_every_event_is_complete_and_spans_nest_on_their_thread(
    run: tuple[list[Event], Path],
) -> None:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in run[0]:
        assert event["ph"] in ("X", "M") and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        open_ends: list[float] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= event["ts"] + _ROUNDING_US:
                open_ends.pop()
            if open_ends:
                assert _end(event) <= open_ends[-1] + _ROUNDING_US, event
            open_ends.append(_end(event))


def test_every_rank_shows_its_phases_for_every_layer_and_lane(
    run: tuple[list[Event], Path],
) -> None:
    spans = _spans(run[0])
    steps = {e["args"]["step"] for e in spans["coordinator", "commit"]}
    assert len(steps) >= PARAMS.max_new_tokens
    for name in ("plan", "publish"):
        assert {e["args"]["step"] for e in spans["coordinator", name]} >= steps
    for rank, names in {
        "attention rank 0": ("attention", "KV sweep", "route", "dispatch", "wait", "combine"),
        "attention rank 1": ("attention", "KV sweep", "route", "dispatch", "wait", "combine"),
        "FFN rank 2": ("wait", "tiles"),
        "FFN rank 3": ("wait", "tiles"),
    }.items():
        taken = {e["args"]["step"] for e in spans[rank, "step"]}
        assert taken and taken <= steps
        counts = {name: len(spans[rank, name]) for name in names}
        assert len(set(counts.values())) == 1, counts
        layers = {e["args"]["layer"] for e in spans[rank, names[-1]]}
        assert layers == set(range(len(layers))) and len(layers) > 1
        assert {e["args"]["lane"] for e in spans[rank, names[-1]]} == {0, 1}
    assert len(spans["attention rank 0", "away"]) == len(spans["attention rank 0", "dispatch"])


def test_times_of_different_processes_are_in_the_order_of_cause(
    run: tuple[list[Event], Path],
) -> None:
    spans = _spans(run[0])

    def by(process: str, name: str, *keys: str) -> dict[tuple[int, ...], Event]:
        return {tuple(e["args"][key] for key in keys): e for e in spans[process, name]}

    place = ("step", "layer", "lane")
    planned, commits = by("coordinator", "plan", "step"), by("coordinator", "commit", "step")
    for rank in range(4):
        name = f"{'attention' if rank < 2 else 'FFN'} rank {rank}"
        for step, event in by(name, "step", "step").items():
            assert _end(planned[step]) < event["ts"] and event["ts"] < commits[step]["ts"]
    for ffn in ("FFN rank 2", "FFN rank 3"):
        tiles = by(ffn, "tiles", *place)
        for attention in ("attention rank 0", "attention rank 1"):
            sent, ready = by(attention, "dispatch", *place), by(attention, "combine", *place)
            assert sent
            for at, event in sent.items():
                assert event["ts"] < tiles[at]["ts"] < ready[at]["ts"] + ready[at]["dur"]


def test_the_planner_reads_the_measurements_and_says_so(
    run: tuple[list[Event], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = run[1]
    measured = read_measurements(path)
    assert {point.term for point in measured.points} == set(TERMS)
    assert {point.ranks for point in measured.points if point.term == "experts"} == {2}
    assert all(point.us > 0 for point in measured.points)
    spans = _spans(run[0])
    sweeps = [e["dur"] for rank in (0, 1) for e in spans[f"attention rank {rank}", "KV sweep"]]
    attention = [point.us for point in measured.points if point.term == "attention"]
    assert min(sweeps) <= min(attention) and max(attention) <= max(sweeps)
    workload = ["--model", "qwen3-30b-a3b", "--ratio", "2:1", "--batch", "4", "--context", "64"]
    status = afd_plan(["explain", *workload, "--measurements", str(path), "--kernels", "roofline"])
    assert status == 0
    assert f"measured ({path.name}" in capsys.readouterr().out


def test_without_one_nobody_records_and_a_bad_file_is_refused_at_once(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with LLM(checkpoint("qwen3"), **(OPTIONS | {"m": 1, "n": 1})):
        assert not any(_maps_a_timeline(child) for child in psutil.Process().children())
    for option in ("timeline", "measurements"):
        with pytest.raises(ConfigError, match=f"--{option} .*cannot be written"):
            LLM(checkpoint("qwen3"), **OPTIONS, **{option: str(tmp_path / "no" / "file")})
    assert not psutil.Process().children()
