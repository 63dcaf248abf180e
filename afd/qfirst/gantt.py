"""The Gantt chart of a schedule: sweep lanes of the requests above, the pool's lane below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afd.qfirst.output import COLORS, figure
from afd.qfirst.schedule import Query, Run

_TITLES = {
    Query.EARLY: "query read before the feed-forward",
    Query.ORDINARY: "query read after the feed-forward",
}


def draw(runs: Sequence[Run], path: Path) -> None:
    """One chart a run on a common time axis, written to ``path``."""
    drawn, axes = figure(len(runs))
    end = max(_last(run) for run in runs)
    for run, axis in zip(runs, axes, strict=True):
        _chart(run, axis, end)
    drawn.savefig(path, dpi=110)


def _last(run: Run) -> float:
    sweeps = [
        start + length
        for starts, lengths in zip(run.sweep_start, run.load.sweeps, strict=True)
        for start, length in zip(starts, lengths, strict=False)
    ]
    return max([*sweeps, *(batch.end for batch in run.batches)])


def _chart(run: Run, axis: Any, end: float) -> None:
    names = [f"R{r + 1} sweep" for r in range(len(run.load.sweeps))]
    for r, starts in enumerate(run.sweep_start):
        for layer, (start, length) in enumerate(zip(starts, run.load.sweeps[r], strict=False)):
            axis.barh(r, length, left=start, height=0.7, color=COLORS[r % len(COLORS)],
                      edgecolor="white")  # fmt: skip
            axis.text(start + length / 2, r, f"{layer + 1}", ha="center", va="center",
                      color="white", fontsize=8)  # fmt: skip
    pool = len(names)
    for batch in run.batches:
        axis.barh(pool, batch.end - batch.start, left=batch.start, height=0.7, color="#475569",
                  edgecolor="white")  # fmt: skip
        label = "\n".join(f"R{r + 1}·{layer + 1}" for r, layer in batch.members)
        axis.text((batch.start + batch.end) / 2, pool, label, ha="center", va="center",
                  color="white", fontsize=min(6, 18 / len(batch.members)))  # fmt: skip
    for r in run.stuck():
        axis.text(end, r, " waits for ever", ha="left", va="center", fontsize=8)
    axis.set_yticks(range(pool + 1), [*names, "pool"])
    axis.invert_yaxis()
    axis.set_xlim(0, end * 1.12)
    axis.set_title(_TITLES[run.query], fontsize=11)
    axis.set_xlabel("time")
    axis.spines[["top", "right"]].set_visible(False)
