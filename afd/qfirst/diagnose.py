"""What an early query does to a trained checkpoint and why, forward passes only (Q-First, Section 6
and its appendices on the displacement, the tolerance to a query error, and the spectra)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from afd.qfirst.block import Decoder
from afd.qfirst.errors import QFirstError
from afd.qfirst.queries import (
    QueryStatistics,
    changed_queries,
    position_losses,
    query_statistics,
)
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.spectra import Spectrum, overlap, spectra, truncated
from afd.qfirst.verify import StepCheck, check_steps
from afd.qfirst.wiring import Wiring, early_query, wiring
from afd.tools.stages import Stages

# Positions whose cost is told apart, [from, to); position 0 predicts from itself alone.
_EDGES = (1, 2, 6, 76, 181, 431)
_STEP_LENGTHS = (1, 2, 32, 256, 1023)
_HELD_OUT = (1, 2, 3)


@dataclass(frozen=True)
class Cost:
    """A change of the model and its price, bits per byte over the unchanged model's."""

    name: str
    bits_per_byte: float


@dataclass(frozen=True)
class PositionCost:
    """The early query's cost over the loss itself, both in positions [first, last)."""

    first: int
    last: int
    share: float


@dataclass(frozen=True)
class Diagnosis:
    """Everything measured.

    ``overlaps``: (of, inside, share, chance) averaged over layers; ``steps``: the decode step
    against fused attention by what was stored and read, see ``_steps``.
    """

    baseline: float
    queries: QueryStatistics
    costs: tuple[Cost, ...]
    positions: tuple[PositionCost, ...]
    spectra: tuple[Spectrum, ...]
    overlaps: tuple[tuple[str, str, float, float], ...]
    steps: dict[str, list[StepCheck]]

    def cost(self, name: str) -> float:
        """The price of one change."""
        return next(c.bits_per_byte for c in self.costs if c.name == name)


MEAN = "query replaced by its layer mean"
EARLY = "query read half a layer early, every layer but 0"
EARLY_HELD = "query read half a layer early, layers 0 to 3 held out"
AS_LOADED = "as loaded"
BF16 = "bfloat16"
BF16_WIDE = "bfloat16, float32 vectors"
LATE_KEY = "bfloat16, key read late"
LATE_KEY_WIDE = "bfloat16, key read late, float32 vectors"
RANDOM = "random error of the early query's size"


def diagnose(decoder: Decoder, data: Windows, rank: int, seed: int, stages: Stages) -> Diagnosis:
    """Runs all diagnostics on ``data``; ``rank`` is what projections are truncated to.

    Raises QFirstError for a decoder that is rewired already.
    """
    if decoder.wiring != Wiring():
        raise QFirstError(
            "the checkpoint is converted already; diagnose the one that it was converted from"
        )
    early = early_query(decoder.config.layers, 1)
    with stages.stage("Queries, their spread and displacement"):
        statistics = query_statistics(decoder, early, data.ids)
    losses: dict[str, torch.Tensor] = {}
    for name, (model, change) in _changes(decoder, statistics, early, rank, seed).items():
        with stages.stage(name or "Unchanged model", len(data)) as advance, change():
            losses[name] = _losses(model, data, advance)
    base = losses.pop("")
    byte_count = int(data.sizes.sum())

    def bits(nats: torch.Tensor) -> float:
        return float(nats.sum()) / math.log(2) / byte_count

    with stages.stage("Spectra, and the decode step against fused attention"):
        return Diagnosis(
            baseline=bits(base),
            queries=statistics,
            costs=tuple(Cost(name, bits(nats - base)) for name, nats in losses.items()),
            positions=_positions(base, losses[EARLY]),
            spectra=tuple(spectra(decoder)),
            overlaps=_overlaps(decoder, rank),
            steps=_steps(decoder, data.ids[0]),
        )


Changed = tuple[Decoder, Callable[[], AbstractContextManager[None]]]


