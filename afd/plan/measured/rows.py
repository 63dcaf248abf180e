"""Measured rows: reading the CSV, and refusing rows that no chip could have produced."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from afd.plan.errors import PlanError, RowError
from afd.plan.hardware import Hardware
from afd.plan.model_spec import ModelSpec, load_model

COLUMNS = ("model", "context_tokens", "system", "requests_per_attention_gpu")
OPTIONAL = (
    "attention_nodes", "ffn_nodes", "expert_parallel", "lanes", "tokens_per_s_per_gpu", "step_ms",
    "source",
)  # fmt: skip
CONSISTENT_WITHIN = 0.05


@dataclass(frozen=True)
class Row:
    """One measurement; of throughput and step, the one the file leaves out is derived.

    ``expert_parallel`` 0 on an AFD row means all its FFN GPUs.
    """

    line: int
    model: str
    context_tokens: float
    system: str
    attention_nodes: int
    ffn_nodes: int
    expert_parallel: int
    lanes: int
    batch: int
    tokens_per_s_per_gpu: float
    stated_step_ms: float | None
    source: str

    @property
    def hosting_share(self) -> float:
        """Share of the run's GPUs that host requests."""
        return hosting_share(self.system, self.attention_nodes, self.ffn_nodes)

    @property
    def implied_step_ms(self) -> float:
        return self.batch * self.hosting_share / self.tokens_per_s_per_gpu * 1e3

    @property
    def workload(self) -> tuple[str, float]:
        return (self.model, self.context_tokens)


def hosting_share(system: str, attention_nodes: int, ffn_nodes: int) -> float:
    """M / (M + N) of a disaggregated run, 1 of a colocated one."""
    return 1.0 if system == "colocated" else attention_nodes / (attention_nodes + ffn_nodes)


def read_rows(path: Path) -> list[Row]:
    """All rows of a CSV with the shared file's columns; a bad cell names its line and column.

    Column order and case do not matter, further columns are ignored, blank lines are skipped.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlanError(f"{path}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: is not UTF-8 text: {error}") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    header: list[str] = []
    rows = []
    for record in reader:
        cells = [cell.strip() for cell in record]
        if not any(cells):
            continue
        if not header:
            header = [cell.lower() for cell in cells]
            _check_header(str(path), reader.line_num, header)
            continue
        extra = len(cells) - len(header)
        if any(cells[len(header) :]):
            why = f"{extra} cells too many; text that holds commas must be quoted"
            raise RowError(str(path), reader.line_num, header[-1], why)
        rows.append(_parse(str(path), reader.line_num, dict(zip(header, cells, strict=False))))
    if not rows:
        raise PlanError(f"{path}: no rows; the columns are {', '.join(COLUMNS + OPTIONAL)}")
    return rows


def _check_header(path: str, line: int, header: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in header]
    if not missing and "tokens_per_s_per_gpu" not in header and "step_ms" not in header:
        missing = ["tokens_per_s_per_gpu"]
    if missing:
        raise RowError(path, line, missing[0], "column is missing from the header")


@dataclass(frozen=True)
class _Cells:
    """One line's cells; every error names the line and the column."""

    path: str
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells.get(column, "")

    def number(self, column: str, at_least: float) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number") from None
        if not at_least <= value < float("inf"):
            raise self.error(column, f"{text!r} must be at least {at_least:g}")
        return value

    def integer(self, column: str, at_least: int) -> int:
        value = self.number(column, at_least)
        if value != int(value):
            raise self.error(column, f"{self.text(column)!r} is not a whole number")
        return int(value)

    def error(self, column: str, why: str) -> RowError:
        return RowError(self.path, self.line, column, why)


