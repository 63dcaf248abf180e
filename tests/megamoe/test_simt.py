"""The SIMT kernels on the CPU runner: the reference's results, alone and with CPU ranks."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afd._megamoe import Aborted, BadExpertId, Deadline, HandshakeError, ScaleFormat, Wire
from tests.megamoe.checks import assert_steps_match
from tests.megamoe.native import MAY_COMPILE, built
from tests.megamoe.simt import SimtAttentionSide, SimtFfnSide, opened
from tests.megamoe.weights import Weights
from tests.megamoe.world import (
    DEADLINE_MS,
    Routed,
    Shape,
    World,
    lane_offset,
    open_world,
    random_delays,
    random_step,
    regions,
)

pytestmark = MAY_COMPILE

SMALL = Shape(attention_ranks=2, ffn_ranks=2, lanes=2, max_tokens=3, hidden=130, top_k=2,
              experts=5, moe_layers=2, wire=Wire.FP8, width=24)  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Path:
    return built("megamoe-simt") / "libmegamoe-simt.so"


@contextmanager
def _world(
    library: Path, shape: Shape, weights: Weights, simt_attention: bool, simt_ffn: bool,
    deadline_ms: int = DEADLINE_MS, threads: int = 8,
) -> Iterator[World]:  # fmt: skip
    """A launch in which one role or both run as SIMT kernels."""
    with (
        open_world(shape, weights, deadline_ms=deadline_ms) as world,
        opened(library, shape, world.fd, threads) as simt,
    ):
        sides = []
        if simt_attention:
            world.attention = [
                SimtAttentionSide(simt, a, deadline_ms) for a in range(shape.attention_ranks)
            ]
            sides += world.attention
        if simt_ffn:
            world.ffn = [SimtFfnSide(simt, f, weights, deadline_ms) for f in range(shape.ffn_ranks)]
            sides += world.ffn
        yield world
        for side in sides:
            side.close()


def _weights(rng: np.random.Generator, shape: Shape) -> Weights:
    return Weights.random(rng, shape.moe_layers, shape.experts, shape.hidden, shape.width)


@pytest.mark.parametrize(
    ("simt_attention", "simt_ffn"), [(True, True), (False, True), (True, False)],
    ids=["simt", "cpu attention", "cpu ffn"],
)  # fmt: skip
@pytest.mark.parametrize("wire", [Wire.FP8, Wire.BF16, Wire.FP32])
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_match_the_reference(
    library: Path, seed: int, wire: Wire, simt_attention: bool, simt_ffn: bool
) -> None:
    """Ranks of either target meet over one memory: its layout and words are the same."""
    rng = np.random.default_rng(seed)
    shape = Shape.random(rng, wire=wire, max_tokens=5, width=33, hidden=int(rng.integers(64, 300)))
    weights = _weights(rng, shape)
    steps = [random_step(rng, shape) for _ in range(4)]
    with _world(library, shape, weights, simt_attention, simt_ffn) as world:
        world.delay = random_delays(5)
        assert_steps_match(weights, shape, steps, world.run(steps, first_step=3))


def test_the_wire_has_the_same_bits_whoever_writes_it(library: Path) -> None:
    """Rows and scales that a SIMT rank publishes are the CPU target's, block tails included."""
    rng = np.random.default_rng(7)
    formats = [(Wire.FP8, scale_format) for scale_format in ScaleFormat.__members__.values()]
    plain = [(wire, ScaleFormat.FP32_PER_128) for wire in (Wire.BF16, Wire.FP32)]
    for wire, scale_format in [*formats, *plain]:
        shape = replace(SMALL, wire=wire, scale_format=scale_format, ffn_ranks=1, hidden=300)
        weights = _weights(rng, shape)
        routed = Routed.random(rng, shape, 3)
        routed.x[0, 0, 128:256] = 0
        seen = []
        for simt_attention in (False, True):
            with _world(library, shape, weights, simt_attention, False) as world:
                world.attention[1].dispatch(0, 0, 1, routed.x[0], routed.ids[0], routed.weights[0])
                seen.append(_published(world, 1, 1))
        assert seen[0] == seen[1]


def _published(world: World, rank: int, lane: int) -> list[bytes]:
    """The regions of IN, as they lie in memory."""
    start = lane_offset(world.shape, world.layout, rank, lane)
    with mmap.mmap(world.fd, world.layout.total_bytes) as memory:
        return [
            memory[start + offset : start + offset + size]
            for name in ("rows", "scales", "ids", "weights")
            for offset, size in [regions(world.layout)[f"lane.{name}"]]
        ]


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_a_block_of_any_size_gives_the_same_bits(library: Path, threads: int) -> None:
    rng = np.random.default_rng(3)
    weights = _weights(rng, SMALL)
    steps = [random_step(rng, SMALL) for _ in range(2)]
    results = []
    for size in (threads, 32):
        with _world(library, SMALL, weights, True, True, threads=size) as world:
            results.append(world.run(steps))
    for one, other in zip(*results, strict=True):
        for rank, lanes in one.items():
            for a, b in zip(lanes, other[rank], strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_simt_rank_says_what_a_cpu_rank_says(library: Path) -> None:
    """Deadline, abort and bad ids are the CPU target's errors, word for word; the side lives on."""
    rng = np.random.default_rng(1)
    routed = Routed.random(rng, SMALL, 3)
    out = np.empty((3, SMALL.hidden), np.float32)
    both = np.array([0, 1], np.int32)
    said: list[list[str]] = []
    for simt in (False, True):
        with _world(library, SMALL, _weights(rng, SMALL), simt, simt, deadline_ms=40) as world:
            attention, ffn = world.attention[1], world.ffn[0]
            errors = []
            bad = routed.ids[1].copy()
            bad[2, 1] = SMALL.experts
            with pytest.raises(BadExpertId) as error:
                attention.dispatch(0, 1, 0, routed.x[1], bad, routed.weights[1])
            errors.append(str(error.value))
            attention.dispatch(0, 1, 0, routed.x[1], routed.ids[1], routed.weights[1])
            with pytest.raises(Deadline) as late:
                attention.combine(0, 1, 0, out)
            errors.append(str(late.value))
            with pytest.raises(Deadline) as late:
                ffn.serve(0, 1, both)
            errors.append(str(late.value))
            world.domain.raise_abort(2)
            with pytest.raises(Aborted) as aborted:
                ffn.serve(0, 1, both)
            assert aborted.value.culprit == 2
            errors.append(str(aborted.value))
            said.append(errors)
    assert said[0] == said[1]


def test_a_simt_rank_refuses_another_shape(library: Path) -> None:
    weights = _weights(np.random.default_rng(1), SMALL)
    with (
        open_world(SMALL, weights) as world,
        opened(library, replace(SMALL, top_k=3), world.fd) as simt,
        pytest.raises(HandshakeError, match="field top_k differs: this side has 3, .* has 2"),
    ):
        SimtAttentionSide(simt, 0, 100)


def test_a_simt_rank_refuses_other_owners(library: Path) -> None:
    weights = _weights(np.random.default_rng(1), SMALL)
    with open_world(SMALL, weights) as world:
        other = replace(SMALL, replicated=1)
        with (
            opened(library, other, world.fd) as simt,
            pytest.raises(HandshakeError, match="owner of expert 0 for attention rank 1 differs"),
        ):
            SimtAttentionSide(simt, 0, 100)
