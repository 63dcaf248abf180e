"""Puts the commands' answers into one report."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from afd.plan.errors import ExtraMissingError
from afd.plan.layouts import Bench, Estimate
from afd.plan.ledger.ledger import ledger
from afd.plan.options import bench_from, limits_from, possible_ratios
from afd.plan.output import charts as draw
from afd.plan.output.plots import Chart
from afd.plan.output.report import page, table_html
from afd.plan.output.text import ESTIMATE_HEADER, estimate_row
from afd.plan.search import Limits, recommend, sweep
from afd.plan.sensitivity import what_changes


def build(options: argparse.Namespace) -> tuple[dict[str, Any], str, list[Chart]]:
    """Writes ``--out`` and answers with its path."""
    if find_spec("plotly") is None:
        raise ExtraMissingError("plotly", "the report")
    bench = bench_from(options)
    limits = limits_from(options, bench)
    sections: list[tuple[str, str, list[Chart]]] = []
    verdicts = []
    ratios = possible_ratios(bench, limits)
    for context in options.context:
        got = recommend(bench.at_context(context), limits)
        said = ". ".join(s for s in (got.verdict, got.proposal) if s)
        verdicts.append(f"{context / 1024:g}K: {said}.")
        named = [("best", got.best), ("runner-up", got.runner_up), ("best AFD", got.best_afd),
                 ("best colocated", got.best_colocated),
                 ("other cut", got.other_cut)]  # fmt: skip
        rows = [(name, *estimate_row(e)) for name, e in named if e is not None]
        body = table_html(("", *ESTIMATE_HEADER), rows)
        pictures: list[Chart] = []
        if got.best_afd is not None:
            pictures = draw.explain_charts(got.best_afd, got.best_colocated)
            body += _terms(got.best_afd)
        body += _changes(bench.at_context(context), limits)
        sections.append((f"Recommendation at {context / 1024:g}K context", body, pictures))
    rows_ = sweep(bench, ratios, options.context, limits)
    sections.append(
        ("Sweep of M:N", "<p>Every ratio at its own resident batch; dashed lines are the best "
         "colocated layout.</p>", draw.sweep_charts(rows_, bench.model.name))
    )  # fmt: skip
    sections.append(("Fidelity ledger", _ledger(), []))
    title = f"{bench.model.name} on {limits.gpus} x {bench.hardware.name}"
    options.out.write_text(page(title, verdicts, sections), encoding="utf-8")
    drawn = [chart for _, _, group in sections for chart in group]
    return {"out": str(options.out), "verdicts": verdicts}, f"wrote {options.out}", drawn


def _changes(bench: Bench, limits: Limits) -> str:
    rows = [(c.what, c.layout, c.batch, c.tokens_per_s_per_gpu, c.gain) for c in
            what_changes(bench, limits)]  # fmt: skip
    header = ("if", "best layout", "batch/GPU", "tok/s/GPU", "AFD against best colocated")
    return "<h3>What would change it</h3>" + table_html(header, rows)


def _terms(e: Estimate) -> str:
    from afd.plan.output.text import source_of

    rows = [(name, us, source_of(e, name)) for name, us in e.terms_us.items()]
    return table_html((f"term of {e.layout}", "µs per layer and lane", "source"), rows)


def _ledger() -> str:
    rows = [
        (r["reference"], r["name"], r["published"], r["ours"],
         "–" if r["difference"] is None else f"{r['difference']:+.1%}", r["note"])
        for r in ledger()["rows"]
    ]  # fmt: skip
    return table_html(("reference", "name", "published", "ours", "difference", "note"), rows)
