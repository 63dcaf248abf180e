"""How imbalance, uneven contexts and node loss change a recommendation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from afd.plan.errors import PlanError
from afd.plan.layouts import Bench
from afd.plan.search import Limits, recommend


@dataclass(frozen=True)
class Change:
    """The recommendation under one assumption; ``gain`` as a percentage, AFD over colocated."""

    what: str
    layout: str
    batch: int | None
    tokens_per_s_per_gpu: float | None
    gain: str


def what_changes(bench: Bench, limits: Limits) -> list[Change]:
    """The plan as asked for, then with one assumption changed at a time."""
    load = bench.workload
    even = replace(load, skew_exponent=0.0, expert_counts=(), context_cv=0.0)
    milder = replace(load, skew_exponent=0.5, expert_counts=())
    cases = [
        ("as planned", load, limits),
        ("experts and contexts were even", even, limits),
        ("expert popularity were milder, rank^-0.5", milder, limits),
        ("contexts varied by 50 % of their mean", replace(load, context_cv=0.5), limits),
        ("losing an FFN node must not stop serving", load, replace(limits, survive_node_loss=True)),
    ]
    return [_change(what, replace(bench, workload=w), under) for what, w, under in cases]


def _change(what: str, bench: Bench, limits: Limits) -> Change:
    try:
        got = recommend(bench, limits)
    except PlanError:
        return Change(what, "nothing fits", None, None, "")
    gain = "no M:N fits" if got.ratio is None else f"{got.ratio - 1:+.1%}"
    best = got.best
    return Change(what, best.layout, best.batch_per_gpu, best.tokens_per_s_per_gpu, gain)
