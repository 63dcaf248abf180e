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
    assert got["best"]["ratio"] == "7:1" and got["best"]["lanes"] == 2
    assert got["best_colocated"]["expert_parallel"] == 16
    assert all(got["best"]["sources"].values())
    assert "another cut would win" in got["proposal"]
    assert got["after_node_loss"]["FFN node lost"] == 0.0


def test_an_slo_bounds_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "recommend", *MODEL, "--context", "8K", "--slo-tpot-ms", "25")
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


def test_the_ledger_explains_every_difference(capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, "fidelity")
    assert got["total"] > 100
    for row in got["rows"]:
        assert {"name", "reference", "published", "ours", "difference"} <= set(row)
        if row["difference"] is None or abs(row["difference"]) > 0.05:
            assert row["note"]
    # Pure arithmetic must agree unless the published statement itself is in doubt.
    by_name = {r["name"]: r for r in got["rows"]}
    for label in ("Qwen3 8K", "Qwen3 16K", "MiniMax 8K", "MiniMax 16K"):
        assert abs(by_name[f"speed-up {label}, identity on measured steps"]["difference"]) < 0.005
        assert abs(by_name[f"speed-up {label}, modelled from shapes"]["difference"]) < 0.05
        assert abs(by_name[f"projection {label}, MoE only"]["difference"]) < 0.05
    assert "does not add up" in by_name["condition (3) met with m = 2 (1 = yes)"]["note"]
    assert by_name["qwen3-4b: crossover with W_k and W_v pooled, positions"]["ours"] == 28_800


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["recommend", "--model", "nobody"], "unknown model 'nobody'; known: "),
        (["recommend", "--model", "mixtral-8x7b", "--hardware", "abacus"], "unknown hardware"),
        (["recommend", *MODEL, "--gpus", "500"], "replicate it"),
        (["recommend", "--model", "kimi-k2", "--hardware", "h100"], "GB too little"),
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
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_written(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"p.{suffix}"
    assert main(["explain", *MODEL, "--ratio", "7:1", "--plot", str(out)]) == 0
    start = out.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if suffix == "png" else start.startswith(b"<?xml")


@pytest.mark.skipif(find_spec("plotly") is None, reason="plotly is an extra")
def test_the_report_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert main(["report", *MODEL, "--context", "8K", "--out", str(out)]) == 0
    page = out.read_text()
    assert "Fidelity ledger" in page and "colocated EP16" in page
    assert "<script src=" not in page and "<link" not in page
