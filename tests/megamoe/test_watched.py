"""A watched step gives the same rows as any other, and tells where its time went."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from afd._megamoe import Wire
from tests.megamoe.weights import Weights
from tests.megamoe.world import Shape, World, open_world, random_step


def _watched(world: World, step: int, lanes: int, ranks: list[int]) -> list[np.ndarray]:
    """Serves on every FFN rank, watched."""
    rows: list[np.ndarray] = [np.zeros(0)] * len(world.ffn)

    def serve(rank: int) -> None:
        rows[rank] = world.ffn[rank].serve_watched(step, lanes, np.array(ranks, np.int32))

    threads = [threading.Thread(target=serve, args=(f,)) for f in range(len(world.ffn))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_a_watched_step_is_the_same_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape.random(rng, wire=Wire.FP32, max_tokens=9)
    weights = Weights.random(rng, shape.moe_layers, shape.experts, shape.hidden, shape.width)
    step = random_step(rng, shape)
    lanes = len(next(iter(step.values())))
    with open_world(shape, weights) as world:
        plain = world.run([step])[0]
        before_ns = time.monotonic_ns()
        outputs: dict[int, list[np.ndarray]] = {}
        attending = [
            threading.Thread(
                target=lambda a=a: outputs.update({a: world._attend_step(a, 1, step[a])})
            )
            for a in step
        ]
        for thread in attending:
            thread.start()
        served = _watched(world, 1, lanes, sorted(step))
        for thread in attending:
            thread.join()
        after_ns = time.monotonic_ns()
    for rank, expected in plain.items():
        for one, other in zip(expected, outputs[rank], strict=True):
            np.testing.assert_array_equal(one, other)
    tokens = [sum(len(step[a][lane].x[0]) for a in step) for lane in range(lanes)]
    for rows in served:
        places = [(layer, lane) for layer in range(shape.moe_layers) for lane in range(lanes)]
        assert [tuple(row) for row in rows[:, :2].tolist()] == places
        assert rows[:, 5].tolist() == tokens * shape.moe_layers
        times = rows[:, 2:5].ravel()
        assert (np.diff(times) >= 0).all(), "waiting, computing, published, then the next lane"
        assert before_ns <= times[0] and times[-1] <= after_ns
    tiles = sum(rows[:, 6] for rows in served)
    routed = [
        any((step[a][lane].ids[layer] >= 0).any() for a in step)
        for layer in range(shape.moe_layers)
        for lane in range(lanes)
    ]
    assert (tiles > 0).tolist() == routed
