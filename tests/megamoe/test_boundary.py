"""What comes back over the boundary is what the reference computes, whatever the shape."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from afd import _megamoe as ops
from afd._megamoe import Pool, ReturnMode, WeightType, Wire
from tests.megamoe.checks import assert_steps_match
from tests.megamoe.fp8_weights import random_weights
from tests.megamoe.reference import assert_matches, moe
from tests.megamoe.weights import Weights
from tests.megamoe.world import (
    Routed,
    Shape,
    make_experts,
    open_world,
    random_delays,
    random_step,
)

TYPES = [WeightType.FP32, WeightType.BF16, WeightType.FP8]


def _weights(rng: np.random.Generator, shape: Shape, type: WeightType = WeightType.FP32) -> Weights:
    numbers = range(shape.experts)
    return random_weights(rng, shape.moe_layers, numbers, shape.hidden, shape.width, type)


def test_many_tokens_for_one_expert_span_several_tiles() -> None:
    rng = np.random.default_rng(1)
    shape = Shape.random(rng, attention_ranks=2, ffn_ranks=2, lanes=1, max_tokens=150, experts=4,
                         top_k=2, moe_layers=1, wire=Wire.FP32)  # fmt: skip
    weights = _weights(rng, shape)
    step = {a: [Routed.random(rng, shape, 150)] for a in range(2)}
    for lanes in step.values():
        lanes[0].ids[..., 0] = 1
        lanes[0].ids[..., 1] = 2
    with open_world(shape, weights, threads=2) as world:
        results = world.run([step])
    assert_steps_match(weights, shape, [step], results)


@pytest.mark.parametrize("mode", [ReturnMode.SLOT, ReturnMode.REDUCED])
def test_delays_do_not_change_a_bit(mode: ReturnMode) -> None:
    rng = np.random.default_rng(3)
    shape = Shape.random(rng, attention_ranks=3, ffn_ranks=2, lanes=2, moe_layers=3, top_k=6,
                         wire=Wire.FP8, return_mode=mode)  # fmt: skip
    weights = _weights(rng, shape)
    steps = [random_step(rng, shape) for _ in range(4)]
    runs = []
    for seed in range(3):
        with open_world(shape, weights, threads=2) as world:
            if seed:
                world.delay = random_delays(seed)
            runs.append(world.run(steps))
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            for rank in a:
                for x, y in zip(a[rank], b[rank], strict=True):
                    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("type", TYPES)
def test_a_token_comes_back_the_same_from_any_batch(type: WeightType) -> None:
    rng = np.random.default_rng(4)
    shape = Shape.random(rng, attention_ranks=1, lanes=1, max_tokens=32, moe_layers=1,
                         wire=Wire.FP8)  # fmt: skip
    weights = _weights(rng, shape, type)
    whole = Routed.random(rng, shape, 32)
    parts = [Routed(whole.x[:, i:j], whole.ids[:, i:j], whole.weights[:, i:j])
             for i, j in [(0, 1), (1, 2), (2, 9), (9, 32)]]  # fmt: skip
    parts = [Routed(*(np.ascontiguousarray(v) for v in vars(p).values())) for p in parts]
    with open_world(shape, weights, threads=2) as world:
        results = world.run([{0: [whole]}, *({0: [part]} for part in parts)])
    joined = np.concatenate([r[0][0] for r in results[1:]], axis=1)
    np.testing.assert_array_equal(results[0][0][0], joined)


@pytest.mark.parametrize("seed", range(3))
def test_colocated_equals_the_fp32_wire_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape.random(rng, attention_ranks=1, lanes=1, wire=Wire.FP32,
                         return_mode=ReturnMode.SLOT)  # fmt: skip
    weights = _weights(rng, shape)
    routed = Routed.random(rng, shape, shape.max_tokens)
    with open_world(shape, weights, threads=2) as world:
        away = world.run([{0: [routed]}])[0][0][0]
    experts = make_experts(shape, weights, list(range(shape.experts)))
    pool = Pool(1)
    out = np.full_like(away, np.nan)
    for layer in range(shape.moe_layers):
        experts.forward(pool, layer, routed.x[layer], routed.ids[layer], routed.weights[layer],
                        out[layer])  # fmt: skip
    np.testing.assert_array_equal(out, away)


def test_a_long_prompt_is_computed_in_waves_and_chunks() -> None:
    rng = np.random.default_rng(7)
    shape = Shape.random(
        rng, hidden=70, width=20, experts=5, top_k=2, moe_layers=1, max_tokens=1500
    )
    weights = _weights(rng, shape)
    routed = Routed.random(rng, shape, 1500)
    out = np.full(routed.x[0].shape, np.nan, np.float32)
    experts = make_experts(shape, weights, [4, 2, 0, 1, 3])
    experts.forward(Pool(2), 0, routed.x[0], routed.ids[0], routed.weights[0], out)
    expected = moe(weights, 0, routed.x[0], routed.ids[0], routed.weights[0], Wire.FP32)
    assert_matches(out, expected, Wire.FP32)


def test_rows_of_wider_arrays_are_read_and_written_in_place() -> None:
    rng = np.random.default_rng(8)
    shape = Shape.random(rng, attention_ranks=1, lanes=1, moe_layers=1, max_tokens=8)
    weights = _weights(rng, shape)
    routed = Routed.random(rng, shape, 8)
    wide_x = np.full((8, shape.hidden + 3), np.nan, np.float32)
    wide_x[:, : shape.hidden] = routed.x[0]
    wide_out = np.full((8, shape.hidden + 5), 7, np.float32)
    with open_world(shape, weights) as world, ThreadPoolExecutor(shape.ffn_ranks) as threads:
        for side in world.ffn:
            threads.submit(side.serve, 0, 1, np.zeros(1, np.int32))
        world.attention[0].dispatch(0, 0, 0, wide_x[:, : shape.hidden], routed.ids[0],
                                    routed.weights[0])  # fmt: skip
        world.attention[0].combine(0, 0, 0, wide_out[:, : shape.hidden])
    expected = shape.expected(weights, 0, 0, routed)
    assert_matches(wide_out[:, : shape.hidden], expected, shape.wire)
    assert (wide_out[:, shape.hidden :] == 7).all()


@pytest.mark.parametrize("level", ops.isa_levels())
def test_every_instruction_set_level_computes_the_experts(level: str) -> None:
    rng = np.random.default_rng(9)
    shape = Shape.random(rng, width=83, moe_layers=1, max_tokens=9)
    weights = _weights(rng, shape)
    routed = Routed.random(rng, shape, 9)
    out = np.full(routed.x[0].shape, np.nan, np.float32)
    before = ops.isa_level()
    try:
        ops.isa_level(level)
        experts = make_experts(shape, weights, list(range(shape.experts)))
        experts.forward(Pool(1), 0, routed.x[0], routed.ids[0], routed.weights[0], out)
    finally:
        ops.isa_level(before)
    expected = moe(weights, 0, routed.x[0], routed.ids[0], routed.weights[0], Wire.FP32)
    assert_matches(out, expected, Wire.FP32)


def test_a_reduced_row_does_not_depend_on_its_batch_or_on_threads() -> None:
    rng = np.random.default_rng(10)
    shape = Shape.random(rng, attention_ranks=1, ffn_ranks=2, lanes=1, max_tokens=150, experts=12,
                         top_k=8, moe_layers=1, wire=Wire.FP32,
                         return_mode=ReturnMode.REDUCED)  # fmt: skip
    weights = _weights(rng, shape)
    whole = Routed.random(rng, shape, 150)
    alone = Routed(*(np.ascontiguousarray(v[:, 7:8]) for v in vars(whole).values()))
    rows = []
    for threads in (1, 3):
        with open_world(shape, weights, threads=threads) as world:
            batch, single = (
                outputs[0][0][0] for outputs in world.run([{0: [whole]}, {0: [alone]}])
            )
        assert_steps_match(weights, shape, [{0: [whole]}], [{0: [batch[None]]}])
        rows += [batch[7], single[0]]
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])


def test_a_replicated_expert_is_served_where_the_table_sends_the_source() -> None:
    rng = np.random.default_rng(11)
    shape = Shape.random(rng, attention_ranks=4, ffn_ranks=3, lanes=2, experts=8, top_k=3,
                         max_tokens=9, moe_layers=2, replicated=1)  # fmt: skip
    weights = _weights(rng, shape)
    step = {a: [Routed.random(rng, shape, 9) for _ in range(2)] for a in range(4)}
    for lanes in step.values():
        for lane in lanes:
            lane.ids[..., 1] = 0
            lane.ids[lane.ids == 0] = 1
            lane.ids[..., 0] = 0
    with open_world(shape, weights) as world:
        results = world.run([step])
        served = [side.expert_tokens[:, 0] for side in world.ffn]
    assert_steps_match(weights, shape, [step], results)
    # Attention ranks 0 and 3 are sent to FFN rank 0, rank 1 to 1 and rank 2 to 2.
    np.testing.assert_array_equal(served, [[36, 36], [18, 18], [18, 18]])


def test_swapping_two_experts_changes_the_output() -> None:
    rng = np.random.default_rng(5)
    shape = Shape.random(rng, attention_ranks=1, lanes=1, moe_layers=1, max_tokens=8)
    weights = _weights(rng, shape)
    routed = Routed.random(rng, shape, 8)
    routed.ids[..., 0] = 1
    mixed = routed.ids.copy()
    mixed[routed.ids == 1], mixed[routed.ids == 2] = 2, 1
    with open_world(shape, weights) as world:
        right, wrong = world.run([{0: [routed]}, {0: [replace(routed, ids=mixed)]}])
    assert (np.abs(right[0][0] - wrong[0][0]).max(axis=2) > 1e-3).all()


def test_more_ranks_than_cores() -> None:
    rng = np.random.default_rng(6)
    shape = Shape.random(rng, attention_ranks=5, ffn_ranks=3, lanes=2, max_tokens=6, moe_layers=3,
                         experts=7, top_k=3)  # fmt: skip
    weights = _weights(rng, shape)
    steps = [random_step(rng, shape) for _ in range(20)]
    with open_world(shape, weights) as world:
        results = world.run(steps)
        waited = [side.wait_ns for side in world.ffn]
    assert_steps_match(weights, shape, steps, results)
    assert all(ns > 0 for ns in waited)
