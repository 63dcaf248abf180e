"""Whole runs against the reference."""

from __future__ import annotations

from tests.megamoe.reference import assert_matches
from tests.megamoe.weights import Weights
from tests.megamoe.world import Outputs, Shape, Step


def assert_steps_match(
    weights: Weights, shape: Shape, steps: list[Step], results: list[Outputs]
) -> None:
    """Every lane and layer of every step is what the reference makes of it."""
    for step, outputs in zip(steps, results, strict=True):
        assert outputs.keys() == step.keys()
        for rank, lanes in step.items():
            for routed, out in zip(lanes, outputs[rank], strict=True):
                for layer in range(shape.moe_layers):
                    expected = shape.expected(weights, layer, rank, routed)
                    assert_matches(out[layer], expected, shape.wire)
