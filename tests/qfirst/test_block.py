"""Eight wirings of one decoder: equal cost, the family each belongs to, the other bracketing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from afd.qfirst.block import Decoder, Rope, parameter_count
from afd.qfirst.errors import WiringError
from afd.qfirst.families import Family, classify, inner_stack, serial_depth
from afd.qfirst.wiring import EMBEDDING, FAMILY_A, FAMILY_B, Order, Wiring, wiring
from tests.qfirst.conftest import GROUPED

ARMS = FAMILY_A + FAMILY_B
IDS = torch.arange(24) * 5 % 97


def flops(decoder: Decoder) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        decoder(IDS[None])
    return int(counter.get_total_flops())


def test_all_arms_have_the_same_parameters_and_the_same_forward_arithmetic(
    decoder: Decoder,
) -> None:
    arms = [Decoder(decoder.config, wiring(arm)) for arm in ARMS]
    assert len({parameter_count(arm) for arm in arms}) == 1
    assert len({flops(arm) for arm in arms}) == 1
    assert len({tuple(arm.state_dict()) for arm in arms}) == 1


def test_all_arms_are_different_functions(decoder: Decoder) -> None:
    with torch.no_grad():
        logits = [decoder.rewired(wiring(arm))(IDS[None]) for arm in ARMS]
    for i, one in enumerate(logits):
        assert not any(torch.allclose(one, other, atol=1e-3) for other in logits[:i])


@pytest.mark.parametrize("arm", ARMS)
def test_the_forward_pass_separates_the_families(arm: str, decoder: Decoder) -> None:
    expected = Family.FFN_INTO_ATTENTION if arm in FAMILY_A else Family.ATTENTION_INTO_FFN
    if arm == "parallel":
        expected = Family.SUM
    rewired = decoder.rewired(wiring(arm))
    assert {classify(rewired, IDS, layer) for layer in range(4)} == {expected}
    assert serial_depth(rewired.wiring, 28) == (28 if arm == "parallel" else 56)


@pytest.mark.parametrize("arm", ["shifted", "standard"])
def test_the_stack_rebracketed_is_bit_identical(arm: str, decoder: Decoder) -> None:
    outer = decoder.rewired(wiring(arm))
    inner = inner_stack(outer)
    assert inner.wiring == wiring({"shifted": "early_q", "standard": "swapped"}[arm])
    with torch.no_grad():
        embedded = outer.embed_tokens(IDS[None])
        rope = Rope(torch.arange(len(IDS)), outer.config, embedded.dtype)
        # Layer 0's attention has nothing before it: every read is the embedding.
        stream = embedded + outer.layers[0].attend(embedded, embedded, embedded, rope)
        stream = inner.states(stream)[-1]
        stream = stream + outer.layers[-1].feed(stream)
        assert torch.equal(outer.readout(stream), outer(IDS[None]))


def test_each_read_point_is_one_state_of_the_stream(decoder: Decoder) -> None:
    """An independent forward written for one block of each order, state by state."""
    for order in Order:
        rewired = decoder.rewired(Wiring(order, query=3, key=1, value=0, held_out=(2,)))
        with torch.no_grad():
            assert torch.equal(rewired(IDS[None]), _by_hand(rewired))


def _by_hand(decoder: Decoder) -> torch.Tensor:
    first = decoder.wiring.order is Order.ATTENTION_FIRST
    stream = [decoder.embed_tokens(IDS[None])]
    rope = Rope(torch.arange(len(IDS)), decoder.config, torch.float32)
    for index, layer in enumerate(decoder.layers):
        for half in ("attention", "ffn") if first else ("ffn", "attention"):
            if half == "ffn":
                stream.append(stream[-1] + layer.feed(stream[-1]))
                continue
            now, held = len(stream) - 1, index == 2
            q = stream[now if held else max(now - 3, 0)]
            k = stream[now if held else max(now - 1, 0)]
            stream.append(stream[-1] + layer.attend(q, k, stream[now], rope))
    return decoder.readout(stream[-1])


def test_only_what_a_wiring_moves_is_moved() -> None:
    assert Wiring().moved_layers(5) == ()
    assert wiring("shifted").moved_layers(5) == (1, 2, 3, 4)
    assert wiring("early_q").moved_layers(3) == (0, 1, 2)
    assert Wiring(query=3, held_out=(1,)).moved_layers(4) == (2, 3)
    assert Wiring(query=EMBEDDING).states(3) == (0, 6, 6)


def test_a_wiring_survives_json_and_a_broken_one_is_named() -> None:
    for arm in ARMS:
        assert Wiring.from_json(wiring(arm).to_json()) == wiring(arm)
    good = wiring("shifted").to_json()
    with pytest.raises(WiringError, match="query = -1"):
        Wiring.from_json(good | {"query": -1})
    with pytest.raises(WiringError, match="unknown: depth"):
        Wiring.from_json(good | {"depth": 1})
    with pytest.raises(WiringError, match="sideways"):
        Wiring.from_json(good | {"order": "sideways"})
    with pytest.raises(WiringError, match="feed-forward-first"):
        inner_stack(Decoder(GROUPED, Wiring(query=3)))
    with pytest.raises(WiringError, match="layer 9"):
        Decoder(GROUPED, Wiring(query=1, held_out=(9,)))
