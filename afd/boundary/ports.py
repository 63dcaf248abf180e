"""The two sides of the boundary as the engine sees them; nothing else asks what is behind."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from afd_sched.messages import FfnStep


class AttentionPort(Protocol):
    """Sends routed tokens to the experts and brings their weighted sum back.

    ``layer`` counts MoE layers only. On one (layer, lane) combine follows dispatch; the arrays
    given to dispatch stay untouched until then.
    """

    def dispatch(
        self,
        step: int,
        layer: int,
        lane: int,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """Publishes x [n, hidden] with ids and weights [n, top_k]; returns at once."""
        ...

    def combine(self, step: int, layer: int, lane: int, out: NDArray[np.float32]) -> None:
        """Waits, then out[n, hidden] = weighted sum over each token's experts."""
        ...

    @property
    def wait_ns(self) -> int:
        """Time spent waiting in combine since start, nanoseconds."""
        ...

    @property
    def bytes_out(self) -> int:
        """Bytes published since start."""
        ...

    @property
    def bytes_back(self) -> int:
        """Bytes of returned rows read since start."""
        ...


class FfnPort(Protocol):
    """Serves the experts of one FFN rank."""

    def serve(self, step: FfnStep) -> None:
        """Every MoE layer and lane of one step; returns when all rows are written back."""
        ...

    @property
    def wait_ns(self) -> int:
        """Time spent waiting for attention ranks since start, nanoseconds."""
        ...
