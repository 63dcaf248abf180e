"""Tries layouts and says which to run, or not to disaggregate at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from afd.plan.cuts import NEEDS, Cut
from afd.plan.errors import DoesNotFitError, PlanError
from afd.plan.layouts import Bench, Estimate, colocated, disaggregated
from afd.plan.memory import attention_batch, colocated_batch, graph_bucket, require_ffn_fits

TIE = 0.01
# The 90th percentile of the error on measured rows; a smaller gain is said with that doubt.
MODEL_ERROR = 0.05
# Batches from here to the full one are compared, at most so many.
NEAR_FULL = 0.9
MOST_SIZES = 16
EXPERT_PARALLEL = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Limits:
    """What the operator allows."""

    gpus: int
    slo_tpot_ms: float | None = None
    lanes: tuple[int, ...] = (1, 2, 3, 4)
    cuts: tuple[Cut, ...] = (Cut.ROUTED_TOKENS,)
    survive_node_loss: bool = False


@dataclass(frozen=True)
class Recommendation:
    """The best layout, the best of each kind and the sentence that compares them."""

    best: Estimate
    runner_up: Estimate | None
    best_afd: Estimate | None
    best_colocated: Estimate | None
    other_cut: Estimate | None
    verdict: str
    proposal: str
    ratio: float | None
    refused: tuple[str, ...]
    after_node_loss: dict[str, Any]


def afd_layouts(bench: Bench, limits: Limits, refused: list[str]) -> list[Estimate]:
    """Every M:N that fits the GPUs, with its best lane count and largest batch within the SLO."""
    nodes = limits.gpus // bench.hardware.gpus_per_node
    out = []
    for cut in limits.cuts:
        for n in ffn_node_counts(nodes):
            try:
                full_batch(bench, cut)
                require = n - 1 if limits.survive_node_loss else n
                if require < 1:
                    raise PlanError("one FFN node cannot lose a node and go on serving")
                gpus = require * bench.hardware.gpus_per_node
                require_ffn_fits(bench.model, bench.hardware, cut, gpus, bench.rule)
            except PlanError as error:
                refused.append(f"{cut.value}, N={n}: {error}")
                continue
            for m in range(1, nodes - n + 1):
                found = best_lanes(bench, m, n, cut, limits)
                if found is not None:
                    out.append(found)
    return out


def ffn_node_counts(nodes: int) -> Iterable[int]:
    """N from 1 to half the nodes: more FFN than attention nodes is never worth its tax."""
    return range(1, max(2, nodes // 2 + 1)) if nodes > 1 else ()


def best_lanes(
    bench: Bench, m: int, n: int, cut: Cut, limits: Limits, batch: int | None = None
) -> Estimate | None:
    """The best lane count at this M:N; None where nothing meets the SLO."""
    batch = batch or full_batch(bench, cut)
    options = []
    for lanes in limits.lanes:
        if lanes > batch:
            continue

        def at(requests: int, lanes: int = lanes) -> Estimate:
            return disaggregated(bench, m, n, requests, min(lanes, requests), cut)

        found = best_batch(at, batch, limits.slo_tpot_ms, graph_bucket)
        if found is not None:
            options.append(found)
    return max(options, key=lambda e: e.tokens_per_s_per_gpu, default=None)


def full_batch(bench: Bench, cut: Cut) -> int:
    """Resident requests of an attention GPU at the workload's context."""
    workload = bench.workload
    return attention_batch(
        bench.model, bench.hardware, cut, workload.context_tokens,
        workload.kv_bytes_per_element, bench.rule,
    )  # fmt: skip


