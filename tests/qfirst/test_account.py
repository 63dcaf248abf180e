"""The account: published figures, and the formulas against real modules and real tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from afd.qfirst import counts
from afd.qfirst.account import KNOWN, figures
from afd.qfirst.block import Decoder, parameter_count
from afd.qfirst.cli import main
from afd.qfirst.config import DecoderConfig
from afd.qfirst.protocol import Pool
from afd.qfirst.protocol_paired import Carried, PairedPool
from afd.qfirst.stages import program
from afd.qfirst.wiring import wiring
from tests.qfirst.conftest import GROUPED, NORMED
from tests.tools.conftest import llama_folder  # noqa: F401  (a fixture)


@pytest.mark.parametrize("name", KNOWN)
def test_every_published_figure_comes_out_as_published(name: str) -> None:
    rows = figures(name, KNOWN[name])
    assert [row.name for row in rows if row.agrees is False] == []
    assert sum(row.agrees is True for row in rows) >= 17


@pytest.mark.parametrize("config", [*KNOWN.values(), GROUPED, NORMED])
def test_counts_are_those_of_a_module(config: DecoderConfig) -> None:
    with torch.device("meta"):
        decoder = Decoder(config)
    assert counts.parameters(config) == parameter_count(decoder)
    layer = decoder.layers[0]
    held = sum(p.numel() for n, p in layer.named_parameters() if "q_proj" in n or "o_proj" in n)
    pooled = sum(
        p.numel() for n, p in layer.named_parameters()
        if any(part in n for part in ("mlp", "k_proj", "v_proj"))
    )  # fmt: skip
    assert counts.cache_side_bytes(config) == 2 * held
    assert counts.pool_bytes(config) == 2 * pooled
    assert counts.layer_elements(config) == held + pooled


@pytest.mark.parametrize("config", [GROUPED, NORMED])
def test_the_wire_is_what_the_protocol_exchanges(config: DecoderConfig) -> None:
    decoder = Decoder(config, wiring("early_q")).to(torch.bfloat16)
    stage = program(decoder.wiring, config.layers).stages[1]
    u = torch.zeros(1, 1, config.hidden, dtype=torch.bfloat16)
    assert counts.sent_bytes(config) == u.nbytes
    assert counts.received_bytes(config) == sum(x.nbytes for x in Pool(decoder).call(stage, u))
    a = torch.zeros(1, config.heads, 1, config.head_dim, dtype=torch.bfloat16)
    q, second = PairedPool(decoder).call(stage, Carried(u, 0, a))
    both_ways = sum(x.nbytes for x in (u, a, q, *second()))
    assert counts.paired_wire_bytes(config) == both_ways


def test_the_command_takes_a_name_or_a_folder_and_refuses_others(
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["account", "--model", "Qwen3-4B", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"name", "published", "ours", "difference"} <= set(rows[0])
    assert rows[2]["ours"] == rows[2]["published"] == 36_480
    assert main(["account", "--model", str(llama_folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["published"] for row in rows} == {None}
    assert rows[2]["ours"] == 3 * 48 * 96 * 2 / (2 * 32 * 2)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for bad, words in ((str(tmp_path), "gpt2"), ("qwen3-9b", "neither qwen3-0.6b nor qwen3-4b")):
        assert main(["account", "--model", bad]) == 2
        message = capsys.readouterr().err
        assert words in message and message.count("\n") == 1


def test_the_account_and_the_schedule_need_no_torch() -> None:
    lines = "import sys; sys.modules['torch'] = None; from afd.qfirst.cli import main"
    for command in (["account", "--model", "qwen3-4b"], ["schedule"]):
        subprocess.run([sys.executable, "-c", f"{lines}; sys.exit(main({command!r}))"], check=True)
