"""Gives attention the QK-norm that Qwen3 and MiniMax-M2 have and Llama has not.

QK-norm divides a query or key by its own length, and with the length it takes the sharpness of
attention. So every head gets companion dimensions that make the length constant:

    q' = [ q | S a.x ... S a.x ]     a.x is nearly 1 for every token x, and S |a.x| >> |q|
    |q'| is nearly constant, so dividing by it is a fixed factor, which the norm's weight undoes;
    the norm's weight is 0 on the companions, so they never reach a dot product.

Nothing is trained. Values and the output projection get zeros in the new dimensions.
Rotation pairs dimension i with i + d/2 at frequency theta ** (-2i/d). With d widened to D and theta
raised to theta ** (D/d), pair i of D turns exactly as pair i of d did; where a model can rotate
part of a head, the companions simply come last, unrotated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from afd.tools.dense_model import DenseShape

# Companions this much longer than the vector leave under 0.1 % of its length's variation.
_COMPANION_RATIO = 24.0
_COMPANION_SHARE = 4


class QkNormKind(Enum):
    """What is normalised together."""

    NONE = "none"
    PER_HEAD = "per_head"
    FULL_WIDTH = "full_width"


@dataclass(frozen=True)
class HeadLayout:
    """Where a head's old dimensions (``kept``) and its companions go, as index tensors."""

    width: int
    rotary: int
    rope_theta: float
    kept: torch.Tensor
    companions: torch.Tensor


def head_layout(shape: DenseShape, kind: QkNormKind) -> HeadLayout:
    """The widened head: a quarter more dimensions, an even number of them."""
    d = shape.head_dim
    if kind is QkNormKind.NONE:
        return HeadLayout(d, d, shape.rope_theta, torch.arange(d), torch.arange(0))
    width = d + 2 * max(1, d // (2 * _COMPANION_SHARE))
    if kind is QkNormKind.FULL_WIDTH:
        return HeadLayout(width, d, shape.rope_theta, torch.arange(d), torch.arange(d, width))
    low = torch.arange(width // 2)
    kept = low < d // 2
    return HeadLayout(
        width=width,
        rotary=width,
        rope_theta=shape.rope_theta ** (width / d),
        kept=torch.cat([low[kept], low[kept] + width // 2]),
        companions=torch.cat([low[~kept], low[~kept] + width // 2]),
    )


def widen_query_or_key(
    weight: torch.Tensor,
    heads: int,
    layout: HeadLayout,
    kind: QkNormKind,
    inputs: torch.Tensor,
    constant: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(projection, norm weight) that give after QK-norm what ``weight`` gives without.

    ``weight``: [heads * d, hidden]; ``inputs``: [tokens, hidden], which the projection reads;
    ``constant``: [hidden], see ``constant_functional``. The factor (D/d) ** 1/4 makes up for the
    softmax's 1 / sqrt(D).
    """
    d = len(layout.kept)
    power = (inputs @ weight.T).view(-1, heads, d).square().sum(-1)
    scale = _COMPANION_RATIO * power.mean(0).max().sqrt()
    wide = torch.zeros(heads, layout.width, weight.shape[1])
    wide[:, layout.kept] = weight.view(heads, d, -1)
    wide[:, layout.companions] = scale * _companion_sizes(len(layout.companions)) * constant
    # Over the full width, heads share one length; per head, the common weight serves the mean.
    typical = ((power.mean() + scale**2) / layout.width).sqrt()
    norm = torch.zeros(layout.width)
    norm[layout.kept] = typical * (layout.width / d) ** 0.25
    if kind is QkNormKind.FULL_WIDTH:
        norm = norm.repeat(heads)
    return wide.flatten(0, 1), norm


def _companion_sizes(count: int) -> torch.Tensor:
    # All copies of one row would round alike in bfloat16 and FP8; unequal ones round apart, and the
    # errors of their squares' sum cancel. Shape [count, 1], the squares sum to 1.
    sizes = 2.0 ** (torch.arange(count) / count)
    return (sizes / sizes.norm())[:, None]


def widen_value(weight: torch.Tensor, heads: int, layout: HeadLayout) -> torch.Tensor:
    """The value projection [heads * d, hidden] with zero rows for the companions."""
    wide = torch.zeros(heads, layout.width, weight.shape[1])
    wide[:, layout.kept] = weight.view(heads, len(layout.kept), -1)
    return wide.flatten(0, 1)


def widen_output(weight: torch.Tensor, heads: int, layout: HeadLayout) -> torch.Tensor:
    """The output projection [hidden, heads * d] with zero columns for the companions."""
    wide = torch.zeros(weight.shape[0], heads, layout.width)
    wide[:, :, layout.kept] = weight.view(-1, heads, len(layout.kept))
    return wide.flatten(1, 2)
