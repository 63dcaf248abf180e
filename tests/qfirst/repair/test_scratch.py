"""Training from scratch: the pinned settings, one campaign, and what its report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from afd.qfirst.cli import main
from afd.qfirst.repair.arm import ArmFile, Schedule, train_arm
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import read_corpus
from afd.qfirst.repair.optimizer import OptimizerSettings
from afd.qfirst.repair.protocols import ScratchProtocol, read_protocol
from afd.qfirst.repair.records import RecordError, ScratchRecord, read_record
from afd.qfirst.repair.scratch import initial_decoder, scratch_data
from afd.qfirst.repair.scratch_report import scratch_report
from afd.qfirst.wiring import FAMILY_A, FAMILY_B, wiring
from tests.qfirst.repair.examples import scratch_record

SHIPPED = Path(__file__).parents[3] / "protocols" / "read_points.json"
ARMS = (*FAMILY_B, *FAMILY_A)


def tiny(**changes: Any) -> ScratchProtocol:
    protocol = read_protocol(SHIPPED)
    assert isinstance(protocol, ScratchProtocol)
    shape = msgspec.structs.replace(protocol.shape, layers=2, hidden=24, ffn=40, head_dim=8)
    values = {"shape": shape, "steps": 4, "batch": 2, "window_tokens": 32, "score_windows": 3}
    return msgspec.structs.replace(protocol, **(values | changes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_pinned_settings(text: Path, tmp_path: Path, dtype: str) -> None:
    """Norm weights are float32 and move; the embedding, which is the readout, does not."""
    protocol = tiny(dtype=dtype)
    decoder = initial_decoder(protocol, wiring("early_q"), seed=3)
    assert decoder.config.tied
    norms = {n: p for n, p in decoder.named_parameters() if p.dim() == 1}
    assert len(norms) == 2 * 4 + 1
    assert all(p.dtype == torch.float32 for p in norms.values())
    others = [p for n, p in decoder.named_parameters() if n not in norms]
    assert {str(p.dtype) for p in others} == {f"torch.{dtype}"}
    before = {n: p.detach().clone() for n, p in decoder.named_parameters()}
    schedule = Schedule(4, 2, 0, OptimizerSettings(1e-3))
    data = scratch_data(read_corpus([text]), protocol).train
    train_arm(decoder, data, schedule, Backend.FUSED, ArmFile(tmp_path / "a", "x"), int)
    same = {n for n, p in decoder.named_parameters() if torch.equal(p, before[n])}
    assert same == {"embed_tokens.weight"}


def test_arms_of_a_seed_begin_alike_and_seeds_do_not() -> None:
    one, other = (
        dict(initial_decoder(tiny(), wiring(arm), seed=5).named_parameters())
        for arm in ("standard", "parallel")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[n], other[n]) for n in one)
    third = dict(initial_decoder(tiny(), wiring("standard"), seed=6).named_parameters())
    assert not torch.equal(third["layers.0.mlp.up_proj.weight"], one["layers.0.mlp.up_proj.weight"])


def test_a_campaign_runs_what_has_no_record_and_reports_when_all_have(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = tmp_path / "p.json"
    plan = tiny(arms=("swapped", "early_q"), seeds=(0, 1))
    protocol.write_bytes(msgspec.json.encode(plan))
    records = tmp_path / "records"
    command = ["train", "--protocol", str(protocol), "--corpus", str(text)]
    command += ["--records", str(records)]
    assert main([*command, "--arm", "swapped", "--seed", "1"]) == 0
    assert "3 runs of the protocol have no record yet" in capsys.readouterr().out
    first = (records / "swapped-seed1.json").read_bytes()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Family A" in out and "pooled standard deviation" in out
    assert (records / "swapped-seed1.json").read_bytes() == first
    runs = [read_record(records / f"{name}.json") for name in plan.names()]
    counts = {(r.parameters, r.forward_operations) for r in runs if isinstance(r, ScratchRecord)}
    assert len(runs) == 4 and len(counts) == 1
    assert main([*command, "--arm", "standard"]) == 2
    assert "--arm standard is not in the protocol" in capsys.readouterr().err
    (records / "early_q-seed0.json").unlink()
    assert main(["report", "--protocol", str(protocol), "--records", str(records)]) == 2
    assert "early_q-seed0.json is missing" in capsys.readouterr().err


def test_a_text_too_short_for_a_step_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("x" * 60)
    command = ["train", "--protocol", str(SHIPPED), "--corpus", str(path)]
    assert main([*command, "--records", str(tmp_path)]) == 2
    assert "too short" in capsys.readouterr().err


def campaign(moves: dict[str, tuple[float, float, float]]) -> dict[tuple[str, int], ScratchRecord]:
    """Records whose arms differ from 3.0 bits, which seeds move by more, as ``moves`` says."""
    seeds = (0.0, 0.4, -0.3)
    return {
        (arm, s): scratch_record(arm, s, 3.0 + seeds[s] + moves.get(arm, (0, 0, 0))[s])
        for arm in ARMS
        for s in range(3)
    }


def test_the_report_says_what_is_resolved_and_what_is_not() -> None:
    """The seeds' own scatter of 0.3 cancels: 0.1 is resolved and 0.001 is not."""
    protocol = tiny(steps=10, batch=8, learning_rate=0.01)
    runs = campaign({"shared_query": (0.10, 0.105, 0.095), "early_q": (0.002, -0.001, 0.001)})
    report = scratch_report(protocol, runs)
    resolved, lost = (
        next(line for line in report.splitlines() if line.startswith(start))
        for start in ("- Resolved", "- Not resolved")
    )
    assert "shared_query +0.1000" in resolved and "early_q" not in resolved
    assert "early_q +0.0007" in lost and "shared_query" not in lost
    assert "at every seed: shared_query." in report
    assert "cannot say" not in report
    wide = campaign({"shifted": (0.1, -0.1, 0.0)})
    assert "this campaign cannot say that a read point is free" in scratch_report(protocol, wide)


def test_records_of_different_campaigns_are_not_compared() -> None:
    protocol = tiny(steps=10, batch=8, learning_rate=0.01)
    runs = campaign({})
    runs["early_q", 1] = msgspec.structs.replace(runs["early_q", 1], parameters=101)
    with pytest.raises(RecordError, match="early_q, seed 1 has another parameters"):
        scratch_report(protocol, runs)
    with pytest.raises(RecordError, match="other settings than its protocol"):
        scratch_report(tiny(steps=11), campaign({}))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_campaign_is_bounded_and_resolves_what_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All arms, three seeds, the shipped width, on this repository's own text; minutes."""
    protocol = tmp_path / "p.json"
    values = json.loads(SHIPPED.read_text()) | {"steps": 120, "score_windows": 64}
    protocol.write_text(json.dumps(values))
    files = sorted((Path(__file__).parents[3] / "afd").rglob("*.py"))
    sources = [path for path in files if path.stat().st_size]
    command = ["train", "--protocol", str(protocol), "--corpus", *map(str, sources)]
    assert main([*command, "--records", str(tmp_path / "records")]) == 0
    report = capsys.readouterr().out
    assert "24 runs: 120 steps" in report
    assert "Family A" in report and "Family B" in report
    # All learned: uniform bytes would be 8 bits.
    for path in (tmp_path / "records").glob("*.json"):
        record = read_record(path)
        assert isinstance(record, ScratchRecord) and record.test.bits_per_byte < 5.5
