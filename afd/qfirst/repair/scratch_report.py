"""The tables of a campaign, and in words what it can and cannot resolve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from afd.qfirst.repair.paired import Paired, band_95, paired, pooled_spread
from afd.qfirst.repair.protocols import ScratchProtocol
from afd.qfirst.repair.records import RecordError, ScratchRecord
from afd.qfirst.repair.tables import markdown
from afd.qfirst.wiring import FAMILY_A, FAMILY_B

_CONTROLS = {"A": ("swapped", FAMILY_A), "B": ("standard", FAMILY_B)}
Runs = Mapping[tuple[str, int], ScratchRecord]


def scratch_report(protocol: ScratchProtocol, runs: Runs) -> str:
    """Markdown; raises RecordError for records that are not of one campaign."""
    _same_campaign(protocol, runs)
    test = {key: run.test.bits_per_byte for key, run in runs.items()}
    validation = {key: run.validation.bits_per_byte for key, run in runs.items()}
    first = next(iter(runs.values()))
    tokens = protocol.steps * protocol.batch * protocol.window_tokens
    parts = [
        f"{len(runs)} runs: {protocol.steps} steps, {tokens:,} bytes each, "
        f"{first.parameters:,} weights ({first.trained_parameters:,} trained), "
        f"{first.forward_operations:,} forward operations a window in every arm; "
        f"{first.software.dtype}, attention by {first.software.attention}.",
        f"Prior, written {protocol.written}: {protocol.prior}",
    ]
    families = {}
    for family, (control, members) in _CONTROLS.items():
        arms = [arm for arm in protocol.arms if arm in members]
        if control in arms and len(arms) > 1:
            families[family] = paired(test, arms, control, protocol.seeds)
            others = paired(validation, arms, control, protocol.seeds)
            parts.append(_family(family, control, protocol, test, families[family], others))
    entries = [e for group in families.values() for e in group]
    if entries and len(protocol.seeds) > 1:
        parts.append(_resolution(protocol, entries))
    return "\n\n".join(parts)


def _family(
    family: str,
    control: str,
    protocol: ScratchProtocol,
    test: Mapping[tuple[str, int], float],
    entries: Sequence[Paired],
    validation: Sequence[Paired],
) -> str:
    heads = ["arm", *(f"seed {s}" for s in protocol.seeds), "mean", "mean on validation"]
    rows = [[f"{control} (control, bits per byte)"]]
    values = [test[control, s] for s in protocol.seeds]
    rows[0] += [f"{v:.4f}" for v in values] + [f"{sum(values) / len(values):.4f}", ""]
    for entry, other in zip(entries, validation, strict=True):
        cells = [f"{d:+.4f}" for d in entry.differences]
        rows.append([entry.arm, *cells, f"{entry.mean:+.4f}", f"{other.mean:+.4f}"])
    return f"Family {family}, test text, each arm minus {control}:\n\n{markdown(heads, rows)}"


def _resolution(protocol: ScratchProtocol, entries: Sequence[Paired]) -> str:
    spread = pooled_spread(entries)
    band = band_95(spread, len(protocol.seeds))
    resolved = [e for e in entries if abs(e.mean) > band]
    lost = [e for e in entries if abs(e.mean) <= band]
    refuted = [e.arm for e in entries if min(e.differences) > protocol.refutation]
    lines = [
        f"Seeds scatter with a pooled standard deviation of {spread:.4f}: a mean of "
        f"{len(protocol.seeds)} has a 95 % band of {band:.4f}.",
        "Resolved (outside the band): " + _listed(resolved, band) + ".",
        "Not resolved (inside the band; no statement about them): " + _listed(lost, band) + ".",
        f"Above the refutation threshold of {protocol.refutation:+.3f} at every seed: "
        + (", ".join(refuted) or "none") + ".",
    ]  # fmt: skip
    if band > protocol.floor:
        lines.append(
            f"The band is wider than the floor of {protocol.floor:.3f}: this campaign cannot say "
            "that a read point is free, only that it costs less than the band."
        )
    return "\n".join(f"- {line}" for line in lines)


def _listed(entries: Sequence[Paired], band: float) -> str:
    items = [f"{e.arm} {e.mean:+.4f} ({abs(e.mean) / band:.1f} bands)" for e in entries]
    return ", ".join(items) or "none"


def _same_campaign(protocol: ScratchProtocol, runs: Runs) -> None:
    first = next(iter(runs.values()))
    for (arm, seed), run in runs.items():
        name = f"the record of {arm}, seed {seed}"
        if (run.arm, run.training.seed) != (arm, seed):
            raise RecordError(f"{name} is of {run.arm}, seed {run.training.seed}; run it again")
        settings = run.training.steps, run.training.batch, run.training.learning_rate
        if settings != (protocol.steps, protocol.batch, protocol.learning_rate):
            raise RecordError(f"{name} was run with other settings than its protocol; run it again")
        same = ("text", "software", "parameters", "forward_operations", "shape")
        wrong = [field for field in same if getattr(run, field) != getattr(first, field)]
        if wrong:
            raise RecordError(f"{name} has another {wrong[0]} than the first; run both alike")
