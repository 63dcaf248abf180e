"""The boundary between real processes, and what it counts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from afd._megamoe import AttentionSide, Domain, Wire
from tests.megamoe import ffn_process
from tests.megamoe.ffn_process import SHAPE, STEPS
from tests.megamoe.reference import Weights, assert_matches, moe
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
                expected, size = moe(weights, layer, routed.x[layer], routed.ids[layer],
                                     routed.weights[layer], SHAPE.wire)  # fmt: skip
                assert_matches(out[layer], expected, size, SHAPE.wire)


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
        expected, size = moe(weights, 0, routed.x[0], routed.ids[0], routed.weights[0], shape.wire)
        assert_matches(outputs[0][0][0], expected, size, shape.wire)


@pytest.mark.parametrize(("wire", "row", "back"), [(Wire.FP8, 300 + 3 * 4, 600),
                                                   (Wire.BF16, 600, 600),
                                                   (Wire.FP32, 1200, 1200)])  # fmt: skip
def test_bytes_are_those_that_cross(wire: Wire, row: int, back: int) -> None:
    shape = Shape(attention_ranks=1, ffn_ranks=2, lanes=1, max_tokens=4, hidden=300, top_k=3,
                  experts=4, moe_layers=1, wire=wire, width=64)  # fmt: skip
    rng = np.random.default_rng(2)
    weights = Weights.random(rng, 1, 4, 300, 64)
    routed = Routed.random(rng, shape, 3)
    # FFN rank 0 owns experts 0 and 2. Pulls: token 0 by one rank, token 1 by both, token 2 by none.
    routed.ids[0] = [[0, 2, -1], [1, 0, 3], [-1, -1, -1]]
    with open_world(shape, weights) as world:
        world.run([{0: [routed]}])
        out, returned = world.attention[0].bytes_out, world.attention[0].bytes_back
    copies, pulls, ids_and_count = 5, 3, 2 * (9 * 4 + 4)
    assert out == pulls * row + copies * 4 + ids_and_count
    assert returned == copies * back
