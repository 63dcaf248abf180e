"""The model against measured rows, and what happens to rows that cannot be true."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.plan.bench import make_bench
from afd.plan.errors import RowError
from afd.plan.layouts import Workload, colocated, disaggregated
from afd.plan.measured.fit import fit_calibration
from afd.plan.measured.rows import read_rows
from afd.plan.measured.validate import validate
from afd.plan.model_spec import load_model
from afd.plan.profiles import load_hardware
from afd.plan.search import Limits, recommend
from afd.plan.times.calibration import FITTED, load_calibration
from afd.plan.times.tables import load_tables, tables_installed

CSV = Path(__file__).parent / "data" / "gb200_measured.csv"
HEADER = CSV.read_text().splitlines()[0]
CHIP = load_hardware("gb200")
SOURCES = ["roofline"] + (["tables"] if tables_installed() else [])


@pytest.mark.parametrize("source", SOURCES)
def test_measured_rows_are_met_also_when_their_workload_is_left_out(source: str) -> None:
    result = validate(CSV, CHIP, leave_one_out=True, use_tables=source == "tables")
    assert len(result["rows"]) == 30 and not result["flagged"]
    assert result["median_abs_error"] <= 0.03 and result["worst_abs_error"] <= 0.10
    left = result["leave_one_workload_out"]
    assert len(left["rows"]) == 30
    assert left["median_abs_error"] <= 0.05 and left["worst_abs_error"] <= 0.12
    for system in ("afd", "colocated"):
        assert left[system]["worst_abs_error"] <= 0.12


def test_the_calibration_has_few_parameters() -> None:
    assert len(FITTED) <= 7
    for source in ("roofline", "tables"):
        calibration = load_calibration(source)
        assert set(calibration.dense_us) == {"qwen3-235b-a22b", "minimax-m2.5"}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("model", "context", "batch", "ratio", "base_batch", "published"),
    [
        ("qwen3-235b-a22b", 8192, 96, 7, 64, 1.41),
        ("qwen3-235b-a22b", 16384, 48, 11, 32, 1.44),
        ("minimax-m2.5", 8192, 72, 17, 48, 1.45),
        ("minimax-m2.5", 16384, 36, 17, 24, 1.35),
    ],
)
def test_published_ratios_are_best_or_within_a_per_cent_and_speedups_close(
    source: str,
    model: str,
    context: float,
    batch: int,
    ratio: int,
    base_batch: int,
    published: float,
) -> None:
    load = Workload(context)
    bench = make_bench(load_model(model), CHIP, load, use_tables=source == "tables")
    rates = {m: disaggregated(bench, m, 1, batch).tokens_per_s_per_gpu for m in range(1, 18)}
    assert rates[ratio] >= 0.99 * max(rates.values())
    base = colocated(bench, 4, base_batch).tokens_per_s_per_gpu
    assert rates[ratio] / base == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("model", "context", "low", "high"),
    [
        ("qwen3-235b-a22b", 8192, 1.01, 1.2),
        ("qwen3-235b-a22b", 16384, 1.05, 1.25),
        ("minimax-m2.5", 8192, 0.98, 1.02),
        ("minimax-m2.5", 16384, 0.8, 0.99),
    ],
)
def test_the_verdict_against_the_best_wide_layout_has_the_measured_sign(
    source: str, model: str, context: float, low: float, high: float
) -> None:
    load = Workload(context)
    bench = make_bench(load_model(model), CHIP, load, use_tables=source == "tables")
    got = recommend(bench, Limits(72))
    assert got.ratio is not None and low < got.ratio < high
    assert got.verdict.startswith("do not") == (got.ratio <= 1.01)
    assert got.best_colocated is not None and got.best_colocated.expert_parallel >= 16


@pytest.mark.parametrize("source", SOURCES)
def test_published_steps_that_are_not_in_the_file(source: str) -> None:
    model, tables = load_model("qwen3-235b-a22b"), source == "tables"
    bench = make_bench(model, CHIP, Workload(8192), use_tables=tables)
    assert disaggregated(bench, 3, 1, 96).step_ms == pytest.approx(32.826, rel=0.03)
    # 128K at 15:1 with attention and boundary kernels in each other's way, and on disjoint SMs.
    shared = disaggregated(bench.at_context(131_072), 15, 1, 6)
    assert shared.step_ms == pytest.approx(36.5, rel=0.04)
    held_ms = shared.terms_us["boundary in its way"] * 2 * model.layers * 1e-3
    assert shared.step_ms - held_ms == pytest.approx(30.8, rel=0.04)


def test_the_shipped_calibration_is_what_the_rows_give() -> None:
    fitted = fit_calibration(read_rows(CSV), CHIP)
    shipped = load_calibration("roofline")
    for name in FITTED:
        assert getattr(fitted, name) == pytest.approx(getattr(shipped, name), rel=2e-3)


def test_expert_tables_lie_between_even_and_hot() -> None:
    pytest.importorskip("aiconfigurator_core")
    pytest.importorskip("pyarrow")
    model = load_model("qwen3-235b-a22b")
    tables = load_tables(model, CHIP)
    assert tables is not None and tables.experts is not None
    curves = tables.experts
    for ranks in (4, 6, 16, 24, 64, 72, 128):
        even = curves.at(2000, ranks, 1.0, 2.0)
        hot = curves.at(2000, ranks, 2.0, 2.0)
        assert curves.launch_us < even <= hot
        assert even <= curves.at(2000, ranks, 1.5, 2.0) <= hot
        # Reading the held experts alone takes this long at the chip's bandwidth.
        assert hot > model.routed_bytes / model.layers / ranks / CHIP.memory_bytes_per_s * 1e6


@pytest.mark.parametrize("source", SOURCES)
def test_a_narrower_cache_is_read_faster(source: str) -> None:
    model, tables = load_model("qwen3-235b-a22b"), source == "tables"
    wide, narrow = (
        disaggregated(
            make_bench(model, CHIP, Workload(8192, kv), use_tables=tables), 7, 1, 96
        ).terms_us["T_FMHA"]
        for kv in (2.0, 1.0)
    )
    assert 0.4 * wide < narrow < 0.8 * wide


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("Qwen3-235B-A22B-FP8,131072,afd,15,1,4,6,600,,x", "KV bytes over the step"),
        ("Qwen3-235B-A22B-FP8,1024,colocated,0,0,4,1,600,,x", "weight bytes over the step"),
        ("Qwen3-235B-A22B-FP8,131072,afd,15,1,4,12,100,,x", "above the chip's 198.7 GB"),
        ("Qwen3-235B-A22B-FP8,8192,afd,7,1,4,96,2518,20.5,x", "contradicts the throughput"),
        ("Qwen3-235B-A22B-FP8,1024,afd,7,1,4,64,9000,,x", "expert weight bytes over the step"),
        ("Qwen3-235B-A22B-FP8,8192,afd,7,1,8,96,2518,,x", "EP8 on 1 FFN node"),
        ("Kimi-K2-Instruct,1024,afd,7,1,4,8,100,,x", "on each of 4 FFN ranks"),
        ("Qwen3-235B-A22B-FP8,8192,colocated,0,0,256,8,100,,x", "without any of 128 experts"),
    ],
)
def test_impossible_rows_are_flagged_and_left_out(tmp_path: Path, row: str, reason: str) -> None:
    good = "Qwen3-235B-A22B-FP8,8192,afd,7,1,4,96,2518,,x"
    result = validate(write(tmp_path / "r.csv", good, row), CHIP)
    assert len(result["rows"]) == 1
    assert reason in result["flagged"][0]["reason"] and result["flagged"][0]["line"] == 3


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("Qwen3-235B-A22B-FP8,eight,afd,7,1,4,96,2518,,x", "context_tokens"),
        ("Qwen3-235B-A22B-FP8,8192,afd,7.5,1,4,96,2518,,x", "attention_nodes"),
        ("Qwen3-235B-A22B-FP8,8192,afd,0,1,4,96,2518,,x", "attention_nodes"),
        ("Qwen3-235B-A22B-FP8,8192,mixed,7,1,4,96,2518,,x", "system"),
        ("Qwen3-235B-A22B-FP8,8192,afd,7,1,4,96,nan,,x", "tokens_per_s_per_gpu"),
        ("Nobody-1B,8192,afd,7,1,4,96,2518,,x", "model"),
    ],
)
def test_a_bad_cell_names_line_and_column(tmp_path: Path, row: str, column: str) -> None:
    with pytest.raises(RowError, match=f"line 2, column '{column}'"):
        read_rows(write(tmp_path / "r.csv", row))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff{head}\r\n\r\n{row}\r\n",
        "{head}\n,,,,,,,,,\n{row}\n\n\n",
        '{head}\n"Qwen3-235B-A22B-FP8","8192","AFD","7","1","4","96","2518","","a, b\nand c"\n',
        "source,model,system,ffn_nodes,attention_nodes,context_tokens,requests_per_attention_gpu,"
        "tokens_per_s_per_gpu,extra\nx,Qwen3-235B-A22B-FP8,afd,1,7,8192,96,2518,?\n",
        "Model,Context_Tokens,System,Attention_Nodes,FFN_Nodes,Requests_per_attention_GPU,step_ms\n"
        "Qwen/Qwen3-235B-A22B, 8192 ,afd,7,1,96,33.36\n",
    ],
)
def test_a_file_may_come_from_any_spreadsheet(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.csv"
    row = "Qwen3-235B-A22B-FP8,8192,afd,7,1,4,96,2518,,x"
    path.write_bytes(text.format(head=HEADER, row=row).encode())
    (got,) = validate(path, CHIP)["rows"]
    assert got["measured"] == pytest.approx(2518, rel=1e-3)
    assert abs(got["error"]) < 0.05


@pytest.mark.parametrize("source", SOURCES)
def test_any_layout_the_columns_can_express_is_predicted(tmp_path: Path, source: str) -> None:
    rows = [
        f"{model},{context},colocated,,,{ranks},{batch},5,,x"
        for model in ("Qwen3-235B-A22B-FP8", "MiniMax-M2.5", "DeepSeek-V3", "gpt-oss-120b")
        for context in (1, 777, 12_000, 40_000)
        for ranks, batch in ((4, 3), (8, 17), (12, 127), (16, 1), (24, 2), (32, 129), (64, 8))
    ] + [
        f"{model},{context},afd,{m},{n},{ranks},{batch},5,,x"
        for model in ("Qwen3-30B-A3B", "MiniMax-M2.5", "DeepSeek-V3", "gpt-oss-20b")
        for context in (1, 3000, 20_000)
        for m, n, ranks, batch in ((1, 1, "", 1), (3, 2, 4, 7), (16, 2, 8, 10), (2, 5, 20, 12))
    ]
    result = validate(write(tmp_path / "r.csv", *rows), CHIP, use_tables=source == "tables")
    assert len(result["rows"]) + len(result["flagged"]) == len(rows)
    assert len(result["rows"]) > 0.7 * len(rows)
    assert all(0 < r["predicted"] < 1e7 for r in result["rows"])
    assert all(f["reason"] for f in result["flagged"])


def test_replicated_experts_cost_more_weight_reads_than_a_wide_group() -> None:
    bench = make_bench(load_model("qwen3-235b-a22b"), CHIP, Workload(8192))
    wide, replicas = (disaggregated(bench, 14, 2, 96, expert_parallel=ep) for ep in (8, 4))
    assert replicas.terms_us["ffn weights"] > 1.9 * wide.terms_us["ffn weights"]
