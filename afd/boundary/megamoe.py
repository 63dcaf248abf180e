"""The boundary through symmetric buffers: the extension's two sides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import FfnSide
from afd_sched.messages import FfnStep

# The attention side is the extension's AttentionSide itself, which has AttentionPort's methods.


class MegamoeFfnPort:
    """An FfnPort over the extension's persistent loop."""

    def __init__(self, side: FfnSide, expert_bytes: int) -> None:
        """``expert_bytes``: memory of the packed experts."""
        self._side = side
        self.expert_bytes = expert_bytes

    def serve(self, step: FfnStep) -> None:
        """See FfnPort.serve; raises the extension's Aborted or Deadline."""
        ranks = np.frombuffer(step.attention_ranks, np.int32)
        self._side.serve(step.step, step.lanes, ranks)

    def serve_watched(self, step: FfnStep) -> NDArray[np.int64]:
        """``serve``, and where the time went; see FfnSide.serve_watched."""
        ranks = np.frombuffer(step.attention_ranks, np.int32)
        return self._side.serve_watched(step.step, step.lanes, ranks)

    @property
    def wait_ns(self) -> int:
        """See FfnPort.wait_ns."""
        return self._side.wait_ns