def best_batch(
    estimate: Callable[[int], Estimate],
    ceiling: int,
    slo_ms: float | None,
    size: Callable[[int], int] = int,
) -> Estimate | None:
    """The best batch whose step meets the SLO, at most ``ceiling``, of sizes ``size`` rounds to.

    Throughput grows with the batch but for a short last wave, so the largest batch within the SLO
    (steps grow with the batch: bisect) is compared with those a little below it.
    """
    limit_ms = math.inf if slo_ms is None else slo_ms
    low, high = 0, size(ceiling) + 1
    if estimate(high - 1).step_ms <= limit_ms:
        low = high - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if estimate(middle).step_ms <= limit_ms else (low, middle)
    stride = max(1, int(low * (1 - NEAR_FULL)) // MOST_SIZES)
    sizes = {size(batch) for batch in range(low, math.ceil(low * NEAR_FULL) - 1, -stride)} - {0}
    options = [estimate(batch) for batch in sorted(sizes, reverse=True)]
    met = [e for e in options if e.step_ms <= limit_ms]
    return max(met, key=lambda e: e.tokens_per_s_per_gpu, default=None)


def colocated_layouts(bench: Bench, limits: Limits, refused: list[str]) -> list[Estimate]:
    """EP4 … EP64 at each one's own batch ceiling."""
    out = []
    few = limits.gpus < EXPERT_PARALLEL[0]
    for ep in (1, 2) if few else EXPERT_PARALLEL:
        if ep > min(limits.gpus, bench.hardware.max_gpus) or ep > bench.model.experts:
            continue
        try:
            batch = colocated_batch(
                bench.model, bench.hardware, ep, bench.workload.context_tokens,
                bench.workload.kv_bytes_per_element, bench.rule,
            )  # fmt: skip
        except DoesNotFitError as error:
            refused.append(str(error))
            continue

        def at(requests: int, ep: int = ep) -> Estimate:
            return colocated(bench, ep, requests)

        found = best_batch(at, batch, limits.slo_tpot_ms)
        if found is not None:
            out.append(found)
    return out


def smallest_colocated(bench: Bench) -> tuple[int, int]:
    """(EP, batch) of the narrowest expert parallelism whose GPUs hold the model and a request."""
    for ranks in EXPERT_PARALLEL:
        try:
            return ranks, colocated_batch(
                bench.model, bench.hardware, ranks, bench.workload.context_tokens,
                bench.workload.kv_bytes_per_element, bench.rule,
            )  # fmt: skip
        except DoesNotFitError as error:
            refused = error
    raise refused


def recommend(bench: Bench, limits: Limits) -> Recommendation:
    """Best M:N, lanes and batch against the best colocated layout on the same GPUs.

    ``limits.cuts`` are the cuts allowed; the others are tried too and proposed where they win.
    """
    if limits.gpus < 1:
        raise PlanError("--gpus must be at least 1")
    refused: list[str] = []
    base = colocated_layouts(bench, limits, refused)
    afd = afd_layouts(bench, limits, refused)
    rest = tuple(cut for cut in Cut if cut not in limits.cuts)
    other = _top(afd_layouts(bench, replace(limits, cuts=rest), []))
    ranked = sorted(base + afd, key=lambda e: -e.tokens_per_s_per_gpu)
    if not ranked:
        raise PlanError(_nothing_fits(limits, refused))
    best, best_afd, best_base = ranked[0], _top(afd), _top(base)
    if best_base is not None and best.tokens_per_s_per_gpu < (
        (1 + TIE) * best_base.tokens_per_s_per_gpu
    ):
        best = best_base
    ratio = None
    if best_afd and best_base:
        ratio = best_afd.tokens_per_s_per_gpu / best_base.tokens_per_s_per_gpu
    return Recommendation(
        best=best,
        runner_up=next((e for e in ranked if e.layout != best.layout), None),
        best_afd=best_afd,
        best_colocated=best_base,
        other_cut=other,
        verdict=verdict(best_afd, best_base),
        proposal=proposal(other, best),
        ratio=ratio,
        refused=tuple(refused),
        after_node_loss=after_node_loss(best_afd, best_base),
    )


def proposal(other: Estimate | None, best: Estimate) -> str:
    """A sentence when a cut that was not asked for wins; empty otherwise."""
    if other is None or other.tokens_per_s_per_gpu <= (1 + TIE) * best.tokens_per_s_per_gpu:
        return ""
    gain = other.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1
    return (
        f"another cut would win: {other.layout} cut at {other.cut} gives {gain:+.1%} more; "
        f"it needs {NEEDS[Cut(other.cut)]}"
    )


def _top(estimates: list[Estimate]) -> Estimate | None:
    return max(estimates, key=lambda e: e.tokens_per_s_per_gpu, default=None)


def _nothing_fits(limits: Limits, refused: list[str]) -> str:
    slo = f" within {limits.slo_tpot_ms:g} ms" if limits.slo_tpot_ms else ""
    if not refused:
        return f"nothing runs on {limits.gpus} GPUs{slo}; raise --slo-tpot-ms or give more GPUs"
    return f"nothing runs on {limits.gpus} GPUs{slo}; the last layout tried: {refused[-1]}"


def verdict(afd: Estimate | None, base: Estimate | None) -> str:
    """One plain sentence against the best colocated layout."""
    if afd is None and base is None:
        return "nothing fits"
    if afd is None:
        return "do not disaggregate: no M:N fits these GPUs and limits"
    if base is None:
        return f"disaggregate ({afd.layout}): no colocated layout fits these GPUs and limits"
    gain = afd.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu - 1
    extra = "" if afd.cut == Cut.ROUTED_TOKENS else f" (cut {afd.cut}: {NEEDS[Cut(afd.cut)]})"
    doubt = ""
    if abs(gain) < MODEL_ERROR:
        doubt = f"; the model itself errs by {MODEL_ERROR:.0%} on one row in ten: measure both"
    if gain > TIE:
        return (
            f"disaggregate: {afd.layout}{extra} gives {gain:+.1%} per GPU against the best "
            f"colocated layout, {base.layout}{doubt}"
        )
    if gain < -TIE:
        return (
            f"do not disaggregate: the best ratio, {afd.layout}{extra}, gives {gain:+.1%} per GPU "
            f"against the best colocated layout, {base.layout}{doubt}"
        )
    return (
        f"do not disaggregate: {afd.layout}{extra} ties with {base.layout} ({gain:+.1%} per GPU), "
        "and colocated is simpler"
    )


def after_node_loss(afd: Estimate | None, base: Estimate | None) -> dict[str, Any]:
    """Share of throughput that remains after one node is lost, before anything is restarted."""
    out: dict[str, Any] = {}
    if afd is not None:
        m, n = afd.attention_nodes, afd.ffn_nodes
        out["attention node lost"] = (m - 1) / m
        out["FFN node lost"] = 0.0 if n == 1 else min(1.0, (n - 1) / n)
        out["note"] = (
            "one FFN node holds every expert: its loss stops all serving until it is restarted"
            if n == 1
            else "the remaining FFN nodes must hold all experts (use --survive-node-loss)"
        )
    if base is not None:
        out["colocated node lost"] = 0.0
        out["colocated note"] = f"the {base.layout} group that lost the node stops; others go on"
    return out


def sweep(
    bench: Bench, ratios: list[tuple[int, int]], contexts: list[float], limits: Limits
) -> list[dict[str, Any]]:
    """M:N × context, each at its own resident batch, beside the best colocated layout."""
    rows = []
    for context in contexts:
        at = bench.at_context(context)
        base = _top(colocated_layouts(at, limits, []))
        for m, n in ratios:
            for cut in limits.cuts:
                found = best_lanes(at, m, n, cut, limits)
                if found is None:
                    continue
                row = asdict(found)
                row["context_tokens"] = context
                row["against_best_colocated"] = (
                    found.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu if base else None
                )
                row["best_colocated"] = base.layout if base else None
                rows.append(row)
    return rows


def largest_hidden_m(bench: Bench, n: int, batch: int, lanes: int = 2, most: int = 64) -> int:
    """The largest M at which the round trip stays hidden behind attention; 0 if none."""
    hidden = 0
    for m in range(1, most + 1):
        if disaggregated(bench, m, n, batch, lanes).regime != "hidden":
            break
        hidden = m
    return hidden
