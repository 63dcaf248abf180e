"""What training and scoring run equals the decoder, and the loss's own gradient is autograd's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from afd.qfirst.block import Decoder
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.forward import mean_loss, states, window_losses
from afd.qfirst.wiring import FAMILY_A, FAMILY_B, Wiring, wiring

BACKENDS = list(Backend)


def ids_of(decoder: Decoder, length: int = 150) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(decoder.config.vocab, (2, length), generator=generator)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arm", [*FAMILY_A, *FAMILY_B])
def test_every_wiring_runs_as_the_decoder_does(
    decoder: Decoder, arm: str, backend: Backend
) -> None:
    """150 positions: more than one block of rows of the products."""
    rewired = decoder.rewired(wiring(arm))
    ids = ids_of(decoder)
    with torch.no_grad():
        ours = states(rewired, ids, backend)
        theirs = rewired.states(rewired.embed_tokens(ids))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_wiring_that_moves_nothing_gives_the_same_bits(
    decoder: Decoder, backend: Backend, dtype: torch.dtype
) -> None:
    decoder.to(dtype)
    every = tuple(range(decoder.config.layers))
    untouched = decoder.rewired(Wiring(query=1, held_out=every))
    moved = decoder.rewired(Wiring(query=1))
    ids = ids_of(decoder)
    with torch.no_grad():
        plain, same, other = (
            d.readout(states(d, ids, backend)[-1]) for d in (decoder, untouched, moved)
        )
    assert torch.equal(plain, same)
    assert not torch.allclose(plain.float(), other.float(), atol=0.1)


def test_the_frozen_readouts_gradient_is_autograds(decoder: Decoder) -> None:
    ids = ids_of(decoder)
    weight = decoder.layers[0].self_attn.q_proj.weight
    loss = mean_loss(decoder, ids, Backend.PRODUCTS)
    (ours,) = torch.autograd.grad(loss, weight)
    logits = decoder(ids)[:, :-1].flatten(0, 1)
    plain = functional.cross_entropy(logits, ids[:, 1:].flatten())
    (theirs,) = torch.autograd.grad(plain, weight)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=1e-5)
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6)
    summed = window_losses(decoder, ids, Backend.FUSED)
    assert float(summed.sum()) / (2 * 149) == pytest.approx(float(plain.detach()), rel=1e-5)
