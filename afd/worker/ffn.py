"""The FFN worker: holds its own experts, no request state; serves whole steps."""

from __future__ import annotations

import time
from pathlib import Path

from afd._megamoe import Pool
from afd.boundary.open import open_ffn_port
from afd.boundary.ports import FfnPort
from afd.checkpoint import Checkpoint
from afd.config import WorkerConfig
from afd.models.registry import family_of
from afd_sched.messages import FfnResult, FfnStep
from afd_sched.spans import Recorder


class FfnWorker:
    """``step`` serves every MoE layer and lane of one step."""

    pages = 0

    def __init__(self, config: WorkerConfig, recorder: Recorder | None = None) -> None:
        """Loads this rank's experts; raises AfdError or the extension's HandshakeError."""
        family = family_of(config.model.architecture)
        checkpoint = Checkpoint(Path(config.model_path), config.model.fp8_block)
        port = open_ffn_port(config, family, checkpoint, Pool(config.threads))
        self._port: FfnPort = port
        if recorder is not None:
            from afd.worker.watched import WatchedFfnPort

            self._port = WatchedFfnPort(port, recorder)
        self._rank = config.rank
        self.tensors_read = frozenset(checkpoint.read)
        self.expert_bytes = port.expert_bytes

    def step(self, plan: FfnStep) -> FfnResult:
        """Serves one step; raises the extension's Aborted, Deadline or BadExpertId."""
        start_ns = time.monotonic_ns()
        before_ns = self._port.wait_ns
        self._port.serve(plan)
        waited_ns = self._port.wait_ns - before_ns
        return FfnResult(
            step=plan.step,
            rank=self._rank,
            busy_us=(time.monotonic_ns() - start_ns - waited_ns) // 1000,
            wait_us=waited_ns // 1000,
        )
