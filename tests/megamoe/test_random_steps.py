"""Random shapes, ranks, routes and weights, step after step, against the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from afd._megamoe import AttentionSide, BadExpertId, ReturnMode, ScaleFormat, WeightType, Wire
from tests.megamoe.checks import assert_steps_match
from tests.megamoe.fp8_weights import random_weights
from tests.megamoe.weights import F32
from tests.megamoe.world import Shape, Step, open_world, random_step

WIRES = (Wire.FP8, Wire.BF16, Wire.FP32)
TYPES = (WeightType.FP32, WeightType.BF16, WeightType.FP8)
SEEDS = range(12)
# Beside what the draw gives: the smallest world, and the widest choice of experts.
PINNED: dict[int, dict[str, object]] = {
    0: {"attention_ranks": 1, "ffn_ranks": 1, "replicated": 0},
    1: {"attention_ranks": 5, "ffn_ranks": 3, "experts": 40, "top_k": 32},
    2: {"scale_format": ScaleFormat.FP32_PER_128},
}


@dataclass(frozen=True)
class Draw:
    """One run: steps back to back over a shape, and the experts that no token of them visits."""

    shape: Shape
    type: WeightType
    idle: list[int]
    steps: list[Step]

    def counts(self) -> list[int]:
        """Tokens of every lane of every rank and step."""
        return [len(r.ids[0]) for step in self.steps for lanes in step.values() for r in lanes]


def _draw(rng: np.random.Generator, seed: int, wire: Wire) -> Draw:
    shape = Shape.random(rng, wire=wire, **PINNED.get(seed, {}))
    type = TYPES[(seed + wire.value) % 3]
    idle = rng.permutation(shape.experts)[: int(rng.integers(4))].tolist()
    steps = [random_step(rng, shape) for _ in range(4)]
    for routed in (r for step in steps for lanes in step.values() for r in lanes):
        routed.ids[np.isin(routed.ids, idle)] = -1
    return Draw(shape, type, idle, steps)


class Misrouting:
    """An attention rank that now and then tries to send a token to an expert that does not exist,
    hears which, and sends what it should have."""

    def __init__(self, side: AttentionSide, rank: int, experts: int, seed: int) -> None:
        self._side, self._rank, self._experts = side, rank, experts
        self._rng = np.random.default_rng((seed, rank))
        self.combine = side.combine
        self.refused = 0

    def dispatch(
        self, step: int, layer: int, lane: int, x: F32, ids: NDArray[np.int32], weights: F32
    ) -> None:
        """As the extension's."""
        if len(ids) and self._rng.random() < 0.3:
            bad = int(self._rng.choice([-(2**31), -2, self._experts, 2**31 - 1]))
            token, slot = (int(self._rng.integers(n)) for n in ids.shape)
            wrong = ids.copy()
            wrong[token, slot] = bad
            with pytest.raises(BadExpertId) as error:
                self._side.dispatch(step, layer, lane, x, wrong, weights)
            assert str(error.value) == (
                f"rank {self._rank}, MoE layer {layer}, token {token}: "
                f"expert id {bad} is outside [-1, {self._experts})"
            )
            self.refused += 1
        self._side.dispatch(step, layer, lane, x, ids, weights)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_shapes_match_the_reference(seed: int, wire: Wire) -> None:
    """Weights of experts that no token visits are NaN, and so are buffers between their uses."""
    rng = np.random.default_rng((seed, wire.value))
    draw = _draw(rng, seed, wire)
    shape = draw.shape
    weights = random_weights(rng, shape.moe_layers, range(shape.experts), shape.hidden, shape.width,
                             draw.type, draw.idle)  # fmt: skip
    with open_world(shape, weights, threads=1 + seed % 2) as world:
        ranks = [Misrouting(side, a, shape.experts, seed) for a, side in enumerate(world.attention)]
        world.attention = ranks  # type: ignore[assignment]
        results = world.run(draw.steps)
        served = np.sum([side.expert_tokens for side in world.ffn], axis=0)
    assert_steps_match(weights, shape, draw.steps, results)
    assert (served[:, draw.idle] == 0).all()
    every = [r for step in draw.steps for lanes in step.values() for r in lanes]
    for layer in range(shape.moe_layers):
        ids = np.concatenate([r.ids[layer].ravel() for r in every])
        counts = np.bincount(ids[ids >= 0], minlength=shape.experts)
        np.testing.assert_array_equal(served[layer], counts)
    dispatches = sum(len(r.ids[0]) > 0 for r in every) * shape.moe_layers
    assert dispatches < 20 or sum(rank.refused for rank in ranks)


def test_the_draws_are_as_wide_as_they_claim() -> None:
    draws = [_draw(np.random.default_rng((s, w.value)), s, w) for s in SEEDS for w in WIRES]
    shapes = [draw.shape for draw in draws]
    narrow = [draw for draw in draws if draw.shape.wire is Wire.FP8]
    assert {(s.attention_ranks, s.ffn_ranks) for s in shapes} >= {(1, 1), (5, 3)}
    assert {s.attention_ranks for s in shapes} == {1, 2, 3, 4, 5}
    assert {s.lanes for s in shapes} == {1, 2, 3, 4}
    assert {(s.wire.value, d.type.value) for s, d in zip(shapes, draws, strict=True)} == {
        (w.value, t.value) for w in WIRES for t in TYPES
    }
    assert {d.shape.scale_format for d in narrow} == set(ScaleFormat.__members__.values())
    assert {(s.return_mode, s.replicated) for s in shapes} == {
        (mode, n) for mode in (ReturnMode.SLOT, ReturnMode.REDUCED) for n in (0, 1, 2)
    }
    assert any(s.experts % s.ffn_ranks for s in shapes)
    assert {1, 32} <= {s.top_k for s in shapes}
    assert any(s.hidden % 128 and s.width % 128 for s in shapes)
    assert any(d.idle for d in draws)
    counts = [draw.counts() for draw in draws]
    assert all(len(set(c)) > 1 for c in counts)
    assert sum(0 in c for c in counts) > 5
    assert sum(d.shape.max_tokens in c for d, c in zip(draws, counts, strict=True)) > 5
