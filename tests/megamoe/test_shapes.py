"""The shapes of published models, and that experts which no token visits cost nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from afd._megamoe import Experts, Pool, ReturnMode, ScaleFormat, WeightType, Wire
from tests.megamoe.checks import assert_steps_match
from tests.megamoe.fp8_weights import random_weights
from tests.megamoe.world import Routed, Shape, open_world

HIDDEN = (576, 2048, 2880, 3072, 4096, 5120)
WIDTH = (192, 768, 1536, 2880)
EXPERTS = (8, 60, 128, 256)
TOP_K = (1, 2, 4, 8, 32)
TYPES = (WeightType.FP32, WeightType.BF16, WeightType.FP8)
MODES = (ReturnMode.SLOT, ReturnMode.REDUCED)
SCALES = (ScaleFormat.FP32_PER_128, ScaleFormat.UE8M0_PER_128, ScaleFormat.UE8M0_PER_32)


def _case(i: int) -> tuple[Shape, tuple[int, ...]]:
    """Every hidden size with every width; the rest in turn. The experts that tokens visit are few,
    so that the weights fit: the first, the last and some between."""
    hidden, width = HIDDEN[i % 6], WIDTH[i // 6]
    experts, top_k = EXPERTS[(i + i // 6) % 4], TOP_K[i % 5]
    visited = 32 if top_k == 32 and hidden * width <= 2048 * 192 else 4
    visited = min(visited, experts)
    shape = Shape(
        attention_ranks=2,
        ffn_ranks=1 + i % 3,
        lanes=1,
        max_tokens=5,
        hidden=hidden,
        top_k=min(top_k, experts),
        experts=experts,
        moe_layers=1,
        wire=(Wire.FP8, Wire.BF16, Wire.FP32)[i % 3],
        width=width,
        scale_format=SCALES[i // 3 % 3],
        return_mode=MODES[i // 2 % 2],
        replicated=i % 2,
    )
    numbers = np.unique(np.linspace(0, experts - 1, visited).astype(int))
    return shape, tuple(int(e) for e in numbers)


def _routed(rng: np.random.Generator, shape: Shape, numbers: tuple[int, ...], n: int) -> Routed:
    """Slots beyond the few experts stay unused."""
    routed = Routed.random(rng, shape, n)
    ids = np.full((1, n, shape.top_k), -1, np.int32)
    used = min(shape.top_k, len(numbers))
    for token in range(n):
        slots = rng.permutation(shape.top_k)[:used]
        ids[0, token, slots] = rng.permutation(numbers)[:used]
    return Routed(routed.x, ids, routed.weights)


def _check_case(i: int, type: WeightType) -> None:
    rng = np.random.default_rng(i)
    shape, numbers = _case(i)
    weights = random_weights(rng, 1, numbers, shape.hidden, shape.width, type)
    steps = [
        {a: [_routed(rng, shape, numbers, n)] for a, n in enumerate(counts)}
        for counts in ((5, 2), (0, 1))
    ]
    with open_world(shape, weights) as world:
        results = world.run(steps)
    assert_steps_match(weights, shape, steps, results)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("i", [0, 1, 2, 4, 6])
def test_published_shapes(i: int, type: WeightType) -> None:
    _check_case(i, type)


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("i", range(len(HIDDEN) * len(WIDTH)))
def test_every_hidden_size_with_every_width(i: int, type: WeightType) -> None:
    """The last block of FP8 scales is partial for hidden 576 and 2880, width 192 and 2880."""
    _check_case(i, type)


@pytest.mark.parametrize("type", [WeightType.BF16, WeightType.FP8])
def test_a_published_shape_with_more_rows_than_a_tile(type: WeightType) -> None:
    """A prompt's worth: both experts multiply 117 rows, a tile of 96 and the rest."""
    shape = Shape(attention_ranks=2, ffn_ranks=1, lanes=1, max_tokens=64, hidden=4096, top_k=2,
                  experts=2, moe_layers=1, wire=Wire.FP32, width=768)  # fmt: skip
    rng = np.random.default_rng(5)
    weights = random_weights(rng, 1, (0, 1), shape.hidden, shape.width, type)
    steps = [{a: [_routed(rng, shape, (0, 1), n)] for a, n in enumerate((64, 53))}]
    with open_world(shape, weights, threads=2) as world:
        results = world.run(steps)
        np.testing.assert_array_equal(world.ffn[0].expert_tokens, [[117, 117]])
    assert_steps_match(weights, shape, steps, results)


def test_weights_that_no_token_visits_are_not_touched() -> None:
    """256 experts would be 4.8 GB; what was neither loaded nor visited takes no memory."""
    experts = Experts(moe_layers=1, expert_ids=list(range(256)), hidden=2048, width=768,
                      dtype=WeightType.FP32)  # fmt: skip
    rng = np.random.default_rng(0)
    gate, up = rng.standard_normal((2, 768, 2048), np.float32)
    down = rng.standard_normal((2048, 768), np.float32)
    x = rng.standard_normal((4, 2048), np.float32)
    ids = np.full((4, 2), 131, np.int32)
    ids[:, 1] = -1
    out = np.empty_like(x)
    before = psutil.Process().memory_info().rss
    experts.load(0, 131, gate, up, down)
    experts.forward(Pool(1), 0, x, ids, np.ones((4, 2), np.float32), out)
    grown = psutil.Process().memory_info().rss - before
    assert np.abs(out).max() > 0
    assert experts.nbytes > 4.8e9
    assert grown < 64e6


def test_the_page_draws_the_map_that_the_layout_describes() -> None:
    page = (Path(__file__).resolve().parents[2] / "csrc/megamoe/README.md").read_text()
    drawn = page.split("## The memory")[1].split("## The words")[0]
    shape, _ = _case(0)
    names = [line.split()[0] for line in shape.layout().describe().splitlines()]
    place = 0
    for name in names:
        word = f" {name.removeprefix('lane.').removesuffix('s')}"
        place = drawn.lower().find(word, place)
        assert place >= 0, name
