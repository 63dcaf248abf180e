"""The model against measured rows, and what happens to rows that cannot be true."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.plan.bench import make_bench
from afd.plan.errors import RowError
from afd.plan.hardware import load_hardware
from afd.plan.layouts import Workload, colocated, disaggregated
from afd.plan.measured.rows import read_rows
from afd.plan.measured.validate import validate
from afd.plan.model_spec import load_model
from afd.plan.search import Limits, recommend
from afd.plan.times.calibration import load_calibration
from afd.plan.times.measurements import read_measurements
from afd.plan.times.tables import tables_installed

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
    calibration = load_calibration("roofline")
    assert set(calibration.dense_us) == {"qwen3-235b-a22b", "minimax-m2.5"}


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
    model: str, context: float, batch: int, ratio: int, base_batch: int, published: float
) -> None:
    bench = make_bench(load_model(model), CHIP, Workload(context))
    rates = {m: disaggregated(bench, m, 1, batch).tokens_per_s_per_gpu for m in range(1, 18)}
    assert rates[ratio] >= 0.99 * max(rates.values())
    base = colocated(bench, 4, base_batch).tokens_per_s_per_gpu
    assert rates[ratio] / base == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(
    ("model", "context", "low", "high"),
    [
        ("qwen3-235b-a22b", 8192, 1.01, 1.2),
        ("qwen3-235b-a22b", 16384, 1.05, 1.25),
        ("minimax-m2.5", 8192, 0.95, 1.06),
        ("minimax-m2.5", 16384, 0.8, 0.99),
    ],
)
def test_the_verdict_against_the_best_wide_layout(
    model: str, context: float, low: float, high: float
) -> None:
    got = recommend(make_bench(load_model(model), CHIP, Workload(context)), Limits(72))
    assert got.ratio is not None and low < got.ratio < high
    assert got.verdict.startswith("do not") == (got.ratio <= 1.01)
    assert got.best_colocated is not None and got.best_colocated.expert_parallel >= 16


def test_a_published_step_that_is_not_in_the_file() -> None:
    bench = make_bench(load_model("qwen3-235b-a22b"), CHIP, Workload(8192))
    assert disaggregated(bench, 3, 1, 96).step_ms == pytest.approx(32.826, rel=0.03)


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


def test_own_measurements_come_before_everything(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("term,batch,context_tokens,us\nattention,48,8192,500\ndense,48,,20\n")
    bench = make_bench(load_model("qwen3-235b-a22b"), CHIP, Workload(8192), measurements=path)
    got = disaggregated(bench, 7, 1, 96)
    assert (got.terms_us["T_FMHA"], got.terms_us["T_dense"]) == (500, 20)
    assert got.sources["T_FMHA"].startswith("measured") and "roofline" in got.sources["T_e"]
    path.write_text("term,batch,context_tokens,us\nattention,48,8192,fast\n")
    with pytest.raises(RowError, match="line 2, column 'us'"):
        read_measurements(path)
