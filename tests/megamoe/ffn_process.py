"""An FFN rank as a process of its own: ``python -m tests.megamoe.ffn_process FD RANK``."""

from __future__ import annotations

import sys

import numpy as np

from afd._megamoe import Domain, FfnSide, Pool, Wire
from tests.megamoe.weights import Weights
from tests.megamoe.world import Shape, make_experts

SHAPE = Shape(attention_ranks=1, ffn_ranks=2, lanes=2, max_tokens=8, hidden=200, top_k=3,
              experts=7, moe_layers=4, wire=Wire.FP8, width=72)  # fmt: skip
STEPS = 25


def weights() -> Weights:
    """The same in every process."""
    rng = np.random.default_rng(42)
    return Weights.random(rng, SHAPE.moe_layers, SHAPE.experts, SHAPE.hidden, SHAPE.width)


def main(fd: int, rank: int) -> None:
    """Serves STEPS steps of two lanes."""
    owners = SHAPE.owners()
    experts = make_experts(SHAPE, weights(), SHAPE.held(rank))
    side = FfnSide(Domain(fd, SHAPE.layout()), rank, owners, experts, Pool(1), 30_000)
    for step in range(STEPS):
        side.serve(step, SHAPE.lanes, np.zeros(1, np.int32))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
