"""The boundary between real processes, and what it counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from afd._megamoe import AttentionSide, Domain, ReturnMode, ScaleFormat, Wire
from tests.megamoe import ffn_process
from tests.megamoe.ffn_process import SHAPE, STEPS
from tests.megamoe.reference import assert_matches
from tests.megamoe.weights import Weights
from tests.megamoe.world import Routed, Shape, World, memory, open_world


def test_two_ffn_processes_serve_an_attention_process() -> None:
    rng = np.random.default_rng(0)
    weights = ffn_process.weights()
    steps = [{0: [Routed.random(rng, SHAPE, int(rng.integers(0, 9))) for _ in range(2)]}
             for _ in range(STEPS)]  # fmt: skip
    layout = SHAPE.layout()
    with memory(layout) as fd:
        domain = Domain(fd, layout, create=True)
        world = World(SHAPE, fd, layout, domain, [AttentionSide(domain, 0, 30_000)], [])
        servers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.megamoe.ffn_process", str(fd), str(rank)],
                pass_fds=[fd],
            )
            for rank in range(SHAPE.ffn_ranks)
        ]
        try:
            results = world.attend(0, 0, steps)
            assert [server.wait(30) for server in servers] == [0, 0]
        finally:
            for server in servers:
                server.kill()
                server.wait()
    for step, outputs in zip(steps, results, strict=True):
        assert outputs is not None
        for routed, out in zip(step[0], outputs, strict=True):
            for layer in range(SHAPE.moe_layers):
                expected = SHAPE.expected(weights, layer, 0, routed)
                assert_matches(out[layer], expected, SHAPE.wire)


def test_sequence_numbers_may_wrap() -> None:
    rng = np.random.default_rng(1)
    shape = Shape.random(rng, attention_ranks=1, ffn_ranks=1, lanes=1, max_tokens=4, moe_layers=1,
                         wire=Wire.FP32)  # fmt: skip
    weights = Weights.random(rng, 1, shape.experts, shape.hidden, shape.width)
    steps = [{0: [Routed.random(rng, shape, 4)]} for _ in range(4)]
    with open_world(shape, weights, generation=2**24 - 1) as world:
        # The last numbers of the last generation, and past them through zero.
        results = world.run(steps[:2], first_step=2**40 - 2)
        with pytest.raises(ValueError, match="step must be in"):
            world.run(steps[2:], first_step=2**40)
    for step, outputs in zip(steps, results, strict=False):
        routed = step[0][0]
        expected = shape.expected(weights, 0, 0, routed)
        assert_matches(outputs[0][0][0], expected, shape.wire)


@pytest.mark.parametrize(
    ("wire", "scales", "row", "back"),
    [(Wire.FP8, ScaleFormat.FP32_PER_128, 300 + 3 * 4, 600),
     (Wire.FP8, ScaleFormat.UE8M0_PER_128, 300 + 3, 600),
     (Wire.FP8, ScaleFormat.UE8M0_PER_32, 300 + 10, 600),
     (Wire.BF16, ScaleFormat.FP32_PER_128, 600, 600),
     (Wire.FP32, ScaleFormat.FP32_PER_128, 1200, 1200)])  # fmt: skip
@pytest.mark.parametrize(("mode", "returned"), [(ReturnMode.SLOT, 5), (ReturnMode.REDUCED, 3)])
def test_bytes_are_those_that_cross(
    wire: Wire, scales: ScaleFormat, row: int, back: int, mode: ReturnMode, returned: int
) -> None:
    shape = Shape(attention_ranks=1, ffn_ranks=2, lanes=1, max_tokens=4, hidden=300, top_k=3,
                  experts=4, moe_layers=1, wire=wire, width=64, scale_format=scales,
                  return_mode=mode)  # fmt: skip
    rng = np.random.default_rng(2)
    weights = Weights.random(rng, 1, 4, 300, 64)
    routed = Routed.random(rng, shape, 3)
    # FFN rank 0 owns experts 0 and 2. Pulls: token 0 by one rank, token 1 by both, token 2 by none.
    routed.ids[0] = [[0, 2, -1], [1, 0, 3], [-1, -1, -1]]
    with open_world(shape, weights) as world:
        world.run([{0: [routed]}])
        out, came_back = world.attention[0].bytes_out, world.attention[0].bytes_back
    copies, pulls, ids_and_count = 5, 3, 2 * (9 * 4 + 4)
    assert out == pulls * row + copies * 4 + ids_and_count
    assert came_back == returned * back


def _bytes(shape: Shape, ids: NDArray[np.int32]) -> tuple[int, int]:
    """What one layer's tokens move out and back."""
    rng = np.random.default_rng(3)
    weights = Weights.random(rng, 1, shape.experts, shape.hidden, shape.width)
    routed = replace(Routed.random(rng, shape, len(ids)), ids=ids[None])
    with open_world(shape, weights) as world:
        world.run([{0: [routed]}])
        return world.attention[0].bytes_out, world.attention[0].bytes_back


def test_the_byte_budget_of_a_routed_copy() -> None:
    """3 bytes per hidden element, and at most 5 % metadata, where every copy crosses by itself."""
    shape = Shape(attention_ranks=1, ffn_ranks=8, lanes=1, max_tokens=32, hidden=2048, top_k=8,
                  experts=16, moe_layers=1, wire=Wire.FP8, width=16)  # fmt: skip
    ids = np.tile(np.arange(8, dtype=np.int32), (32, 1))  # one expert of each FFN rank
    out, back = _bytes(shape, ids)
    assert 3.0 <= (out + back) / (shape.hidden * ids.size) <= 3.15


def test_a_reduced_return_is_well_below_a_row_per_slot() -> None:
    """Top-8 of 64 over 4 FFN ranks: the four ranks each return one row."""
    shape = Shape(attention_ranks=1, ffn_ranks=4, lanes=1, max_tokens=64, hidden=2048, top_k=8,
                  experts=64, moe_layers=1, wire=Wire.FP8, width=16)  # fmt: skip
    ids = np.random.default_rng(4).random((64, 64)).argsort(axis=1)[:, :8].astype(np.int32)
    plain = _bytes(shape, ids)
    reduced = _bytes(replace(shape, return_mode=ReturnMode.REDUCED), ids)
    assert plain[0] == reduced[0]
    assert reduced[1] <= 0.6 * plain[1]
    assert reduced[1] == sum(len(set(row % 4)) for row in ids) * 2 * shape.hidden
