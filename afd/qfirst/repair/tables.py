"""Markdown tables, made from run records and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from afd.qfirst.repair.records import ConversionRecord

_CONVERSION_HEAD = (
    "run", "half-layers", "held out", "trained", "share", "start", "steps", "tokens", "seed",
    "stock", "untrained", "after start", "reference", "converted", "d", "removed",
)  # fmt: skip


def conversion_table(records: Sequence[tuple[str, ConversionRecord]]) -> str:
    """One row a run, bits per byte on the test text; differences are to the stock checkpoint."""
    rows = []
    for name, r in records:
        t = r.training
        held = ", ".join(str(n) for n in r.held_out) or "none"
        rows.append([
            name, str(r.half_layers), held, r.train.replace("wq", "W_q").replace("wo", "W_o"),
            f"{r.share_trained:.1%}", r.start, str(t.steps),
            f"{t.steps * t.batch * r.text.window_tokens:,}", str(t.seed),
            f"{r.stock.bits_per_byte:.4f}", f"{r.displacement:+.4f}",
            f"{r.started_displacement:+.4f}", f"{r.reference.bits_per_byte:.4f}",
            f"{r.converted.bits_per_byte:.4f}",
            f"{r.difference:+.4f} ± {r.difference_error:.4f}", _share(r),
        ])  # fmt: skip
    return markdown(_CONVERSION_HEAD, rows)


def _share(record: ConversionRecord) -> str:
    # Of a displacement that is not positive there is no share.
    return f"{record.share_removed:.0%}" if record.displacement > 0 else "-"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with one line of heads."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