def _changes(
    decoder: Decoder, statistics: QueryStatistics, early: Wiring, rank: int, seed: int
) -> dict[str, Changed]:
    """Name → the model to run and what holds while it runs; '' is the unchanged model."""
    layers, half = decoder.config.layers, decoder.config.hidden // 2

    def means(layer: int, q: torch.Tensor) -> torch.Tensor:
        return statistics.means[layer].to(q.dtype).expand_as(q)

    def erring() -> AbstractContextManager[None]:
        return changed_queries(decoder, RandomError(statistics.moves, seed))

    made: dict[str, Changed] = {
        "": (decoder, nullcontext),
        MEAN: (decoder, lambda: changed_queries(decoder, means)),
        EARLY: (decoder.rewired(early), nullcontext),
    }
    if layers > len(_HELD_OUT) + 1:
        made[EARLY_HELD] = (decoder.rewired(early_query(layers, 1, _HELD_OUT)), nullcontext)
    made[RANDOM] = (decoder, erring)
    for projections, kept in (
        (("q_proj", "k_proj"), rank), (("v_proj",), rank),
        (("q_proj",), half), (("q_proj", "k_proj"), half),
    ):  # fmt: skip
        short = " and ".join(f"W_{p[0]}" for p in projections)
        name = f"{short} cut to rank {kept}"
        made[name] = (truncated(decoder, projections, kept), nullcontext)
    return made


class RandomError:
    """Moves every query by its own displacement's length in a random direction."""

    def __init__(self, moves: torch.Tensor, seed: int) -> None:
        self._moves = moves
        self._generator = torch.Generator().manual_seed(seed)
        self._window = -1

    def __call__(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        # Layers of one window come in ascending order.
        self._window += layer == 0
        direction = torch.randn(q.shape, generator=self._generator)
        length = self._moves[layer, self._window][None, :, None]
        return q + (direction / direction.norm(dim=-1, keepdim=True) * length).to(q.dtype)


def _losses(decoder: Decoder, data: Windows, advance: Callable[[], None]) -> torch.Tensor:
    rows = []
    for window in data.ids:
        rows.append(position_losses(decoder, window))
        advance()
    return torch.stack(rows)


def _positions(base: torch.Tensor, early: torch.Tensor) -> tuple[PositionCost, ...]:
    # Column t is the loss at position t, whose query sees t + 1 positions.
    edges = [edge for edge in _EDGES if edge < base.shape[1]] + [base.shape[1]]
    return tuple(
        PositionCost(
            first, last, float((early - base)[:, first:last].sum() / base[:, first:last].sum())
        )
        for first, last in zip(edges, edges[1:], strict=False)
    )


def _overlaps(decoder: Decoder, rank: int) -> tuple[tuple[str, str, float, float], ...]:
    made = []
    for of, inside in (("k_proj", "q_proj"), ("v_proj", "q_proj"), ("v_proj", "k_proj")):
        pairs = [overlap(decoder, n, of, inside, rank) for n in range(decoder.config.layers)]
        shares, chances = zip(*pairs, strict=True)
        made.append((of, inside, sum(shares) / len(shares), sum(chances) / len(chances)))
    return tuple(made)


def _steps(decoder: Decoder, ids: torch.Tensor) -> dict[str, list[StepCheck]]:
    lengths = [n for n in _STEP_LENGTHS if n < len(ids)]
    narrow = copy.deepcopy(decoder).to(torch.bfloat16)
    late_key = narrow.rewired(wiring("early_q"))
    return {
        AS_LOADED: check_steps(decoder, ids, lengths),
        BF16: check_steps(narrow, ids, lengths),
        BF16_WIDE: check_steps(narrow, ids, lengths, wide=True),
        LATE_KEY: check_steps(late_key, ids, lengths),
        LATE_KEY_WIDE: check_steps(late_key, ids, lengths, wide=True),
    }
