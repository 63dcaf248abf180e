"""Kernel times from the user's own measurements: a small TOML or CSV.

CSV columns: ``term,batch,context_tokens,us``; TOML: an array ``[[point]]`` of the same fields.
Terms: ``attention``, ``dense`` (µs per layer and lane at ``batch`` requests), ``head`` (µs per
step) and ``experts`` (µs per layer and lane on one FFN GPU at ``batch`` tokens per rank, all
included).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from afd.plan.data import read_toml
from afd.plan.errors import PlanError, RowError
from afd.plan.kernels import ExpertTerm, KernelTimes, Term

TERMS = ("attention", "dense", "experts", "head")
FIELDS = ("term", "batch", "context_tokens", "us")


@dataclass(frozen=True)
class Point:
    """One measured time; ``load`` is requests × context for attention, else the batch."""

    term: str
    load: float
    us: float


@dataclass(frozen=True)
class Measurements:
    """Points sorted by load, and the file they came from."""

    points: tuple[Point, ...]
    path: str

    def at(self, term: str, load: float) -> Term | None:
        """Linear between points; beyond them by the nearest segment's slope, never below zero."""
        line = [p for p in self.points if p.term == term]
        if not line:
            return None
        if len(line) == 1:
            return Term(line[0].us, f"measured ({self.path}, one point)")
        upper = next((i for i, p in enumerate(line) if p.load >= load), len(line) - 1)
        low, high = line[max(0, upper - 1)], line[max(1, upper)]
        slope = (high.us - low.us) / (high.load - low.load)
        return Term(max(0.0, low.us + slope * (load - low.load)), f"measured ({self.path})")


def read_measurements(path: Path) -> Measurements:
    """Reads a TOML or CSV of points; errors name the line (CSV) or entry (TOML)."""
    if path.suffix == ".toml":
        raw = read_toml(path).get("point", [])
        cells = [(i + 1, {k: str(v) for k, v in entry.items()}) for i, entry in enumerate(raw)]
    else:
        try:
            reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        except OSError as error:
            raise PlanError(f"{path}: cannot read: {error.strerror}") from error
        cells = [(reader.line_num, row) for row in reader]
    by_load: dict[tuple[str, float], float] = {}
    for line, row in cells:
        point = _point(str(path), line, row)
        by_load[(point.term, point.load)] = point.us
    if not by_load:
        raise PlanError(f"{path}: holds no measured points; fields are {', '.join(FIELDS)}")
    points = tuple(Point(t, load, us) for (t, load), us in sorted(by_load.items()))
    return Measurements(points, path.name)


def _point(path: str, line: int, row: dict[str, str]) -> Point:
    term = row.get("term", "")
    if term not in TERMS:
        raise RowError(path, line, "term", f"{term!r} is none of {', '.join(TERMS)}")
    values = {}
    for column in ("batch", "us") + (("context_tokens",) if term == "attention" else ()):
        try:
            values[column] = float(row.get(column) or "")
        except ValueError:
            raise RowError(path, line, column, f"{row.get(column)!r} is not a number") from None
        if values[column] <= 0:
            raise RowError(path, line, column, "must be above zero")
    return Point(term, values["batch"] * values.get("context_tokens", 1.0), values["us"])


@dataclass(frozen=True)
class Measured:
    """``KernelTimes`` that asks the measurements first and the fallback for the rest."""

    fallback: KernelTimes
    points: Measurements

    def attention(self, batch: float, context_tokens: float, processors: int) -> Term:
        measured = self.points.at("attention", batch * context_tokens)
        return measured or self.fallback.attention(batch, context_tokens, processors)

    def dense(self, batch: float) -> Term:
        return self.points.at("dense", batch) or self.fallback.dense(batch)

    def experts(
        self, tokens_per_rank: float, ranks: int, busiest: float, link_bytes: float
    ) -> ExpertTerm:
        measured = self.points.at("experts", tokens_per_rank)
        if measured is None:
            return self.fallback.experts(tokens_per_rank, ranks, busiest, link_bytes)
        return ExpertTerm(0.0, measured.us, 0.0, measured.source)

    def head(self, batch: float) -> Term:
        return self.points.at("head", batch) or self.fallback.head(batch)
