"""When a host may issue what, and when a shared pool departs: the schedule of both wirings.

Layer l's sweep of one request takes a_l; e_l is when its attention is complete and its feed-forward
request reaches the pool; ffn_l is when the pool has answered (Q-First, "what the host may issue"):

    early query      e_1 = arrival + a_1    e_l = max(e_(l-1) + a_l, ffn_(l-1))
    ordinary query   e_1 = arrival + a_1    e_l = ffn_(l-1) + a_l

Times are in any one unit. Each request sweeps its own cache on its own lane; one pool serves all.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from afd.qfirst.errors import QFirstError


class Query(StrEnum):
    """When a layer's query exists."""

    EARLY = "early"
    ORDINARY = "ordinary"


@dataclass(frozen=True)
class Load:
    """Requests with their sweeps, and the pool's rule.

    ``sweeps[r][l]``: request r's sweep of layer l; ``arrivals[r]``; ``ffn``: one batch's service,
    of whatever size. Whatever waits together leaves a free pool as soon as it is ``batch`` requests
    or the oldest has waited ``max_wait`` (None: never). Together are requests of one layer, whose
    weights one read serves, or with ``across_layers`` any.
    """

    sweeps: tuple[tuple[float, ...], ...]
    arrivals: tuple[float, ...]
    ffn: float
    batch: int
    max_wait: float | None = None
    across_layers: bool = False

    def __post_init__(self) -> None:
        layers = {len(row) for row in self.sweeps}
        if len(layers) != 1 or 0 in layers:
            raise QFirstError("every request needs the same number of sweeps, at least one")
        if len(self.arrivals) != len(self.sweeps):
            raise QFirstError(
                f"{len(self.sweeps)} requests but {len(self.arrivals)} arrivals; give one each"
            )
        times = [*self.arrivals, self.ffn, self.max_wait or 0.0]
        times += [a for row in self.sweeps for a in row]
        if not all(0 <= t < float("inf") for t in times) or self.batch < 1:
            raise QFirstError("times must be finite and not negative, and a batch at least 1")

    @property
    def layers(self) -> int:
        """Layers of every request."""
        return len(self.sweeps[0])


@dataclass(frozen=True)
class Batch:
    """A departure: which (request, layer) left together, and from when to when."""

    members: tuple[tuple[int, int], ...]
    start: float
    end: float


@dataclass
class Run:
    """What happened, per request and layer; a request that never left lacks its last entries."""

    load: Load
    query: Query
    sweep_start: list[list[float]]
    issue: list[list[float]]
    answered: list[list[float]]
    batches: list[Batch] = field(default_factory=list)

    def stuck(self) -> list[int]:
        """Requests that wait at the pool for ever."""
        return [r for r, done in enumerate(self.answered) if len(done) < self.load.layers]

    def finish(self) -> float:
        """When the last request that finishes does."""
        ends = [done[-1] for done in self.answered if len(done) == self.load.layers]
        return max(ends, default=float("nan"))

    def interruptions(self, request: int) -> list[float]:
        """Idle time of the request's lane at each boundary between two sweeps; 0 is contiguous."""
        starts = self.sweep_start[request]
        ends = [s + a for s, a in zip(starts, self.load.sweeps[request], strict=False)]
        return [start - end for end, start in zip(ends, starts[1:], strict=False)]


def issue_times(
    arrival: float, sweeps: Sequence[float], answered: Sequence[float], query: Query
) -> list[float]:
    """e_1 ... e_L of one request by the recursion; ``answered``: ffn_1 ... ffn_(L-1) or more."""
    times = [arrival + sweeps[0]]
    for a, ffn in zip(sweeps[1:], answered, strict=False):
        times.append(max(times[-1] + a, ffn) if query is Query.EARLY else ffn + a)
    return times


def simulate(load: Load, query: Query) -> Run:
    """Plays the load event by event."""
    return _Simulation(load, query).play()


class _Simulation:
    """Events are (time, kind, request); kinds at one time run in the order of their numbers."""

    _ANSWER, _ISSUE, _LOOK = range(3)

    def __init__(self, load: Load, query: Query) -> None:
        count = len(load.sweeps)
        self._load, self._free_at = load, 0.0
        self._run = Run(load, query, _lists(count), _lists(count), _lists(count))
        self._waiting: dict[int, list[tuple[float, int, int]]] = {}
        self._events: list[tuple[float, int, int]] = []

    def play(self) -> Run:
        for request, arrival in enumerate(self._load.arrivals):
            self._start_sweep(request, arrival)
        while self._events:
            now, kind, request = heapq.heappop(self._events)
            if kind == self._ANSWER:
                self._answer(now, request)
            elif kind == self._ISSUE:
                self._issue(now, request)
            # Whoever comes at this very moment still rides along.
            if not self._events or self._events[0][0] > now:
                self._depart(now)
        return self._run

    def _start_sweep(self, request: int, now: float) -> None:
        started = self._run.sweep_start[request]
        if len(started) == self._load.layers:
            return
        end = now + self._load.sweeps[request][len(started)]
        started.append(now)
        # The ordinary attention is complete with its sweep. The early one also needs the stream
        # that the pool's last answer carries, and is looked at again when that comes.
        heapq.heappush(self._events, (end, self._ISSUE, request))

    def _answer(self, now: float, request: int) -> None:
        self._run.answered[request].append(now)
        if self._run.query is Query.ORDINARY:
            self._start_sweep(request, now)
        else:
            heapq.heappush(self._events, (now, self._ISSUE, request))

    def _issue(self, now: float, request: int) -> None:
        issued, answered = self._run.issue[request], self._run.answered[request]
        layer = len(issued)
        swept = len(self._run.sweep_start[request]) > layer and (
            self._run.sweep_start[request][layer] + self._load.sweeps[request][layer] <= now
        )
        if layer == self._load.layers or not swept or len(answered) < layer:
            return
        issued.append(now)
        group = 0 if self._load.across_layers else layer
        self._waiting.setdefault(group, []).append((now, request, layer))
        if self._load.max_wait is not None:
            heapq.heappush(self._events, (now + self._load.max_wait, self._LOOK, request))
        if self._run.query is Query.EARLY:
            self._start_sweep(request, now)

    def _depart(self, now: float) -> None:
        if now < self._free_at:
            return
        ripe = []
        for group, waiting in sorted(self._waiting.items()):
            full = len(waiting) >= self._load.batch
            wait = self._load.max_wait
            # The deadline is computed as the event's time was, so that they compare equal.
            late = wait is not None and now >= waiting[0][0] + wait
            if full or late:
                ripe.append((waiting[0], group))
        if not ripe:
            return
        _, group = min(ripe)
        leaving = self._waiting.pop(group)
        self._free_at = now + self._load.ffn
        members = tuple((request, layer) for _, request, layer in leaving)
        self._run.batches.append(Batch(members, now, self._free_at))
        for request, _ in members:
            heapq.heappush(self._events, (self._free_at, self._ANSWER, request))


def _lists(count: int) -> list[list[float]]:
    return [[] for _ in range(count)]
