"""How concentrated a layer's projections are, and what their weak directions are worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from afd.qfirst.block import Decoder

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Spectrum:
    """One projection [out, hidden] of one layer.

    ``stable_rank``: squared Frobenius norm over squared spectral norm; ``directions_99``: singular
    values that hold 99 % of the energy.
    """

    layer: int
    projection: str
    stable_rank: float
    directions_99: int


def weight_of(decoder: Decoder, layer: int, projection: str) -> torch.Tensor:
    """The matrix, float32."""
    weight: torch.Tensor = getattr(decoder.layers[layer].self_attn, projection).weight
    return weight.detach().float()


def spectra(decoder: Decoder) -> list[Spectrum]:
    """Every layer's W_q, W_k and W_v."""
    made = []
    for layer in range(decoder.config.layers):
        for projection in PROJECTIONS:
            energy = torch.linalg.svdvals(weight_of(decoder, layer, projection)).square()
            held = energy.cumsum(0) / energy.sum()
            made.append(
                Spectrum(
                    layer, projection, float(energy.sum() / energy[0]), int((held < 0.99).sum()) + 1
                )
            )
    return made


def overlap(decoder: Decoder, layer: int, of: str, inside: str, rank: int) -> tuple[float, float]:
    """Share of ``of``'s energy in the ``rank`` strongest input directions of ``inside``, and the
    share that a subspace of that dimension holds by chance."""
    basis = torch.linalg.svd(weight_of(decoder, layer, inside), full_matrices=False).Vh[:rank]
    matrix = weight_of(decoder, layer, of)
    within = (matrix @ basis.T).square().sum() / matrix.square().sum()
    return float(within), len(basis) / matrix.shape[1]


def truncated(decoder: Decoder, projections: tuple[str, ...], rank: int) -> Decoder:
    """A decoder whose named projections keep their ``rank`` strongest directions; other weights
    are shared."""
    cut = decoder.rewired(decoder.wiring)
    for index, layer in enumerate(cut.layers):
        for projection in projections:
            u, s, vh = torch.linalg.svd(weight_of(decoder, index, projection), full_matrices=False)
            product = (u[:, :rank] * s[:rank]) @ vh[:rank]
            linear = getattr(layer.self_attn, projection)
            linear.weight = nn.Parameter(product.to(linear.weight.dtype), requires_grad=False)
    return cut