def _parse(path: str, line: int, cells: dict[str, str]) -> Row:
    at = _Cells(path, line, cells)
    system = at.text("system").lower()
    if system not in ("afd", "colocated"):
        raise at.error("system", f"{at.text('system')!r} is neither 'afd' nor 'colocated'")
    try:
        load_model(at.text("model"))
    except PlanError as error:
        raise at.error("model", str(error)) from error
    afd = system == "afd"
    attention_nodes = at.integer("attention_nodes", 1) if afd else 0
    ffn_nodes = at.integer("ffn_nodes", 1) if afd else 0
    batch = at.integer("requests_per_attention_gpu", 1)
    step_ms = at.number("step_ms", 1e-9) if at.text("step_ms") else None
    if at.text("tokens_per_s_per_gpu") or step_ms is None:
        rate = at.number("tokens_per_s_per_gpu", 1e-9)
    else:
        rate = batch * hosting_share(system, attention_nodes, ffn_nodes) / step_ms * 1e3
    return Row(
        line=line,
        model=at.text("model"),
        context_tokens=at.number("context_tokens", 1),
        system=system,
        attention_nodes=attention_nodes,
        ffn_nodes=ffn_nodes,
        expert_parallel=_expert_parallel(at, afd),
        lanes=_lanes(at, batch) if afd else 1,
        batch=batch,
        tokens_per_s_per_gpu=rate,
        stated_step_ms=step_ms,
        source=at.text("source"),
    )


def _expert_parallel(at: _Cells, afd: bool) -> int:
    if afd and not at.text("expert_parallel"):
        return 0
    return at.integer("expert_parallel", 0 if afd else 1)


def _lanes(at: _Cells, batch: int) -> int:
    """Two where the file does not say: the published runs' number; one cannot split one request."""
    if not at.text("lanes"):
        return min(2, batch)
    lanes = at.integer("lanes", 1)
    if lanes > min(4, batch):
        raise at.error("lanes", f"{lanes} must be at most 4 and at most the batch")
    return lanes


def impossible_because(
    row: Row, model: ModelSpec, hardware: Hardware, kv_bytes_per_element: float
) -> str | None:
    """Why the row cannot be true, or None: bandwidth, memory, its own arithmetic."""
    kv = row.batch * model.kv_bytes_per_request(row.context_tokens, kv_bytes_per_element)
    step_s = min(row.implied_step_ms, row.stated_step_ms or row.implied_step_ms) * 1e-3
    if row.expert_parallel > model.experts:
        return f"EP{row.expert_parallel} leaves ranks without any of {model.experts} experts"
    weights = model.dense_bytes
    read = model.dense_bytes - model.vocabulary * model.hidden * 2 * (not model.tied_embeddings)
    if row.system == "colocated":
        touched = _touched(model, row.batch * row.expert_parallel)
        weights += model.routed_bytes / row.expert_parallel
        read += model.routed_bytes / row.expert_parallel * touched
    else:
        why = _ffn_impossible(row, model, hardware, step_s)
        if why is not None:
            return why
    for name, moved in (("KV", kv), ("weight", read), ("KV and weight", kv + read)):
        why = _too_fast(name, moved, step_s, hardware)
        if why is not None:
            return why
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


def _touched(model: ModelSpec, tokens: float) -> float:
    """Share of the experts that ``tokens`` tokens reach at all, routed evenly."""
    return float(1 - (1 - model.experts_per_token / model.experts) ** tokens)


def _too_fast(name: str, moved_bytes: float, step_s: float, hardware: Hardware) -> str | None:
    rate, peak = moved_bytes / step_s, hardware.memory_bytes_per_s
    if rate <= peak:
        return None
    return (
        f"{name} bytes over the step time are {rate / 1e12:.2f} TB/s, "
        f"above the chip's {peak / 1e12:.2f} TB/s"
    )


def _ffn_impossible(row: Row, model: ModelSpec, hardware: Hardware, step_s: float) -> str | None:
    """What the FFN side of an AFD row cannot be: more ranks than GPUs, too small, too fast."""
    gpus = row.ffn_nodes * hardware.gpus_per_node
    ranks = row.expert_parallel or gpus
    if ranks > gpus:
        return f"EP{ranks} on {row.ffn_nodes} FFN node(s) of {hardware.gpus_per_node} GPUs"
    shard = model.routed_bytes / ranks
    if shard > hardware.memory_bytes:
        return (
            f"the experts take {shard / 1e9:.1f} GB on each of {ranks} FFN ranks, "
            f"above the chip's {hardware.memory_bytes / 1e9:.1f} GB"
        )
    tokens = row.batch * row.attention_nodes * hardware.gpus_per_node * ranks / gpus
    return _too_fast("expert weight", shard * _touched(model, tokens), step_s, hardware)
