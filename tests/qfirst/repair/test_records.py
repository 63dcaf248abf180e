"""Reports come from records; one that is missing or wrong is an error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from afd.qfirst.cli import main
from afd.qfirst.errors import QFirstError
from afd.qfirst.repair.paired import Paired, band_95, pooled_spread
from afd.qfirst.repair.protocols import ProtocolError, read_protocol
from afd.qfirst.repair.records import RecordError, read_record, write_record
from afd.qfirst.repair.score import Score, paired_error
from tests.qfirst.repair.examples import conversion_record, scratch_record

PROTOCOLS = sorted((Path(__file__).parents[3] / "protocols").glob("*.json"))


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    for record in (conversion_record(), scratch_record("swapped", 0)):
        write_record(tmp_path / "r.json", record)
        assert read_record(tmp_path / "r.json") == record
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_what_a_record_says_follows_from_its_scores() -> None:
    record = conversion_record()
    assert record.displacement == pytest.approx(0.15)
    assert record.difference == pytest.approx(0.03)
    assert record.share_removed == pytest.approx(0.8)
    assert record.share_trained == pytest.approx(0.072)


def test_a_missing_or_malformed_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="r.json is missing; run it first"):
        read_record(tmp_path / "r.json")
    (tmp_path / "r.json").write_text('{"type": "conversion"}')
    with pytest.raises(RecordError, match="r.json is not a run record.*missing required field"):
        read_record(tmp_path / "r.json")
    values = json.loads(msgspec.json.encode(conversion_record()))
    values["result"] = 1
    (tmp_path / "r.json").write_text(json.dumps(values))
    with pytest.raises(RecordError, match="unknown field"):
        read_record(tmp_path / "r.json")


def test_the_report_of_a_protocol_needs_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = tmp_path / "protocol.json"
    protocol.write_text(json.dumps({
        "type": "conversion", "question": "?", "prior": "some", "written": "2026-11-30",
        "runs": ["a", "b"], "main": ["a"], "removed": 0.85,
    }))  # fmt: skip
    command = ["report", "--protocol", str(protocol), "--records", str(tmp_path)]
    write_record(tmp_path / "a.json", conversion_record())
    assert main(command) == 2
    assert "b.json is missing" in capsys.readouterr().err
    write_record(tmp_path / "b.json", scratch_record("swapped", 0))
    assert main(command) == 2
    assert "not of a conversion" in capsys.readouterr().err
    write_record(tmp_path / "b.json", conversion_record())
    assert main(command) == 2
    assert "a.json and b.json" in capsys.readouterr().err
    write_record(tmp_path / "b.json", conversion_record(converted=1.0))
    assert main([*command, "--out", str(tmp_path / "report.md")]) == 0
    report = (tmp_path / "report.md").read_text()
    assert "| a | 1 | none | W_q | 7.2% |" in report
    assert "at least 85% of the displacement removed: not met (a 80.0%)" in report


def test_single_conversions_are_rows_named_after_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report"]
    for name, bits in (("one", 0.98), ("two", 1.0)):
        write_record(tmp_path / name / "record.json", conversion_record(converted=bits))
        command += ["--record", str(tmp_path / name / "record.json")]
    assert main(command) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| one", "| two"]
    assert [row.split(" | ")[-1] for row in rows] == ["80% |", "67% |"]
    assert main([*command, "--record", str(tmp_path / "record.json")]) == 2
    assert "is missing; run it first" in capsys.readouterr().err


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda p: p.name)
def test_the_shipped_protocols_are_protocols(path: Path) -> None:
    assert read_protocol(path).prior


def test_a_protocol_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_protocol(tmp_path / "p.json")
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ProtocolError, match="p.json is not a protocol"):
        read_protocol(tmp_path / "p.json")


def test_the_band_is_the_papers() -> None:
    """A pooled standard deviation of 0.0047 gives 0.0117 on a mean of three seeds."""
    assert band_95(0.0047, 3) == pytest.approx(0.0117, abs=5e-5)
    one = Paired("a", "c", (0.01, 0.02, 0.03))
    other = Paired("b", "c", (-0.03, 0.0, 0.03))
    assert one.spread == pytest.approx(0.01) and other.mean == pytest.approx(0)
    assert pooled_spread([one, other]) == pytest.approx(math.sqrt((0.01**2 + 0.03**2) / 2))
    with pytest.raises(QFirstError, match="needs 2 to 10 seeds, not 1"):
        band_95(0.01, 1)


def test_the_error_of_a_difference_counts_what_windows_share() -> None:
    """Windows of very different difficulty, each worse by the same: no error of the difference."""
    easy = Score((100.0, 900.0, 400.0), (500, 500, 500))
    worse = Score((110.0, 910.0, 410.0), (500, 500, 500))
    assert paired_error(worse, easy) == pytest.approx(0, abs=1e-12)
    mixed = Score((110.0, 890.0, 410.0), (500, 500, 500))
    per_window = [d / math.log(2) / 500 for d in (10, -10, 10)]
    mean = sum(per_window) / 3
    spread = math.sqrt(sum((x - mean) ** 2 for x in per_window) / 2)
    assert paired_error(mixed, easy) == pytest.approx(spread / math.sqrt(3))
