"""The tables in the docs are what their records give."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.qfirst.repair.protocols import ConversionProtocol, ScratchProtocol, read_protocol
from afd.qfirst.repair.records import ConversionRecord, read_record
from afd.qfirst.repair.reports import protocol_report

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "docs" / "records"


@pytest.mark.parametrize("name", ["conversion", "read_points"])
def test_a_shipped_report_is_made_from_the_shipped_records(name: str) -> None:
    protocol = read_protocol(ROOT / "protocols" / f"{name}.json")
    assert (RECORDS / f"{name}.md").read_text() == protocol_report(protocol, RECORDS / name) + "\n"


def test_the_main_conversions_met_their_threshold() -> None:
    protocol = read_protocol(ROOT / "protocols" / "conversion.json")
    assert isinstance(protocol, ConversionProtocol)
    for name in protocol.main:
        record = read_record(RECORDS / "conversion" / f"{name}.json")
        assert isinstance(record, ConversionRecord)
        assert record.share_removed >= protocol.removed
        assert len(record.converted_losses) == record.training.steps


def test_the_campaign_has_every_arm_at_three_seeds() -> None:
    protocol = read_protocol(ROOT / "protocols" / "read_points.json")
    assert isinstance(protocol, ScratchProtocol)
    assert len(protocol.arms) == 8 and len(protocol.seeds) == 3
    assert len(list((RECORDS / "read_points").glob("*.json"))) == 24
