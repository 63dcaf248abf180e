"""Kernel times from the user's own measurements: a small CSV or TOML; docs/planner.md has the
format."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from afd.plan.data import read_toml
from afd.plan.errors import PlanError, RowError
from afd.plan.times.experts import ExpertTerm
from afd.plan.times.kernels import KernelTimes, Term

TERMS = ("attention", "dense", "experts", "head", "dispatch", "combine")
FIELDS = ("term", "batch", "context_tokens", "expert_parallel", "us")


@dataclass(frozen=True)
class Point:
    """One measured time; ``load`` is requests × context for attention, else the batch.

    ``ranks`` is how many ranks shared the experts; 0 says that the file does not tell.
    """

    term: str
    load: float
    us: float
    ranks: int = 0


@dataclass(frozen=True)
class Measurements:
    """Points sorted by load, and the file they came from."""

    points: tuple[Point, ...]
    path: str

    def at(self, term: str, load: float, ranks: int = 0) -> Term | None:
        """Linear between points, never negative.

        Above the last one by the last segment's slope, or in proportion where there is one point
        only; then, and for loads under half the first one, the source says so. Points of another
        number of expert ranks do not count; those without a number do.
        """
        of_term = [p for p in self.points if p.term == term]
        line = [p for p in of_term if p.ranks == ranks] or [p for p in of_term if p.ranks == 0]
        if not line:
            return None
        first, last = line[0], line[-1]
        if len(line) == 1:
            us = last.us * max(1.0, load / last.load)
        else:
            upper = next((i for i, p in enumerate(line) if p.load >= load), len(line) - 1)
            low, high = line[max(0, upper - 1)], line[max(1, upper)]
            us = low.us + (high.us - low.us) / (high.load - low.load) * (load - low.load)
            us = max(us, last.us) if load > last.load else max(us, 0.0)
        far = "" if first.load / 2 <= load <= last.load else ", extrapolated"
        return Term(us, f"measured ({self.path}{far})", complete=True)


def write_measurements(path: Path, rows: Iterable[tuple[str, float, float, int, float]]) -> None:
    """Writes (term, batch, context tokens or 0, expert ranks or 0, µs) as the CSV read here."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(FIELDS)
        for term, batch, context, ranks, us in rows:
            out.writerow([term, f"{batch:g}", f"{context:g}" if context else "",
                          ranks or "", f"{us:.3f}"])  # fmt: skip


def read_measurements(path: Path) -> Measurements:
    """Reads a TOML or CSV of points; errors name the line (CSV) or entry (TOML).

    Several times of one point count as their median.
    """
    times: dict[tuple[str, int, float], list[float]] = {}
    for line, row in _cells(path):
        point = _point(str(path), line, row)
        times.setdefault((point.term, point.ranks, point.load), []).append(point.us)
    if not times:
        raise PlanError(f"{path}: holds no measured points; fields are {', '.join(FIELDS)}")
    points = tuple(
        Point(term, load, statistics.median(us), ranks)
        for (term, ranks, load), us in sorted(times.items())
    )
    return Measurements(points, path.name)


def _cells(path: Path) -> list[tuple[int, dict[str, str]]]:
    """(line or entry, its fields) of every point; blank lines and lines with # are skipped."""
    if path.suffix == ".toml":
        entries = read_toml(path).get("point", [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise PlanError(f"{path}: points are written as [[point]] tables")
        return [(i + 1, {k: str(v) for k, v in entry.items()}) for i, entry in enumerate(entries)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read as text: {error}") from error
    lines = [
        (i, line)
        for i, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        return []
    header = [name.strip() for name in next(csv.reader([lines[0][1]]))]
    for name in ("term", "batch", "us"):
        if name not in header:
            raise RowError(str(path), lines[0][0], name, "column is missing from the header")
    out = []
    for i, line in lines[1:]:
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        out.append((i, dict(zip(header, cells, strict=False))))
    return out


def _point(path: str, line: int, row: dict[str, str]) -> Point:
    term = row.get("term", "")
    if term not in TERMS:
        raise RowError(path, line, "term", f"{term!r} is none of {', '.join(TERMS)}")
    needed = ("batch", "us") + (("context_tokens",) if term == "attention" else ())
    values = {column: _above_zero(path, line, column, row.get(column)) for column in needed}
    ranks = 0.0
    if term == "experts" and row.get("expert_parallel"):
        ranks = _above_zero(path, line, "expert_parallel", row["expert_parallel"])
    load = values["batch"] * values.get("context_tokens", 1.0)
    return Point(term, load, values["us"], int(ranks))


def _above_zero(path: str, line: int, column: str, cell: str | None) -> float:
    try:
        value = float(cell or "")
    except ValueError:
        raise RowError(path, line, column, f"{cell!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise RowError(path, line, column, f"{cell!r} must be above zero")
    return value


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
        measured = self.points.at("experts", tokens_per_rank, ranks)
        if measured is None:
            return self.fallback.experts(tokens_per_rank, ranks, busiest, link_bytes)
        return ExpertTerm(0.0, measured.us, 0.0, measured.source, complete=True)

    def head(self, batch: float) -> Term:
        return self.points.at("head", batch) or self.fallback.head(batch)

    def transfer(self, tokens: float, out_bytes: float, back_bytes: float) -> tuple[Term, Term]:
        out, back = self.fallback.transfer(tokens, out_bytes, back_bytes)
        dispatch, combine = self.points.at("dispatch", tokens), self.points.at("combine", tokens)
        return dispatch or out, combine or back
