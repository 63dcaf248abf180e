"""Routers that pick exactly one copy of each slice, by the data, unevenly, with equal weights.

Two copies: their rows are +r and -r. The one with the positive logit wins; every winner is above
zero and every loser below, so top-k takes the winner of each pair, and a slice with one copy (a
zero row) sits between. |r.x| is kept so small that softmax or sigmoid give all winners the same
weight to within bfloat16's precision. Signs are exact in any precision, so rounding mixes no pairs.

More copies: slices share one scalar t = r.x, cut into bins. Copy j's logit is the j-th tangent of a
convex function of t, so copy j is on top in bin j, the same bin for all slices; winners tie, which
makes their weights equal, and losers lie below. Each slice has its own order of copies.

How often each copy wins is set from calibration: shares are deliberately unequal.
"""

from __future__ import annotations

import torch

from afd.tools.experts import ExpertPlan

# Mean and greatest |logit| of a pair: a weight is off by this share of itself at most.
_PAIR_SPREAD = 2.0**-9
_PAIR_LIMIT = 2.0**-6
_SMALLEST_SHARE = 0.15


def router_rows(
    plan: ExpertPlan,
    inputs: torch.Tensor,
    constant: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Router weight, bfloat16 [experts, hidden], experts of a slice consecutive.

    ``inputs``: float32 [tokens, hidden], what the router reads; ``constant``: [hidden], see
    ``constant_functional``.
    """
    if max(plan.copies) <= 2:
        rows = _pairs(plan, inputs, constant, generator)
    else:
        rows = _tangents(plan, inputs, constant, generator)
    return rows.to(torch.bfloat16)


def selection_bias(plan: ExpertPlan, generator: torch.Generator) -> torch.Tensor:
    """A bias on sigmoid scores, float32 [experts], bfloat16 values: +b and -b within a pair.

    It moves the border between the two without breaking the symmetry; more copies get zeros.
    """
    biases = []
    for count in plan.copies:
        draw = torch.randn(1, generator=generator)
        size = _PAIR_SPREAD / 16 * draw if count == 2 else torch.zeros(1)
        biases.append(torch.cat([size, -size]) if count == 2 else size.repeat(count))
    return torch.cat(biases).to(torch.bfloat16).float()


def _threshold(
    row: torch.Tensor, inputs: torch.Tensor, constant: torch.Tensor, share: float
) -> torch.Tensor:
    # row.x > threshold * constant.x for this share of the tokens; constant.x is positive.
    return torch.quantile((inputs @ row) / (inputs @ constant), 1 - share)


def _pairs(
    plan: ExpertPlan, inputs: torch.Tensor, constant: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    # torch.quantile takes at most 2 ** 24 values; a few thousand tokens settle a share.
    sample = inputs[:: max(1, len(inputs) // 8192)]
    shares = torch.linspace(_SMALLEST_SHARE, 0.5, plan.top_k)
    shares = shares[torch.randperm(plan.top_k, generator=generator)].tolist()
    rows: list[torch.Tensor] = []
    for count, share in zip(plan.copies, shares, strict=True):
        row = torch.randn(inputs.shape[1], generator=generator)
        if count == 1:
            rows.append(torch.zeros_like(row))
            continue
        row -= _threshold(row, sample, constant, share) * constant
        logits = (inputs @ row).abs()
        row *= torch.minimum(_PAIR_SPREAD / logits.mean(), _PAIR_LIMIT / logits.max())
        rows += [row, -row]
    return torch.stack(rows)


def _tangents(
    plan: ExpertPlan, inputs: torch.Tensor, constant: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    count = plan.copies[0]
    sample = inputs[:: max(1, len(inputs) // 8192)]
    row = torch.randn(inputs.shape[1], generator=generator)
    row -= (sample @ row).mean() * constant
    row /= (sample @ row).std()
    weights = torch.linspace(1.0, 2.0, count)
    above = 1 - (weights / weights.sum()).cumsum(0)[:-1]
    borders = torch.stack([_threshold(row, sample, constant, s) for s in above.tolist()])
    slopes = torch.arange(count) - (count - 1) / 2
    # Adjacent tangents have slopes one apart and meet at the border, so offsets add borders up.
    offsets = torch.cat([torch.zeros(1), borders.cumsum(0)])
    # A common offset changes no choice; centred at the borders, rounding there is finest.
    offsets += (slopes[:-1] * borders - offsets[:-1]).mean()
    tangents = slopes[:, None] * row - offsets[:, None] * constant
    orders = [torch.randperm(count, generator=generator) for _ in plan.copies]
    return torch.cat([tangents[order] for order in orders])
