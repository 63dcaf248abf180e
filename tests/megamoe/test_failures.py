"""Every way to go wrong ends in an error that names who, what, expected and seen."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from afd._megamoe import (
    Aborted,
    AttentionSide,
    BadExpertId,
    Deadline,
    Domain,
    Experts,
    FfnSide,
    HandshakeError,
    Layout,
    MegamoeError,
    Pool,
    ReturnMode,
    ScaleFormat,
    WeightType,
    Wire,
)
from tests.megamoe.weights import Weights
from tests.megamoe.world import (
    DEADLINE_MS,
    Routed,
    Shape,
    World,
    lane_offset,
    make_experts,
    memory,
    open_world,
    regions,
)

SHAPE = Shape(attention_ranks=2, ffn_ranks=2, lanes=2, max_tokens=4, hidden=96, top_k=2, experts=5,
              moe_layers=3, wire=Wire.FP8, width=48)  # fmt: skip
RNG_SEED = 11


def _weights() -> Weights:
    return Weights.random(np.random.default_rng(RNG_SEED), 3, 5, 96, 48)


def _varied(fields: dict[str, Any]) -> Shape:
    return replace(SHAPE, **fields)


@pytest.fixture
def world() -> Iterator[World]:
    with open_world(SHAPE, _weights(), deadline_ms=60) as opened:
        yield opened


def _routed(tokens: int = 3) -> Routed:
    return Routed.random(np.random.default_rng(RNG_SEED), SHAPE, tokens)


def _dispatch(world: World, rank: int, step: int = 0, layer: int = 0, lane: int = 0) -> None:
    r = _routed()
    world.attention[rank].dispatch(step, layer, lane, r.x[layer], r.ids[layer], r.weights[layer])


def _both() -> np.ndarray:
    return np.array([0, 1], np.int32)


# ---------------------------------------------------------------------------------- deadlines


def test_a_deadline_on_the_attention_side(world: World) -> None:
    _dispatch(world, 1, step=4, layer=2, lane=1)
    with pytest.raises(Deadline) as error:
        world.attention[1].combine(4, 2, 1, np.empty((3, 96), np.float32))
    assert str(error.value) == (
        "rank 1 waiting for DONE of rank 2 (step 4, MoE layer 2, lane 1) gave up after 60 ms: "
        "expected 15, seen 0"
    )
    assert world.attention[1].wait_ns >= 60e6


def test_a_deadline_on_the_ffn_side(world: World) -> None:
    _dispatch(world, 0, step=4)
    with pytest.raises(Deadline) as error:
        world.ffn[1].serve(4, 1, _both())
    assert str(error.value) == (
        "rank 3 waiting for PUB of rank 1 (step 4, MoE layer 0, lane 0) gave up after 60 ms: "
        "expected 13, seen 0"
    )


# ---------------------------------------------------------------------------------- abort


@pytest.mark.parametrize("delay_s", [0.0, 0.0005, 0.02])
def test_an_abort_wakes_spinning_yielding_and_sleeping_ranks(delay_s: float) -> None:
    with open_world(SHAPE, _weights()) as world, ThreadPoolExecutor(3) as threads:
        _dispatch(world, 0)
        waiting = [
            threads.submit(world.attention[0].combine, 0, 0, 0, np.empty((3, 96), np.float32)),
            threads.submit(world.ffn[0].serve, 0, 1, np.array([1], np.int32)),
            threads.submit(world.ffn[1].serve, 0, 1, np.array([1], np.int32)),
        ]
        time.sleep(delay_s)
        world.domain.raise_abort(3)
        world.domain.raise_abort(1)
        for future in waiting:
            with pytest.raises(Aborted, match="because of rank 3") as error:
                future.result(timeout=20)
            assert error.value.culprit == 3
        with pytest.raises(Aborted):
            world.ffn[0].serve(1, 1, np.array([0], np.int32))


def test_an_abort_of_nobody_in_particular(world: World) -> None:
    world.domain.raise_abort(-1)
    with pytest.raises(Aborted) as error:
        world.ffn[0].serve(0, 1, _both())
    assert error.value.culprit == -1
    assert "because" not in str(error.value)
    with pytest.raises(ValueError, match=r"culprit must be in \[-1, 3\], is 4"):
        world.domain.raise_abort(4)


# ---------------------------------------------------------------------------------- routed ids


@pytest.mark.parametrize("bad", [-2, 5, 2**31 - 1])
def test_a_bad_expert_id_is_refused_before_anything_is_published(world: World, bad: int) -> None:
    r = _routed()
    r.ids[1, 2, 1] = bad
    with pytest.raises(BadExpertId) as error:
        world.attention[1].dispatch(0, 1, 0, r.x[1], r.ids[1], r.weights[1])
    assert str(error.value) == f"rank 1, MoE layer 1, token 2: expert id {bad} is outside [-1, 5)"
    with pytest.raises(Deadline):
        world.ffn[0].serve(0, 1, np.array([1], np.int32))


def test_an_ffn_rank_trusts_no_id_in_memory(world: World) -> None:
    _dispatch(world, 0)
    at = lane_offset(SHAPE, world.layout, 0, 0) + regions(world.layout)["lane.ids"][0]
    with mmap.mmap(world.fd, world.layout.total_bytes) as raw:
        raw[at + 4 * 4 : at + 4 * 5] = (77).to_bytes(4, "little")
    with pytest.raises(BadExpertId, match="rank 0, MoE layer 0, token 2: expert id 77"):
        world.ffn[0].serve(0, 1, np.array([0], np.int32))


def test_an_expert_that_is_not_held_is_no_silent_zero() -> None:
    experts = make_experts(SHAPE, _weights(), [1, 3])
    ids = np.array([[1, 3], [1, 2]], np.int32)
    x, w, out = np.zeros((2, 96), np.float32), np.ones((2, 2), np.float32), np.zeros((2, 96), "f")
    with pytest.raises(BadExpertId, match="MoE layer 0, token 1: expert id 2 is not held"):
        experts.forward(Pool(1), 0, x, ids, w, out)


# ---------------------------------------------------------------------------------- handshake


@pytest.mark.parametrize(
    ("field", "value"),
    [("attention_ranks", 3), ("ffn_ranks", 1), ("lanes", 1), ("max_tokens", 5000), ("hidden", 95),
     ("top_k", 5), ("experts", 4), ("moe_layers", 2), ("wire", Wire.FP32),
     ("scale_format", ScaleFormat.UE8M0_PER_128), ("scale_format", ScaleFormat.UE8M0_PER_32),
     ("return_mode", ReturnMode.REDUCED)],
)  # fmt: skip
def test_a_handshake_names_the_field_and_both_values(field: str, value: Any) -> None:
    def number(v: Any) -> int:
        return v if isinstance(v, int) else int(v.value)

    other = _varied({field: value}).layout()
    with memory(SHAPE.layout()) as fd:
        Domain(fd, SHAPE.layout(), create=True)
        with pytest.raises(HandshakeError) as error:
            Domain(fd, other)
    assert str(error.value) == (
        f"handshake: field {field} differs: this side has {number(value)}, "
        f"the memory's creator has {number(getattr(SHAPE, field))}"
    )


def test_a_handshake_before_its_creator_or_over_too_small_a_file() -> None:
    layout = SHAPE.layout()
    with memory(layout) as fd:
        with pytest.raises(HandshakeError, match="has not written it yet"):
            Domain(fd, layout)
        larger = replace(SHAPE, max_tokens=1000).layout()
        with pytest.raises(HandshakeError, match="total_bytes") as error:
            Domain(fd, larger, create=True)
        assert str(larger.total_bytes) in str(error.value)
        assert str(layout.total_bytes) in str(error.value)


def test_ownership_is_part_of_the_handshake(world: World) -> None:
    owner = SHAPE.owners()
    owner[1, [1, 2]] = owner[1, [2, 1]]
    held = np.flatnonzero((owner == 0).any(axis=0)).tolist()
    sentence = "owner of expert 1 for attention rank 1 differs: this side has FFN rank 0, .* has 1"
    domain = Domain(world.fd, world.layout)
    with pytest.raises(HandshakeError, match=sentence):
        FfnSide(domain, 0, owner, make_experts(SHAPE, _weights(), held), Pool(1), 60)
    with pytest.raises(HandshakeError, match=sentence):
        AttentionSide(domain, 0, 60, owner)
    with pytest.raises(ValueError, match="expert 2 is not held"):
        FfnSide(domain, 0, owner, make_experts(SHAPE, _weights(), [0, 1, 4]), Pool(1), 60)
    with pytest.raises(ValueError, match=r"owner must be in \[0, 1\], is 2"):
        AttentionSide(domain, 0, 60, owner + 1)


def test_generations_do_not_mix() -> None:
    layout = SHAPE.layout()
    with memory(layout) as fd:
        Domain(fd, layout, create=True, generation=7)
        Domain(fd, layout, generation=7)
        with pytest.raises(HandshakeError, match="field generation differs: this side has 6, .* 7"):
            Domain(fd, layout, generation=6)


# ---------------------------------------------------------------------------------- misuse


def test_a_lane_carries_one_dispatch(world: World) -> None:
    out = np.empty((3, 96), np.float32)
    with pytest.raises(ValueError, match="lane 0 was not dispatched for step 0, layer 0"):
        world.attention[0].combine(0, 0, 0, out)
    _dispatch(world, 0)
    with pytest.raises(ValueError, match="lane 0 is still away with step 0, layer 0"):
        _dispatch(world, 0, layer=1)
    with pytest.raises(ValueError, match="lane 0 was not dispatched for step 0, layer 1"):
        world.attention[0].combine(0, 1, 0, out)
    with pytest.raises(ValueError, match="out must have size 3 along axis 0"):
        world.attention[0].combine(0, 0, 0, out[:2])


def test_a_step_never_goes_back() -> None:
    """Words that an older step left behind would make its waits return at once, on old rows."""
    weights = _weights()
    r = _routed()
    step = {0: [r], 1: [r]}
    with open_world(SHAPE, weights) as world:
        world.run([step], first_step=5)
        for old in (4, 5):
            with pytest.raises(ValueError, match=f"step {old}, layer 0, must come after"):
                _dispatch(world, 0, step=old)
            with pytest.raises(ValueError, match=f"step {old} must come after the last step"):
                world.ffn[0].serve(old, 1, _both())
        world.run([step], first_step=6)


def test_arguments_are_named(world: World) -> None:
    r = _routed(4)
    side, x, ids, w = world.attention[0], r.x[0], r.ids[0], r.weights[0]
    with pytest.raises(ValueError, match="x must be float32"):
        side.dispatch(0, 0, 0, x.astype(np.float64), ids, w)
    with pytest.raises(ValueError, match="ids must be int32"):
        side.dispatch(0, 0, 0, x, ids.astype(np.int64), w)
    with pytest.raises(ValueError, match="weights must have size 2 along axis 1"):
        side.dispatch(0, 0, 0, x, ids, w[:, :1])
    with pytest.raises(ValueError, match="max_tokens = 4 rows, has 5"):
        side.dispatch(0, 0, 0, np.zeros((5, 96), np.float32), ids, w)
    with pytest.raises(ValueError, match=r"layer must be in \[0, 2\], is 3"):
        side.dispatch(0, 3, 0, x, ids, w)
    with pytest.raises(ValueError, match=r"lane must be in \[0, 1\], is -1"):
        side.dispatch(0, 0, -1, x, ids, w)
    with pytest.raises(ValueError, match="step must be in"):
        side.dispatch(-1, 0, 0, x, ids, w)
    with pytest.raises(ValueError, match=r"lanes must be in \[1, 2\], is 3"):
        world.ffn[0].serve(0, 3, _both())
    with pytest.raises(ValueError, match="attention_ranks must not repeat"):
        world.ffn[0].serve(0, 1, np.array([1, 1], np.int32))
    with pytest.raises(ValueError, match="rank must be in"):
        AttentionSide(world.domain, 2, 60)
    with pytest.raises(ValueError, match="deadline_ms"):
        AttentionSide(world.domain, 0, 0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("lanes", 5, r"lanes must be in \[1, 4\], got 5"), ("top_k", 6, "top_k must be in"),
     ("hidden", 0, "hidden must be in"), ("max_tokens", 2**24, "exceed the address space")],
)  # fmt: skip
def test_a_layout_refuses_sizes_it_cannot_hold(field: str, value: int, message: str) -> None:
    shape = _varied({"attention_ranks": 2**16, field: value})
    with pytest.raises(ValueError, match=message):
        shape.layout()


def test_experts_check_what_they_are_given() -> None:
    with pytest.raises(ValueError, match="must not repeat"):
        Experts(moe_layers=1, expert_ids=[1, 1], hidden=8, width=8, dtype=WeightType.FP32)
    experts = Experts(moe_layers=1, expert_ids=[1], hidden=8, width=4, dtype=WeightType.FP32)
    w = np.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match="expert 0 is not held here"):
        experts.load(0, 0, w, w, w.T.copy())
    with pytest.raises(ValueError, match="down must have size 8"):
        experts.load(0, 1, w, w, w)
    with pytest.raises(ValueError, match="layer 1 is outside"):
        experts.load(1, 1, w, w, w.T.copy())


# ---------------------------------------------------------------------------------- closing


def test_a_closed_domain_is_an_error_not_a_crash() -> None:
    layout = SHAPE.layout()
    with memory(layout) as fd:
        domain = Domain(fd, layout, create=True)
        side = AttentionSide(domain, 0, 100)
        waiter = AttentionSide(Domain(fd, layout), 1, 30_000)
    r = _routed()
    waiter.dispatch(0, 0, 0, r.x[0], r.ids[0], r.weights[0])
    error: list[BaseException] = []

    def wait() -> None:
        try:
            waiter.combine(0, 0, 0, np.empty((3, 96), np.float32))
        except Aborted as aborted:
            error.append(aborted)

    thread = threading.Thread(target=wait)
    thread.start()
    domain.raise_abort(0)
    domain.close()
    domain.close()
    thread.join(20)
    assert error
    with pytest.raises(MegamoeError, match="the domain is closed"):
        side.dispatch(0, 0, 0, r.x[0], r.ids[0], r.weights[0])
    with pytest.raises(MegamoeError, match="the domain is closed"):
        domain.raise_abort(0)
    with pytest.raises(MegamoeError, match="the domain is closed"):
        AttentionSide(domain, 0, 100)


def test_sides_outlive_the_names_they_were_made_of() -> None:
    def opened(fd: int, layout: Layout) -> tuple[AttentionSide, FfnSide]:
        shape = replace(SHAPE, attention_ranks=1, ffn_ranks=1)
        experts = make_experts(shape, _weights(), list(range(5)))
        domain = Domain(fd, layout, create=True)
        return (
            AttentionSide(domain, 0, DEADLINE_MS),
            FfnSide(domain, 0, np.zeros(5, np.int32), experts, Pool(2), DEADLINE_MS),
        )

    layout = replace(SHAPE, attention_ranks=1, ffn_ranks=1).layout()
    with memory(layout) as fd:
        attention, ffn = opened(fd, layout)
    r = _routed()
    out = np.full((3, 96), np.nan, np.float32)
    server = threading.Thread(target=ffn.serve, args=(0, 1, np.zeros(1, np.int32)))
    server.start()
    for layer in range(3):
        attention.dispatch(0, layer, 0, r.x[layer], r.ids[layer], r.weights[layer])
        attention.combine(0, layer, 0, out)
    server.join()
    assert np.isfinite(out).all()
