"""What each command's picture shows."""

from __future__ import annotations

from typing import Any

from afd.plan.layouts import Estimate
from afd.plan.output.plots import Chart, Series
from afd.plan.project import Projection


def sweep_charts(rows: list[dict[str, Any]], title: str) -> list[Chart]:
    """Throughput on top and the step below, over M, a line per context (and cut, N)."""
    if not rows:
        return []
    groups: dict[str, list[dict[str, Any]]] = {}
    several_cuts = len({r["cut"] for r in rows}) > 1
    several_n = len({r["ffn_nodes"] for r in rows}) > 1
    for row in rows:
        name = f"{row['context_tokens'] / 1024:g}K"
        name += f", N={row['ffn_nodes']}" if several_n else ""
        name += f", {row['cut']}" if several_cuts else ""
        groups.setdefault(name, []).append(row)
    rate, step = [], []
    for name, group in groups.items():
        group = sorted(group, key=lambda r: r["attention_nodes"])
        x = tuple(r["attention_nodes"] for r in group)
        rate.append(Series(name, x, tuple(r["tokens_per_s_per_gpu"] for r in group)))
        step.append(Series(name, x, tuple(r["step_ms"] for r in group)))
        if group[0]["against_best_colocated"]:
            best = group[0]["tokens_per_s_per_gpu"] / group[0]["against_best_colocated"]
            label = f"{name}: {group[0]['best_colocated']}"
            rate.append(Series(label, x, (best,) * len(x), dashed=True))
    return [
        Chart(f"{title}: decode throughput", "attention nodes M", "tokens/s per GPU", tuple(rate)),
        Chart(f"{title}: decode step", "attention nodes M", "step, ms", tuple(step)),
    ]


def explain_charts(afd: Estimate, base: Estimate | None) -> list[Chart]:
    """The colocated step beside the two sides of the boundary, per layer."""
    t = afd.terms_us
    lanes = afd.lanes
    sides = ("attention side", "FFN side", "period x lanes")
    parts = (
        ("T_FMHA", ((t["T_FMHA"] + t["boundary in its way"]) * lanes, 0.0, 0.0)),
        ("T_dense", (t["T_dense"] * lanes, t["dense moved"] * lanes, 0.0)),
        ("T_e (experts)", (0.0, (t["T_e"] - t["dense moved"]) * lanes, 0.0)),
        ("exposed", (t["exposed"] * lanes, 0.0, 0.0)),
        ("period", (0.0, 0.0, t["period"] * lanes)),
    )
    charts = [
        Chart(f"{afd.layout}, {afd.cut}: one layer, {lanes} lanes", "", "us per layer",
              tuple(Series(n, sides, y) for n, y in parts), "stack"),
    ]  # fmt: skip
    if base is not None:
        b = base.terms_us
        layouts = (base.layout, afd.layout)
        attention = (b["T_FMHA"], (t["T_FMHA"] + t["boundary in its way"]) * lanes)
        dense = (b["T_dense"], t["T_dense"] * lanes)
        rest = (b["T_moe"], t["exposed"] * lanes)
        charts.append(
            Chart(
                f"Where a layer's time goes ({base.batch_per_gpu} and {afd.batch_per_gpu} "
                "requests per GPU)", "", "us per layer",
                (Series("T_FMHA", layouts, attention), Series("T_dense", layouts, dense),
                 Series("T_moe / exposed", layouts, rest)), "stack",
            )
        )  # fmt: skip
    return charts


def boundary_chart(layouts: list[Estimate]) -> Chart:
    """Both sides of the boundary over M at one N: where the FFN side stops hiding."""
    x = tuple(e.attention_nodes for e in layouts)
    lines = {
        "T_a": [e.terms_us["T_a"] for e in layouts],
        "T_e + 2 T_c": [e.terms_us["T_e"] + 2 * e.terms_us["T_c"] for e in layouts],
        "period": [e.terms_us["period"] for e in layouts],
    }
    first = layouts[0]
    return Chart(
        f"Both sides over M, N = {first.ffn_nodes}, {first.lanes} lanes, {first.batch_per_gpu} "
        "requests per attention GPU", "attention nodes M", "us per layer and lane",
        tuple(Series(name, x, tuple(y)) for name, y in lines.items()),
    )  # fmt: skip


def validate_charts(result: dict[str, Any]) -> list[Chart]:
    """Measured and predicted throughput, row by row."""
    rows = result["rows"]
    names = tuple(
        f"L{r['line']} {r['model'].split('-')[0]} {r['context_tokens'] / 1024:g}K "
        + (f"{r['attention_nodes']}:{r['ffn_nodes']}" if r["system"] == "afd"
           else f"EP{r['expert_parallel']}") + f" b{r['batch']}"
        for r in rows
    )  # fmt: skip
    return [
        Chart("Error of predicted throughput", "row", "per cent, absolute",
              (Series("error", names, tuple(100 * abs(r["error"]) for r in rows)),), "bar"),
    ]  # fmt: skip


def project_charts(items: list[Projection]) -> list[Chart]:
    """Projected speed-ups per workload."""
    x = tuple(f"{p.model.split('-')[0]} {p.context_tokens / 1024:g}K" for p in items)
    return [
        Chart("Rubin + LPX over Rubin alone (projection)", "", "speed-up per Rubin GPU",
              (Series("MoE only", x, tuple(p.moe_only_speedup for p in items)),
               Series("dense + MoE", x, tuple(p.dense_and_moe_speedup for p in items))), "bar"),
    ]  # fmt: skip


def fidelity_charts(result: dict[str, Any]) -> list[Chart]:
    """Differences of the ledger's entries that are reachable, clipped to ±50 %."""
    rows = [r for r in result["rows"] if r["difference"] is not None and r["difference"] != 0]
    rows = sorted(rows, key=lambda r: -abs(r["difference"]))[:25]
    x = tuple(r["name"][:56] for r in rows)
    y = tuple(min(50.0, 100 * abs(r["difference"])) for r in rows)
    return [Chart("Largest differences from the references", "", "per cent (clipped at 50)",
                  (Series("difference", x, y),), "bar")]  # fmt: skip


def measure_charts(points: list[dict[str, Any]]) -> list[Chart]:
    """Measured times over the batch, a line per term, context and number of expert ranks."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for p in points:
        name = p["term"]
        name += f", {p['context_tokens']:g} tokens" if p["context_tokens"] else ""
        name += f", EP{p['expert_parallel']}" if p["expert_parallel"] else ""
        lines.setdefault(name, []).append((p["batch"], p["us"]))
    series = tuple(
        Series(name, tuple(b for b, _ in line), tuple(us for _, us in line))
        for name, line in lines.items()
    )
    return [Chart("Measured kernel times", "batch", "us per layer and lane", series)]
