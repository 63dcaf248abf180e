"""The boundary through symmetric buffers: the extension's two sides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Experts, FfnSide
from afd_sched.messages import FfnStep

# The attention side is the extension's AttentionSide itself, which has AttentionPort's methods.


class MegamoeFfnPort:
    """An FfnPort over the extension's persistent loop."""

    def __init__(self, side: FfnSide, experts: Experts) -> None:
        self._side = side
        self._experts = experts

    def load_expert(
        self, layer: int, expert: int, gate: NDArray[Any], up: NDArray[Any], down: NDArray[Any]
    ) -> None:
        """See FfnPort.load_expert."""
        self._experts.load(layer, expert, gate, up, down)

    def serve(self, step: FfnStep) -> None:
        """See FfnPort.serve; raises the extension's Aborted or Deadline."""
        ranks = np.frombuffer(step.attention_ranks, np.int32)
        self._side.serve(step.step, step.lanes, ranks)

    @property
    def wait_ns(self) -> int:
        """See FfnPort.wait_ns."""
        return self._side.wait_ns
