"""The schedule: the recursion holds event by event, and the pool obeys its rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd.qfirst.cli import main
from afd.qfirst.schedule import Load, Query, issue_times, simulate

EXAMPLE = ((4.0, 2, 4), (4, 2, 1), (4, 4, 1), (4, 4, 1))
TIME = st.integers(0, 6).map(float)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    layers, count = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    row = st.lists(TIME, min_size=layers, max_size=layers).map(tuple)
    return Load(
        tuple(draw(st.lists(row, min_size=count, max_size=count))),
        tuple(draw(st.lists(TIME, min_size=count, max_size=count))),
        ffn=draw(TIME), batch=draw(st.integers(1, 4)),
        max_wait=draw(st.none() | TIME), across_layers=draw(st.booleans()),
    )  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(load=loads(), query=st.sampled_from(Query))
def test_every_run_obeys_the_recursion_and_the_departure_rule(load: Load, query: Query) -> None:
    run = simulate(load, query)
    for r, sweeps in enumerate(load.sweeps):
        answered = run.answered[r]
        reached = issue_times(load.arrivals[r], sweeps, answered, query)
        assert run.issue[r] == reached[: len(run.issue[r])]
        assert len(run.issue[r]) == min(len(answered) + 1, load.layers)
    left = [member for batch in run.batches for member in batch.members]
    assert len(left) == len(set(left))
    ends = {batch.end for batch in run.batches}
    for previous, batch in zip(run.batches, run.batches[1:], strict=False):
        assert batch.start >= previous.end
    for batch in run.batches:
        issued = sorted(run.issue[r][layer] for r, layer in batch.members)
        ripe = [issued[load.batch - 1]] if len(issued) >= load.batch else []
        ripe += [] if load.max_wait is None else [issued[0] + load.max_wait]
        assert ripe and batch.start >= min(ripe)
        assert batch.start in (*ripe, *ends), "a ripe batch waits for a busy pool only"
        assert load.across_layers or len({layer for _, layer in batch.members}) == 1
    if load.max_wait is not None:
        assert run.stuck() == []
    elif run.stuck() and load.across_layers:
        assert len(run.stuck()) < load.batch


def test_one_chain_is_contiguous_and_the_other_broken_by_one_feed_forward_a_layer() -> None:
    load = Load(EXAMPLE, (0.0,) * 4, ffn=1, batch=2)
    early, ordinary = (simulate(load, query) for query in Query)
    for r in range(4):
        assert early.interruptions(r) == [0, 0]
        assert ordinary.interruptions(r) == [1, 1]
    members = [[batch.members for batch in run.batches] for run in (early, ordinary)]
    assert members[0] == members[1], "the pool itself is untouched"
    assert (early.finish(), ordinary.finish()) == (10, 12)


@pytest.mark.parametrize("query", Query)
def test_without_a_maximum_wait_the_slowest_request_never_leaves(query: Query) -> None:
    endless = simulate(Load(EXAMPLE, (0.0,) * 4, ffn=1, batch=2), query)
    assert endless.stuck() == [0]
    assert len(endless.answered[0]) == 2, "its last call has nothing left to ride with"
    bounded = simulate(Load(EXAMPLE, (0.0,) * 4, ffn=1, batch=2, max_wait=3), query)
    assert bounded.stuck() == []
    assert bounded.answered[0][-1] == bounded.issue[0][-1] + 3 + 1


def test_a_sweep_shorter_than_the_pools_answer_waits_for_the_stream() -> None:
    run = simulate(Load(((1.0, 1, 1),), (0.0,), ffn=5, batch=1), Query.EARLY)
    # e_2 = max(2, 6): the sweep of layer 2 is done at 2, its attention complete at 6.
    assert run.sweep_start[0] == [0, 1, 6]
    assert run.issue[0] == [1, 6, 11]


def test_the_command_prints_draws_and_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["schedule"]) == 0
    assert "R1 waits at the pool for ever" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="drawing needs the extra `plan`")
    chart = tmp_path / "gantt.svg"
    assert main(["schedule", "--json", "--max-wait", "3", "--plot", str(chart)]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [r["last_finish"] for r in runs] == [14, 16]
    assert [r["never_leave"] for r in runs] == [[], []]
    assert chart.read_text().count("<path") > 30
    for bad, words in (
        (["--sweeps", "1,2", "--sweeps", "1"], "same number of sweeps"),
        (["--sweeps", "1,x"], "1,x"),
        (["--ffn", "-1"], "not negative"),
        (["--batch", "0"], "at least 1"),
        (["--arrivals", "0"], "4 requests but 1 arrivals"),
        (["--plot", "chart.pdf"], "suffix"),
    ):
        assert main(["schedule", *bad]) == 2
        message = capsys.readouterr().err
        assert words in message and message.count("\n") == 1


def test_without_matplotlib_a_plot_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afd.qfirst.output.find_spec", lambda _: None)
    assert main(["schedule", "--plot", "chart.png"]) == 2
    assert "pip install 'afd[plan]'" in capsys.readouterr().err
