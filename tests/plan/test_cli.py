"""The commands from the outside, and the ledger."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from afd.plan.cli import main

CSV = Path(__file__).parent / "data" / "gb200_measured.csv"
MODEL = ["--model", "Qwen/Qwen3-235B-A22B", "--hardware", "gb200", "--kernels", "roofline"]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_recommend_names_sources_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "recommend", *MODEL, "--context", "8192", "--gpus", "32")
    assert got["best"]["ratio"] in ("6:1", "7:1") and got["best"]["lanes"] == 2
    assert got["best_colocated"]["expert_parallel"] == 16
    assert all(got["best"]["sources"].values())
    assert "another cut would win" in got["proposal"]
    assert got["after_node_loss"]["FFN node lost"] == 0.0


def test_an_slo_bounds_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "recommend", *MODEL, "--context", "8K", "--slo-tpot-ms", "25",
              "--gpus", "32")  # fmt: skip
    assert got["best"]["step_ms"] <= 25
    assert got["best"]["batch_per_gpu"] < 96


def test_surviving_a_node_loss_needs_more_ffn_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "recommend", *MODEL, "--context", "8K", "--survive-node-loss")
    assert got["best_afd"]["ffn_nodes"] >= 2


def test_sweep_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(capsys, "sweep", *MODEL, "--context", "8K", "16K", "--ratios", "3:1", "7:1")["rows"]
    assert [(r["attention_nodes"], r["context_tokens"]) for r in rows] == [
        (3, 8192), (7, 8192), (3, 16384), (7, 16384),
    ]  # fmt: skip
    got = ask(capsys, "explain", *MODEL, "--ratio", "7:1", "--batch", "96")
    identity = got["identity"]
    product = identity["batch_expansion"] * identity["hosting_share"] * identity["latency_ratio"]
    ratio = got["afd"]["tokens_per_s_per_gpu"] / got["best_colocated"]["tokens_per_s_per_gpu"]
    assert product == pytest.approx(identity["speedup"]) and product == pytest.approx(ratio)
    assert got["conditions"]["enough_lanes"] is False


def test_projection_is_feasible_on_two_racks_only(capsys: pytest.CaptureFixture[str]) -> None:
    for p in ask(capsys, "project")["rows"]:
        assert 1.5 < p["moe_only_speedup"] < 1.85 < p["dense_and_moe_speedup"]
        assert p["capacity_ok"] and p["compute_ok"] and p["transport_ok"]
    assert not ask(capsys, "project", "--racks", "1")["rows"][0]["capacity_ok"]


def test_validate_has_the_agreed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "validate", str(CSV))
    assert {"rows", "median_abs_error", "p90_abs_error", "worst_abs_error"} <= set(got)
    assert {"measured", "predicted", "error"} <= set(got["rows"][0])


def test_a_fitted_calibration_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(CSV), "--kernels", "roofline"]) == 0
    path = tmp_path / "mine.toml"
    path.write_text(capsys.readouterr().out)
    flags = ["validate", str(CSV), "--kernels", "roofline"]
    mine, shipped = ask(capsys, *flags, "--calibration", str(path)), ask(capsys, *flags)
    assert mine["median_abs_error"] == pytest.approx(shipped["median_abs_error"], abs=1e-3)
    path.write_text(path.read_text().replace("skew_exponent = 0.9", "skew_exponent = 0.1"))
    assert ask(capsys, *flags, "--calibration", str(path))["worst_abs_error"] > 0.1


def test_the_ledger_explains_every_difference(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "fidelity")
    assert got["total"] > 150
    for row in got["rows"]:
        assert {"name", "reference", "published", "ours", "difference"} <= set(row)
        assert row["ours"] is not None
        if abs(row["difference"]) > 0.05:
            assert row["note"] and row["note"] != "differs by more than 5 %"
    # Pure arithmetic must agree unless the published statement itself is in doubt.
    by_name = {r["name"]: r for r in got["rows"]}
    for label in ("Qwen3 8K", "Qwen3 16K", "MiniMax 8K", "MiniMax 16K"):
        assert abs(by_name[f"speed-up {label}, identity on measured steps"]["difference"]) < 0.005
        assert abs(by_name[f"speed-up {label}, modelled from shapes"]["difference"]) < 0.05
        assert abs(by_name[f"projection {label}, MoE only"]["difference"]) < 0.05
    assert "does not add up" in by_name["condition (3) met with m = 2 (1 = yes)"]["note"]
    assert by_name["qwen3-4b: crossover with W_k and W_v pooled, positions"]["ours"] == 28_800
    local = "co-resident requests above which to keep the pair local, "
    assert [by_name[local + m]["ours"] for m in ("Qwen3-0.6B", "Qwen3-4B")] == [3, 7]
    for end in ("largest (Qwen3 8K)", "smallest (MiniMax 16K)"):
        lpx = by_name[f"LPX FFN/MoE time per step, {end}, with projections, ms"]
        assert abs(lpx["difference"]) < 0.05


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["recommend", "--model", "nobody"], "unknown model 'nobody'; known: "),
        (["recommend", "--model", "mixtral-8x7b", "--hardware", "abacus"], "unknown hardware"),
        (["recommend", *MODEL, "--gpus", "500"], "replicate it"),
        (["recommend", "--model", "kimi-k2", "--hardware", "h100"], "GB too little"),
        (["recommend", "--model", "qwen3-235b"], "did you mean qwen3-235b-a22b?"),
        (["recommend", "--model", "nowhere/config.json"], "cannot read"),
        (["recommend", *MODEL, "--slo-tpot-ms", "1"], "within 1 ms; raise --slo-tpot-ms"),
        (["explain", *MODEL, "--ratio", "40:1"], "40:1 takes 164 GPUs and 72 are allowed"),
        (["explain", *MODEL, "--ratio", "7:1", "--batch", "5000"], "GB too little"),
        (["sweep", "--model", "kimi-k2", "--hardware", "h100"], "GB too little"),
        (["validate", "missing.csv"], "cannot read"),
        (["explain", *MODEL, "--ratio", "7:1", "--plot", "x.gif"], "suffix must be"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is an extra")
@pytest.mark.parametrize(
    "words",
    [
        ["recommend", *MODEL, "--gpus", "24"], ["sweep", *MODEL],
        ["explain", *MODEL, "--ratio", "7:1"], ["project"], ["fidelity"],
        ["validate", str(CSV)], ["calibrate", str(CSV), "--kernels", "roofline"],
    ],
)  # fmt: skip
def test_every_command_draws(tmp_path: Path, words: list[str]) -> None:
    out = tmp_path / "p.png"
    assert main([*words, "--plot", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is an extra")
def test_a_picture_may_be_svg(tmp_path: Path) -> None:
    out = tmp_path / "p.svg"
    assert main(["project", "--plot", str(out)]) == 0
    assert out.read_text().startswith("<?xml")


@pytest.mark.skipif(find_spec("plotly") is None, reason="plotly is an extra")
def test_the_report_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert main(["report", *MODEL, "--gpus", "24", "--out", str(out)]) == 0
    page = out.read_text()
    assert "Fidelity ledger" in page and "colocated EP16" in page
    assert "losing an FFN node must not stop serving" in page
    assert "<script src=" not in page and "<link" not in page
