"""The commands: options in; (JSON data, text, charts) out."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from afd.plan.bench import make_bench
from afd.plan.cuts import Cut
from afd.plan.errors import PlanError
from afd.plan.layouts import Bench, Estimate, Workload, disaggregated
from afd.plan.ledger.ledger import ledger
from afd.plan.measured.fit import fit_calibration
from afd.plan.measured.rows import read_rows
from afd.plan.measured.validate import split_rows, validate, validate_rows
from afd.plan.measurements import FIELDS, write_measurements
from afd.plan.memory import (
    attention_batch,
)
from afd.plan.model_spec import load_model
from afd.plan.options import (
    bench_from,
    calibration_from,
    default_ratios,
    limits_from,
    possible_ratios,
    require_fits,
    tables_wanted,
)
from afd.plan.output import charts as draw
from afd.plan.output.plots import Chart
from afd.plan.output.text import ESTIMATE_HEADER, estimate_row, table, terms
from afd.plan.pipeline import conditions
from afd.plan.profiles import load_hardware
from afd.plan.project import project
from afd.plan.search import (
    Limits,
    Recommendation,
    colocated_layouts,
    recommend,
    smallest_colocated,
    sweep,
)
from afd.plan.times.cpu import free_memory_bytes

Answer = tuple[dict[str, Any], str, list[Chart]]


def _recommend(options: argparse.Namespace) -> Answer:
    bench = bench_from(options)
    limits = limits_from(options, bench)
    out, lines, rows = [], [], []
    for context in options.context:
        at = bench.at_context(context)
        got = recommend(at, limits)
        out.append({"context_tokens": context, **_recommendation(got), **_effects(at, limits, got)})
        lines += [_recommendation_text(context, got, out[-1])]
        ratios = possible_ratios(bench, limits)
        rows += sweep(at, ratios, [context], limits)
    if bench.hardware.calibration == "cpu" and options.measurements is None:
        lines.append("a roofline; for times of this machine's kernels: afd-plan measure --model "
                     f"{options.model}, then --measurements measurements.csv")  # fmt: skip
    data = {"model": bench.model.name, "hardware": bench.hardware.name, "gpus": limits.gpus,
            "recommendations": out, **(out[0] if len(out) == 1 else {})}  # fmt: skip
    return data, "\n\n".join(lines), draw.sweep_charts(rows, bench.model.name)


def _recommendation(got: Recommendation) -> dict[str, Any]:
    data = asdict(got)
    for key in ("best", "runner_up", "best_afd", "best_colocated", "other_cut"):
        if data[key] is not None:
            data[key]["ratio"] = f"{data[key]['attention_nodes']}:{data[key]['ffn_nodes']}"
    return data


def _effects(bench: Bench, limits: Limits, got: Recommendation) -> dict[str, Any]:
    """What even experts and even contexts would have changed: the price of imbalance."""
    even = replace(
        bench, workload=replace(bench.workload, skew_exponent=0.0, expert_counts=(), context_cv=0.0)
    )
    ideal = recommend(even, limits)
    return {
        "without_imbalance": {
            "layout": ideal.best.layout,
            "tokens_per_s_per_gpu": ideal.best.tokens_per_s_per_gpu,
            "lost_to_imbalance": 1
            - got.best.tokens_per_s_per_gpu / ideal.best.tokens_per_s_per_gpu,
        },
        "busiest_rank_factor": {
            str(e.expert_parallel): bench.busiest(e.expert_parallel)
            for e in (got.best_afd, got.best_colocated) if e is not None
        },
    }  # fmt: skip


def _recommendation_text(context: float, got: Recommendation, data: dict[str, Any]) -> str:
    named = [("best", got.best), ("runner-up", got.runner_up), ("best AFD", got.best_afd),
             ("best colocated", got.best_colocated), ("best other cut", got.other_cut)]  # fmt: skip
    body = [(n, *estimate_row(e)) for n, e in named if e is not None]
    lines = [f"context {context:g}: {got.verdict}", table(("", *ESTIMATE_HEADER), body)]
    if got.proposal:
        lines.append(got.proposal)
    ideal = data["without_imbalance"]
    lines.append(
        f"imbalance costs {ideal['lost_to_imbalance']:.1%} (even experts and contexts: "
        f"{ideal['layout']}, {ideal['tokens_per_s_per_gpu']:.0f} tok/s/GPU)"
    )
    loss = got.after_node_loss
    if "FFN node lost" in loss:
        lines.append(
            f"after a lost node: attention {loss['attention node lost']:.0%}, FFN "
            f"{loss['FFN node lost']:.0%} of the throughput; {loss['note']}"
        )
    lines.append(f"sources: {json.dumps(got.best.sources)}")
    lines += [f"refused: {reason}" for reason in got.refused[:3]]
    return "\n".join(lines)


def _sweep(options: argparse.Namespace) -> Answer:
    bench = bench_from(options)
    limits = limits_from(options, bench)
    ratios = options.ratios or default_ratios(bench, limits)
    for asked in ratios:
        for cut in limits.cuts:
            require_fits(bench, limits, asked, cut)
    rows = sweep(bench, ratios, options.context, limits)
    header = ("context", "M:N", "cut", "lanes", "batch/GPU", "step ms", "tok/s/GPU", "vs best "
              "colocated", "regime")  # fmt: skip
    body = [
        (int(r["context_tokens"]), f"{r['attention_nodes']}:{r['ffn_nodes']}", r["cut"], r["lanes"],
         r["batch_per_gpu"], round(r["step_ms"], 3), round(r["tokens_per_s_per_gpu"], 1),
         r["against_best_colocated"], r["regime"])
        for r in rows
    ]  # fmt: skip
    data = {"model": bench.model.name, "hardware": bench.hardware.name, "rows": rows}
    return data, table(header, body), draw.sweep_charts(rows, bench.model.name)


def _explain(options: argparse.Namespace) -> Answer:
    bench = bench_from(options)
    limits = limits_from(options, bench)
    cut = limits.cuts[0]
    batch = options.batch or attention_batch(
        bench.model, bench.hardware, cut, options.context[0], options.kv_bytes, bench.rule
    )
    if options.ratio:
        require_fits(bench, limits, options.ratio, cut, batch)
        lanes = 2 if 2 in limits.lanes else limits.lanes[0]
        afd = disaggregated(
            bench, options.ratio[0], options.ratio[1], batch, min(lanes, batch), cut
        )
    else:
        found = recommend(bench, limits).best_afd
        if found is None:
            raise PlanError("no M:N fits; give --ratio or more --gpus")
        afd = found
    base = max(colocated_layouts(bench, limits, []), key=lambda e: e.tokens_per_s_per_gpu,
               default=None)  # fmt: skip
    t = afd.terms_us
    met = conditions(t["T_a"], t["T_e"], t["T_c"], afd.lanes)
    data = {"afd": asdict(afd), "best_colocated": asdict(base) if base else None,
            "conditions": asdict(met)}  # fmt: skip
    if base is not None:
        data["identity"] = _identity(afd, base)
    nodes = limits.gpus // bench.hardware.gpus_per_node
    over_m = [
        disaggregated(bench, m, afd.ffn_nodes, afd.batch_per_gpu, afd.lanes, Cut(afd.cut))
        for m in range(1, nodes - afd.ffn_nodes + 1)
    ]
    charts = [*draw.explain_charts(afd, base), draw.boundary_chart(over_m)]
    return data, _explain_text(afd, base, data), charts


def _identity(afd: Estimate, base: Estimate) -> dict[str, float]:
    share = afd.attention_nodes / (afd.attention_nodes + afd.ffn_nodes)
    expansion = afd.batch_per_gpu / base.batch_per_gpu
    latency = base.step_ms / afd.step_ms
    return {"batch_expansion": expansion, "hosting_share": share, "latency_ratio": latency,
            "speedup": expansion * share * latency}  # fmt: skip


def _explain_text(afd: Estimate, base: Estimate | None, data: dict[str, Any]) -> str:
    met = data["conditions"]
    lines = [
        table(ESTIMATE_HEADER, [estimate_row(e) for e in (afd, base) if e]),
        f"\n{afd.layout}\n{terms(afd)}",
        "\nconditions: (1) balanced " + ("yes" if met["balanced"] else "no")
        + "; (2) T_c < T_f " + ("yes" if met["transfer_shorter"] else "no")
        + "; (3) m T_f >= 2 (T_f + T_c) " + ("yes" if met["enough_lanes"] else "no")
        + " (with m = 2 it would need T_c <= 0); hidden FFN T_e <= T_a "
        + ("yes" if met["hidden_ffn"] else "no")
        + "; T_e + 2 T_c fits into the other lanes "
        + ("yes" if met["fully_hidden"] else "no"),
    ]  # fmt: skip
    if base is not None:
        i = data["identity"]
        lines += [
            f"identity: {i['batch_expansion']:.3f} batch x {i['hosting_share']:.3f} hosting x "
            f"{i['latency_ratio']:.3f} latency = {i['speedup']:.3f} against {base.layout}",
            f"\n{base.layout}\n{terms(base)}",
        ]
    return "\n".join(lines)


def _project(options: argparse.Namespace) -> Answer:
    models = options.model or ["qwen3-235b-a22b", "minimax-m2.5"]
    hardware, rubin, lpx = (load_hardware(n) for n in (options.hardware, "rubin", "lpx"))
    items = []
    for name in models:
        model = load_model(name)
        for context in options.context:
            bench = make_bench(model, hardware, Workload(context, options.kv_bytes))
            ranks, batch = smallest_colocated(bench)
            items.append(project(bench, rubin, lpx, ranks, options.batch or batch, options.racks))
    header = ("model", "context", "MoE only", "dense+MoE", "batch x", "LPX MoE ms", "Rubin FMHA ms",
              "Rubin dense ms", "wire MB (once)", "verdict")  # fmt: skip
    body = [
        (p.model, int(p.context_tokens), p.moe_only_speedup, p.dense_and_moe_speedup,
         p.rubin_batch_expansion, p.lpx_moe_ms, p.rubin_fmha_ms, p.rubin_dense_ms,
         p.wire_bytes_per_hidden_once / 1e6, p.verdict)
        for p in items
    ]  # fmt: skip
    return {"rows": [asdict(p) for p in items]}, table(header, body), draw.project_charts(items)


def _validate(options: argparse.Namespace) -> Answer:
    hardware = load_hardware(options.hardware)
    result = validate(
        options.csv, hardware, calibration_from(options.calibration), options.kv_bytes,
        options.leave_one_out, tables_wanted(options.kernels, None, hardware),
    )  # fmt: skip
    body = [
        (r["line"], r["model"], int(r["context_tokens"]),
         f"{r['attention_nodes']}:{r['ffn_nodes']}" if r["system"] == "afd"
         else f"EP{r['expert_parallel']}", r["batch"], r["measured"], r["predicted"],
         f"{r['error']:+.1%}", r["regime"])
        for r in result["rows"]
    ]  # fmt: skip
    lines = [table(("line", "model", "context", "layout", "batch", "measured", "predicted", "error",
                    "regime"), body), "", _errors("all rows", result)]  # fmt: skip
    lines += [_errors(s, result[s]) for s in ("afd", "colocated")]
    if "leave_one_workload_out" in result:
        left = result["leave_one_workload_out"]
        lines.append(_errors("leave one workload out", left))
        lines += [_errors(f"leave one workload out, {s}", left[s]) for s in ("afd", "colocated")]
    lines += [f"flagged, left out: line {f['line']}: {f['reason']}" for f in result["flagged"]]
    return result, "\n".join(lines), draw.validate_charts(result)


def _errors(name: str, summary: dict[str, Any]) -> str:
    if summary["median_abs_error"] is None:
        return f"{name}: no rows"
    return (
        f"{name}: median {summary['median_abs_error']:.1%}, p90 {summary['p90_abs_error']:.1%}, "
        f"worst {summary['worst_abs_error']:.1%}"
    )


def _calibrate(options: argparse.Namespace) -> Answer:
    hardware = load_hardware(options.hardware)
    rows, flagged = split_rows(read_rows(options.csv), hardware, options.kv_bytes)
    if not rows:
        raise PlanError(f"{options.csv}: every row is impossible: {flagged[0]['reason']}")
    use_tables = tables_wanted(options.kernels, None, hardware)
    fitted = fit_calibration(rows, hardware, options.kv_bytes, use_tables)
    data = {**asdict(fitted), "dense_us": dict(fitted.dense_us)}
    plain = [f"{k} = {json.dumps(v)}" for k, v in data.items() if k != "dense_us"]
    dense = [f'"{k}" = {v}' for k, v in fitted.dense_us.items()]
    fit = validate_rows(rows, hardware, fitted, options.kv_bytes, use_tables)
    return data, "\n".join([*plain, "", "[dense_us]", *dense]), draw.validate_charts(fit)


def _fidelity(options: argparse.Namespace) -> Answer:
    result = ledger()
    body = [
        (r["reference"], r["name"], r["published"], r["ours"],
         "-" if r["difference"] is None else f"{r['difference']:+.1%}", r["note"])
        for r in result["rows"]
    ]  # fmt: skip
    text = table(("reference", "name", "published", "ours", "difference", "note"), body)
    text += f"\n\n{result['within_5_percent']} of {result['total']} within 5 %"
    return result, text, draw.fidelity_charts(result)


def _report(options: argparse.Namespace) -> Answer:
    from afd.plan.output.report_page import build

    return build(options)


def _measure(options: argparse.Namespace) -> Answer:
    try:
        from afd.plan.times.measure import Sizes, measure
    except ImportError as error:
        raise PlanError(f"the compiled extension is missing, build it first: {error}") from error
    cores = len(os.sched_getaffinity(0))
    ranks = options.expert_parallel or [1 << i for i in range(cores.bit_length())]
    model = load_model(options.model)
    sizes = Sizes(
        tuple(options.batch), tuple(int(c) for c in options.context), tuple(ranks),
        options.threads, free_memory_bytes() / 2,
    )  # fmt: skip
    rows = list(measure(model, sizes))
    write_measurements(options.out, rows)
    points = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    text = table(FIELDS, rows) + (
        f"\n\nwrote {options.out}; use it with `afd-plan recommend --model {options.model} "
        f"--hardware cpu --measurements {options.out}`"
    )
    return (
        {"model": model.name, "out": str(options.out), "points": points},
        text,
        draw.measure_charts(points),
    )


COMMANDS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "recommend": _recommend, "sweep": _sweep, "explain": _explain, "project": _project,
    "validate": _validate, "calibrate": _calibrate, "fidelity": _fidelity, "report": _report,
    "measure": _measure,
}  # fmt: skip
