"""A start in closed form: the early query that is nearest to the one the layer used to have.

The converted query reads h where the layer read x. Of all linear maps of its own normalised input,
W' = W C A^-1 with A = sum n(h) n(h)^T and C = sum n(x) n(h)^T loses least of W n(x) in squares over
the calibration text. (Q-First, Section 6: what the residue is that no linear map repairs.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from afd.qfirst.block import Decoder
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.forward import states
from afd.qfirst.wiring import Wiring
from afd.tools.stages import Advance

# Share of the mean square that pulls a direction which the text hardly visits to the old weight.
_RIDGE = 1e-3


def fitted_queries(
    decoder: Decoder, wiring: Wiring, data: Windows, backend: Backend, advance: Advance
) -> Mapping[str, torch.Tensor]:
    """New query weights by name, for every layer whose query ``wiring`` moves.

    ``decoder`` has its own wiring, whose streams are what both reads are measured on.
    """
    layers = wiring.moved_layers(decoder.config.layers)
    width = decoder.config.hidden
    early_squares = {n: torch.zeros(width, width) for n in layers}
    products = {n: torch.zeros(width, width) for n in layers}
    with torch.no_grad():
        for ids in data.ids:
            points = states(decoder, ids[None], backend)
            for n in layers:
                norm = decoder.layers[n].input_layernorm
                early = norm(points[wiring.states(n)[0]])[0].float()
                late = norm(points[decoder.wiring.states(n)[0]])[0].float()
                early_squares[n].addmm_(early.T, early)
                products[n].addmm_(late.T, early)
            advance()
    return {
        f"layers.{n}.self_attn.q_proj.weight": _solve(
            decoder.layers[n].self_attn.q_proj.weight, early_squares[n], products[n]
        )
        for n in layers
    }


def _solve(
    weight: torch.Tensor, early_squares: torch.Tensor, products: torch.Tensor
) -> torch.Tensor:
    squares, mixed = early_squares.double(), products.double()
    ridge = _RIDGE * squares.diagonal().mean()
    squares.diagonal().add_(ridge)
    mixed.diagonal().add_(ridge)
    # squares is symmetric: mixed @ squares^-1 = (squares^-1 @ mixed^T)^T.
    passage = torch.linalg.solve(squares, mixed.T).T
    return (weight.detach().double() @ passage).to(weight.dtype)
