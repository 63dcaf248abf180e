"""Cuts a dense feed-forward into experts whose routed sum is the dense function.

A SwiGLU layer is a sum over its inner dimension. Cut that into K slices, multiply each slice's
down projection by K, and K experts with weights 1/K give the layer back. So top-k is the number of
slices, and further experts are copies; the router picks exactly one copy of each slice, see
``router``. With E experts:

    K <= E <= 2K    E - K slices have two copies, the others one
    E = gK, g > 2   every slice has g copies
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from afd.tools.errors import UpcycleError


@dataclass(frozen=True)
class ExpertPlan:
    """``copies[s]`` is how many experts hold slice s; experts of a slice are consecutive."""

    copies: tuple[int, ...]

    @property
    def top_k(self) -> int:
        """Experts that a token visits: one per slice."""
        return len(self.copies)

    @property
    def experts(self) -> int:
        """All experts of a layer."""
        return sum(self.copies)

    @property
    def slice_of(self) -> tuple[int, ...]:
        """The slice of each expert, before they are shuffled."""
        return tuple(s for s, count in enumerate(self.copies) for _ in range(count))


def plan_experts(experts: int, top_k: int, ffn: int) -> ExpertPlan:
    """Decides the copies; raises UpcycleError for a combination that the scheme has not."""
    if top_k < 1 or ffn % top_k:
        divisors = [k for k in range(1, min(ffn, 64) + 1) if ffn % k == 0]
        raise UpcycleError(
            f"--top-k {top_k} does not divide the feed-forward width {ffn}, and top-k is the "
            f"number of slices it is cut into; choose one of {', '.join(map(str, divisors))}"
        )
    if experts < top_k:
        raise UpcycleError(f"--experts {experts} is fewer than --top-k {top_k}; choose more")
    if experts <= 2 * top_k:
        paired = experts - top_k
        return ExpertPlan((2,) * paired + (1,) * (top_k - paired))
    if experts % top_k:
        raise UpcycleError(
            f"--experts {experts} above twice --top-k {top_k} must be a multiple of it, so that "
            f"every slice has as many copies; choose {experts // top_k * top_k} or "
            f"{(experts // top_k + 1) * top_k}"
        )
    return ExpertPlan((experts // top_k,) * top_k)


def cut(
    gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, top_k: int, index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slice ``index``: (gate, up) rows of [ffn, hidden], and ``top_k`` times the down columns."""
    width = gate.shape[0] // top_k
    rows = slice(index * width, (index + 1) * width)
    return gate[rows], up[rows], down[:, rows] * top_k
