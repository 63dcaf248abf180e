"""Reports of a protocol's runs, or of single conversions, from their records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from afd.qfirst.repair.protocols import (
    ConversionProtocol,
    Protocol,
    ScratchProtocol,
    record_name,
)
from afd.qfirst.repair.records import (
    ConversionRecord,
    RecordError,
    ScratchRecord,
    read_record,
)
from afd.qfirst.repair.scratch_report import scratch_report
from afd.qfirst.repair.tables import conversion_table


def protocol_report(protocol: Protocol, folder: Path) -> str:
    """Markdown; raises RecordError if any run of the protocol has no record in ``folder``."""
    if isinstance(protocol, ScratchProtocol):
        return scratch_report(protocol, _scratch_runs(protocol, folder))
    return _conversions(protocol, folder)


def runs_report(paths: Sequence[Path]) -> str:
    """The table of conversions whose records are given; a row is named after the folder."""
    return conversion_table([(p.resolve().parent.name, _conversion(p)) for p in paths])


def _scratch_runs(protocol: ScratchProtocol, folder: Path) -> dict[tuple[str, int], ScratchRecord]:
    runs = {}
    for arm in protocol.arms:
        for seed in protocol.seeds:
            path = folder / f"{record_name(arm, seed)}.json"
            record = read_record(path)
            if not isinstance(record, ScratchRecord):
                raise RecordError(f"{path} is a conversion's record, not one of training")
            runs[arm, seed] = record
    return runs


def _conversion(path: Path) -> ConversionRecord:
    record = read_record(path)
    if not isinstance(record, ConversionRecord):
        raise RecordError(f"{path} is a record of training from scratch, not of a conversion")
    return record


def _conversions(protocol: ConversionProtocol, folder: Path) -> str:
    rows = [(name, _conversion(folder / f"{name}.json")) for name in protocol.runs]
    for (name, record), (other, twin) in combinations(rows, 2):
        if record == twin:
            raise RecordError(f"{name}.json and {other}.json in {folder} are the same run's record")
    shares = {name: record.share_removed for name, record in rows if name in protocol.main}
    met = all(share >= protocol.removed for share in shares.values())
    verdict = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return "\n\n".join([
        f"Prior, written {protocol.written}: {protocol.prior}",
        conversion_table(rows),
        f"Threshold, at least {protocol.removed:.0%} of the displacement removed: "
        f"{'met' if met else 'not met'} ({verdict}).",
    ])  # fmt: skip
