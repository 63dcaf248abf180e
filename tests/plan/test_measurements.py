"""The measurements file: its format, who writes it, and that it comes before every other source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from afd.plan.bench import make_bench
from afd.plan.cli import main
from afd.plan.errors import DoesNotFitError, PlanError, RowError
from afd.plan.layouts import Workload, colocated, disaggregated
from afd.plan.measurements import FIELDS, TERMS, read_measurements
from afd.plan.model_spec import load_model
from afd.plan.profiles import load_hardware
from afd.plan.times.measure import Sizes, measure

DOCS = Path(__file__).parents[2] / "docs" / "planner.md"
CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "vocab_size": 512, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny-moe"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_this_cpu_is_timed_and_every_timed_term_is_then_called_measured(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.csv"
    got = ask(capsys, "measure", "--model", model, "--batch", "1", "4", "--context", "32", "64",
              "--expert-parallel", "1", "2", "--out", str(out))  # fmt: skip
    assert {p["term"] for p in got["points"]} == {"attention", "dense", "experts", "head"}
    assert all(p["us"] > 0 for p in got["points"])
    flags = ["--model", model, "--hardware", "cpu", "--context", "64", "--gpus", "2",
             "--measurements", str(out)]  # fmt: skip
    best = ask(capsys, "recommend", *flags)["best"]
    for term in ("T_FMHA", "T_dense", "T_moe" if best["system"] == "colocated" else "T_e",
                 "head per step"):  # fmt: skip
        assert best["sources"][term].startswith("measured (mine.csv")
    afd = ask(capsys, "explain", *flags, "--ratio", "1:1", "--batch", "8")["afd"]
    for term in ("T_FMHA", "T_dense"):
        assert afd["sources"][term] == "measured (mine.csv)"
    assert afd["sources"]["head per step"] == "measured (mine.csv, extrapolated)"
    # One FFN rank: the file has times for it, complete, so nothing is added to them.
    assert afd["sources"]["T_e"] == "measured (mine.csv)"
    assert afd["terms_us"]["T_e"] == afd["terms_us"]["ffn GEMM"]


def test_every_term_of_the_file_is_used_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        "\ufeffterm,batch,context_tokens,us\r\n# from a run\r\n\r\n"
        "attention,48,8192,500\r\ndense,48,,20\r\nexperts,336,,90\r\nhead,96,,7\r\n"
        "dispatch,48,,3\r\ncombine,48,,5\r\n"
    )
    bench = make_bench(
        load_model("qwen3-235b-a22b"), load_hardware("gb200"), Workload(8192), measurements=path
    )
    got = disaggregated(bench, 7, 1, 96)
    names = ("T_FMHA", "T_dense", "T_e", "head per step", "dispatch", "combine", "T_c")
    assert [got.terms_us[n] for n in names] == [500, 20, 90, 7, 3, 5, 4]
    assert all(source.startswith("measured") for source in got.sources.values())
    assert colocated(bench, 4, 48).terms_us["T_moe"] == 90


def test_expert_times_of_another_number_of_ranks_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        "term,batch,expert_parallel,us\nexperts,10,4,80\nexperts,20,4,90\nexperts,10,4,120\n"
    )
    points = read_measurements(path)
    at_ten = points.at("experts", 10, 4)
    assert at_ten is not None and at_ten.us == 100  # the median of the two
    assert points.at("experts", 10, 8) is None


def test_beyond_the_points_times_grow_and_the_source_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("term,batch,us\ndense,8,50\nhead,8,30\nhead,16,20\n")
    points = read_measurements(path)
    for term, load, us in (
        ("dense", 8, 50),
        ("dense", 80, 500),
        ("head", 12, 25),
        ("head", 99, 20),
    ):
        got = points.at(term, load)
        assert got is not None and got.us == us
        assert ("extrapolated" in got.source) == (load > 16)


def test_toml_holds_the_same_points(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[[point]]\nterm = "dense"\nbatch = 8\nus = 12.5\n')
    term = read_measurements(path).at("dense", 8)
    assert term is not None and term.us == 12.5


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("term,batch,us\ndense,8,fast\n", "line 2, column 'us'"),
        ("term,batch,us\ndense,0,1\n", "line 2, column 'batch'"),
        ("term,batch,us\n\n#\nattention,8,1\n", "line 4, column 'context_tokens'"),
        ("term,batch,us\nffn,8,1\n", "line 2, column 'term'"),
        ("term,us\ndense,1\n", "line 1, column 'batch'"),
    ],
)
def test_a_bad_point_names_line_and_column(tmp_path: Path, text: str, column: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(RowError, match=column):
        read_measurements(path)


def test_the_documented_format_is_the_one_that_is_read(tmp_path: Path) -> None:
    block = re.search(r"```csv\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    path = tmp_path / "docs.csv"
    path.write_text(block.group(1))
    assert block.group(1).splitlines()[0].split(",") == list(FIELDS)
    assert {p.term for p in read_measurements(path).points} == set(TERMS)


def test_what_cannot_be_timed_is_refused(model: str) -> None:
    sizes = Sizes((1,), (16,), (1,), threads=1, memory_bytes=1e3)
    with pytest.raises(DoesNotFitError, match="timing"):
        list(measure(load_model(model), sizes))
    with pytest.raises(PlanError, match="compressed attention"):
        list(measure(load_model("deepseek-v3"), sizes))
