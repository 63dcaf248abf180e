"""Measured rows: reading the CSV, and refusing rows that no chip could have produced."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from afd.plan.errors import PlanError, RowError
from afd.plan.hardware import Hardware
from afd.plan.model_spec import ModelSpec, load_model

COLUMNS = (
    "model", "context_tokens", "system", "attention_nodes", "ffn_nodes", "expert_parallel",
    "requests_per_attention_gpu", "tokens_per_s_per_gpu", "step_ms", "source",
)  # fmt: skip
CONSISTENT_WITHIN = 0.05


@dataclass(frozen=True)
class Row:
    """One measurement; ``step_ms`` is derived from the throughput where the file leaves it out."""

    line: int
    model: str
    context_tokens: float
    system: str
    attention_nodes: int
    ffn_nodes: int
    expert_parallel: int
    batch: int
    tokens_per_s_per_gpu: float
    stated_step_ms: float | None
    source: str

    @property
    def hosting_share(self) -> float:
        """Share of the run's GPUs that host requests."""
        if self.system == "colocated":
            return 1.0
        return self.attention_nodes / (self.attention_nodes + self.ffn_nodes)

    @property
    def implied_step_ms(self) -> float:
        return self.batch * self.hosting_share / self.tokens_per_s_per_gpu * 1e3

    @property
    def workload(self) -> tuple[str, float]:
        return (self.model, self.context_tokens)


def read_rows(path: Path) -> list[Row]:
    """All rows of a CSV with the shared file's columns; a bad cell names its line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{path}: cannot read: {error.strerror}") from error
    reader = csv.DictReader(text.splitlines())
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or [])]
    if missing:
        raise RowError(str(path), 1, missing[0], "column is missing from the header")
    rows = []
    for cells in reader:
        if None in cells or None in cells.values():
            raise RowError(str(path), reader.line_num, "source", "wrong number of cells")
        rows.append(_parse(str(path), reader.line_num, cells))
    if not rows:
        raise PlanError(f"{path}: no rows")
    return rows


def _parse(path: str, line: int, cells: dict[str, str]) -> Row:
    def number(column: str, at_least: float) -> float:
        try:
            value = float(cells[column])
        except ValueError:
            raise RowError(path, line, column, f"{cells[column]!r} is not a number") from None
        if not at_least <= value < float("inf"):
            raise RowError(path, line, column, f"{cells[column]!r} must be at least {at_least:g}")
        return value

    def integer(column: str, at_least: int) -> int:
        value = number(column, at_least)
        if value != int(value):
            raise RowError(path, line, column, f"{cells[column]!r} is not a whole number")
        return int(value)

    system = cells["system"].strip()
    if system not in ("afd", "colocated"):
        raise RowError(path, line, "system", f"{system!r} is neither 'afd' nor 'colocated'")
    try:
        load_model(cells["model"].strip())
    except PlanError as error:
        raise RowError(path, line, "model", str(error)) from error
    nodes = 1 if system == "afd" else 0
    return Row(
        line=line,
        model=cells["model"].strip(),
        context_tokens=number("context_tokens", 1),
        system=system,
        attention_nodes=integer("attention_nodes", nodes),
        ffn_nodes=integer("ffn_nodes", nodes),
        expert_parallel=integer("expert_parallel", 1),
        batch=integer("requests_per_attention_gpu", 1),
        tokens_per_s_per_gpu=number("tokens_per_s_per_gpu", 1e-9),
        stated_step_ms=number("step_ms", 1e-9) if cells["step_ms"].strip() else None,
        source=cells["source"],
    )


def impossible_because(
    row: Row, model: ModelSpec, hardware: Hardware, kv_bytes_per_element: float
) -> str | None:
    """Why the row cannot be true, or None: bandwidth, memory, its own arithmetic."""
    kv = row.batch * model.kv_bytes_per_request(row.context_tokens, kv_bytes_per_element)
    step_ms = min(row.implied_step_ms, row.stated_step_ms or row.implied_step_ms)
    weights = model.dense_bytes
    read = model.dense_bytes - model.vocabulary * model.hidden * 2 * (not model.tied_embeddings)
    if row.system == "colocated":
        weights += model.routed_bytes / row.expert_parallel
        tokens = row.batch * row.expert_parallel
        touched = 1 - (1 - model.experts_per_token / model.experts) ** tokens
        read += model.routed_bytes / row.expert_parallel * touched
    peak = hardware.memory_bytes_per_s
    for name, moved in (("KV", kv), ("weight", read), ("KV and weight", kv + read)):
        rate = moved / (step_ms * 1e-3)
        if rate > peak:
            return (
                f"{name} bytes over the step time are {rate / 1e12:.2f} TB/s, "
                f"above the chip's {peak / 1e12:.2f} TB/s"
            )
    if kv + weights > hardware.memory_bytes:
        return (
            f"batch {row.batch} needs {(kv + weights) / 1e9:.1f} GB, "
            f"above the chip's {hardware.memory_bytes / 1e9:.1f} GB"
        )
    if row.stated_step_ms is not None:
        ratio = row.stated_step_ms / row.implied_step_ms
        if abs(ratio - 1) > CONSISTENT_WITHIN:
            return (
                f"step_ms {row.stated_step_ms:g} contradicts the throughput, which implies "
                f"{row.implied_step_ms:.3f} ms"
            )
    return None
