"""No boundary: the experts live on the attention worker. The comparison's baseline (``--n 0``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Experts, Pool


class ColocatedPort:
    """An AttentionPort that computes in combine what dispatch was given."""

    wait_ns = 0
    bytes_out = 0
    bytes_back = 0

    def __init__(self, experts: Experts, pool: Pool) -> None:
        self._experts = experts
        self._pool = pool
        self._away: dict[
            int, tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]
        ] = {}

    def dispatch(
        self,
        step: int,
        layer: int,
        lane: int,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """See AttentionPort.dispatch."""
        self._away[lane] = (x, ids, weights)

    def combine(self, step: int, layer: int, lane: int, out: NDArray[np.float32]) -> None:
        """See AttentionPort.combine."""
        x, ids, weights = self._away.pop(lane)
        self._experts.forward(self._pool, layer, x, ids, weights, out)
