"""Spans as measurements for the planner: the CSV that ``afd-plan --measurements`` reads.

Only steps without a prompt token count. Terms (docs/planner.md): ``attention`` is the sweep over
the cache, ``dense`` the rest of a layer's attention and the router, ``dispatch`` and ``combine`` a
rank's own work at the boundary (without the wait), ``experts`` an FFN rank's tiles, ``head`` the
readout and sampling. Medians of each batch and context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from afd.config import Topology
from afd.launch.trace import Track
from afd.plan import measurements
from afd_sched.spans import Phase

# Contexts within a bucket are one point, at their mean.
_BUCKET_TOKENS = 64
_BOUNDARY = {Phase.DISPATCH: "dispatch", Phase.COMBINE: "combine"}


class _Times:
    """µs by (term, batch, bucket of contexts), with the contexts they were seen at."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], list[tuple[float, int]]] = defaultdict(list)

    def add(self, term: str, batch: int, us: float, context: int = 0) -> None:
        self._seen[term, batch, context // _BUCKET_TOKENS].append((us, context))

    def raise_by(self, term: str, other: str) -> None:
        """Adds to each time of ``term`` the median of ``other`` at the same batch, and drops it."""
        for name, batch, bucket in [key for key in self._seen if key[0] == other]:
            extra = median(us for us, _ in self._seen.pop((name, batch, bucket)))
            key = (term, batch, bucket)
            if key in self._seen:
                self._seen[key] = [(us + extra, context) for us, context in self._seen[key]]

    def rows(self, ffn_ranks: int) -> Iterator[tuple[str, float, float, int, float]]:
        """As afd.plan.measurements.write_measurements takes them."""
        for (term, batch, _), values in sorted(self._seen.items()):
            context = sum(context for _, context in values) / len(values)
            us = median(us for us, _ in values)
            # The file has nanoseconds, and a measured time is above zero.
            if us >= 0.001:
                yield term, batch, context, ffn_ranks if term == "experts" else 0, us


def write_measured(path: Path, tracks: list[Track], topology: Topology) -> None:
    """``tracks``: the coordinator's, then every rank's. Writes the header alone if no step without
    a prompt was run."""
    prompts = _steps_with_prompts(tracks[0].records)
    times = _Times()
    for track in tracks[1:]:
        records = track.records[~np.isin(track.records["step"], prompts)]
        if track.rank < topology.attention_ranks:
            _attention(records, times)
        else:
            _experts(records, topology.ffn_ranks, times)
    times.raise_by("dense", "route")
    measurements.write_measurements(path, times.rows(topology.ffn_ranks))


def _steps_with_prompts(coordinator: NDArray[np.void]) -> NDArray[np.int64]:
    plans = coordinator[coordinator["phase"] == Phase.PLAN]
    steps: NDArray[np.int64] = plans["step"][plans["detail"] > 0]
    return steps


def _attention(records: NDArray[np.void], times: _Times) -> None:
    heads: dict[int, tuple[float, int]] = {}
    sweep_ns = 0
    for phase, _, _, step, _, duration_ns, rows, detail in records.tolist():
        us = duration_ns / 1000
        if not rows:
            continue
        if phase == Phase.SWEEP:
            sweep_ns = duration_ns
            times.add("attention", rows, us, detail)
        elif phase == Phase.ATTEND:
            # The sweep inside it was recorded just before.
            times.add("dense", rows, (duration_ns - sweep_ns) / 1000)
        elif phase == Phase.ROUTE:
            times.add("route", rows, us)
        elif phase in _BOUNDARY:
            times.add(_BOUNDARY[phase], rows, us)
        elif phase in (Phase.HEAD, Phase.SAMPLE):
            heads[step] = (heads.get(step, (0.0, rows))[0] + us, rows)
    for us, rows in heads.values():
        times.add("head", rows, us)


def _experts(records: NDArray[np.void], ffn_ranks: int, times: _Times) -> None:
    tiles = records[(records["phase"] == Phase.FFN_TILES) & (records["rows"] > 0)]
    for rows, duration_ns in zip(
        tiles["rows"].tolist(), tiles["duration_ns"].tolist(), strict=True
    ):
        times.add("experts", max(1, round(rows / ffn_ranks)), duration_ns / 1000)
