"""A diagnosis as rows: the paper's figures for Qwen3-0.6B beside this checkpoint's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from afd.qfirst.diagnose import (
    AS_LOADED,
    BF16,
    BF16_WIDE,
    EARLY,
    EARLY_HELD,
    LATE_KEY,
    LATE_KEY_WIDE,
    MEAN,
    RANDOM,
    Diagnosis,
)
from afd.qfirst.output import table
from afd.qfirst.queries import QueryLayer
from afd.qfirst.verify import StepCheck

Row = tuple[str, float | None, float]

# The paper's worst relative error of a split step; it gives none in single precision.
_STEP_ERRORS = {BF16: 4.2e-3, BF16_WIDE: 4.2e-3, LATE_KEY: 3.6e-3, LATE_KEY_WIDE: 3.6e-3}


def rows(d: Diagnosis) -> list[Row]:
    """(what, the paper's value for Qwen3-0.6B or None, ours). Costs are bits per byte."""
    moved = [q for q in d.queries.layers if q.displacement > 0]
    every = d.queries.layers
    made: list[Row] = [
        ("bits per byte, unchanged", 0.9022, d.baseline),
        (MEAN, 0.8080, d.cost(MEAN)),
        ("between-layer share of the query's variance", 0.67, d.queries.between_share),
        ("displacement over norm", 0.384, _mean(q.displacement / q.norm for q in moved)),
        ("displacement over spread", 0.642, _mean(q.displacement / q.spread for q in moved)),
        ("common share of the query", 0.57, _mean(q.common_share for q in every)),
        (EARLY, 0.0746, d.cost(EARLY)),
        (RANDOM, None, d.cost(RANDOM)),
        ("random over early", 0.19, d.cost(RANDOM) / d.cost(EARLY)),
    ]
    known = {EARLY, RANDOM, MEAN}
    published = {"W_q and W_k cut to rank 48": 1.92, "W_v cut to rank 48": 4.62,
                 "W_q and W_k cut to rank 512": 0.15}  # fmt: skip
    for cost in d.costs:
        if cost.name not in known:
            # Its depth study holds layers 1 to 3 out; the figure is that study's first row.
            paper = 0.0658 if cost.name == EARLY_HELD else published.get(cost.name)
            made.append((cost.name, paper, cost.bits_per_byte))
    for projection in ("q_proj", "k_proj", "v_proj"):
        here = [s for s in d.spectra if s.projection == projection]
        name = f"W_{projection[0]}"
        made.append((f"stable rank of {name}", None, _mean(s.stable_rank for s in here)))
        made.append((f"directions that hold 99 % of {name}", None,
                     _mean(float(s.directions_99) for s in here)))  # fmt: skip
    for of, inside, share, chance in d.overlaps:
        name = f"W_{of[0]}'s energy in W_{inside[0]}'s strongest inputs, over chance"
        made.append((name, None, share / chance))
    made += _sign_rows(d.steps[AS_LOADED])
    for kind, checks in d.steps.items():
        name = f"sweep and combine against fused, worst layer, {kind}"
        made.append((name, _STEP_ERRORS.get(kind), max(s.error for s in checks)))
    return made


def _sign_rows(checks: list[StepCheck]) -> list[Row]:
    made: list[Row] = []
    for length in sorted({s.cached for s in checks}):
        here = [s for s in checks if s.cached == length]
        share = sum(s.above for s in here) / sum(s.heads for s in here)
        first = length == 1
        made.append((f"heads whose score exceeds the log-sum-exp at cache length {length}",
                     93 / 448 if first else None, share))  # fmt: skip
        made.append((f"by at most, nats, at cache length {length}",
                     9.7 if first else None, max(s.most_nats for s in here)))  # fmt: skip
    return made


def _mean(values: Any) -> float:
    listed = [float(v) for v in values]
    return sum(listed) / len(listed)


def as_text(d: Diagnosis) -> str:
    """The rows, the cost against position, and the layers."""
    main = [[name, "-" if p is None else f"{p:.4g}", f"{v:.4g}"] for name, p, v in rows(d)]
    where = [[f"{p.first} to {p.last - 1}", f"{p.share:.1%}"] for p in d.positions]
    layers = [
        [str(q.layer), f"{q.norm:.4g}", f"{_over(q, q.norm):.3f}", f"{_over(q, q.spread):.3f}",
         f"{q.common_share:.3f}", *(f"{_stable(d, q.layer, p):.3g}" for p in "qkv")]
        for q in d.queries.layers
    ]  # fmt: skip
    header = ["layer", "norm", "moved / norm", "moved / spread", "common", "W_q", "W_k", "W_v"]
    return "\n\n".join(
        [
            table(["measured (costs in bits per byte)", "paper, Qwen3-0.6B", "here"], main),
            table(["positions", "early query's cost over the loss"], where),
            table(header, layers) + "\n(the last three: stable rank)",
        ]
    )


def _over(q: QueryLayer, length: float) -> float:
    return q.displacement / length


def _stable(d: Diagnosis, layer: int, letter: str) -> float:
    return next(s.stable_rank for s in d.spectra if s.layer == layer and s.projection[0] == letter)


def as_json(d: Diagnosis) -> dict[str, Any]:
    """Everything measured."""
    return {
        "rows": [{"name": n, "published": p, "ours": v} for n, p, v in rows(d)],
        "positions": [asdict(p) for p in d.positions],
        "layers": [asdict(q) | {"common_share": q.common_share} for q in d.queries.layers],
        "spectra": [asdict(s) for s in d.spectra],
        "steps": {kind: [asdict(s) for s in checks] for kind, checks in d.steps.items()},
    }
