"""The attention worker: holds requests' KV and everything but the experts; runs planned steps."""

from __future__ import annotations

import time
from pathlib import Path

from afd._megamoe import Pool
from afd.boundary.experts import weight_type
from afd.boundary.open import open_attention_port
from afd.boundary.ports import AttentionPort
from afd.checkpoint import Checkpoint
from afd.config import WorkerConfig
from afd.models.decoder import Decoder
from afd.models.registry import family_of
from afd.models.weights import load_attention_weights
from afd.worker.kv import allocate_kv
from afd.worker.runner import Runner
from afd_sched.messages import StepPlan, StepResult
from afd_sched.replica import SlotTable
from afd_sched.spans import Recorder


class AttentionWorker:
    """``step`` turns a plan into sampled tokens with ``table`` and ``runner``; ``pages`` is the KV
    capacity."""

    def __init__(self, config: WorkerConfig, recorder: Recorder | None = None) -> None:
        """Loads weights; raises AfdError or the extension's HandshakeError."""
        model = config.model
        family = family_of(model.architecture)
        checkpoint = Checkpoint(Path(config.model_path), model.fp8_block)
        pool = Pool(config.threads)
        weights = load_attention_weights(checkpoint, model, family, weight_type(config.dtype))
        self._port: AttentionPort = open_attention_port(config, family, checkpoint, pool)
        cache, self.pages = allocate_kv(config)
        decoding = (model, family, weights, cache, pool, config.context_length)
        running = (config.max_rows, config.page_size)
        if recorder is None:
            decoder = Decoder(*decoding)
            self.runner = Runner(model, decoder, self._port, *running)
        else:
            from afd.worker.watched import WatchedDecoder, WatchedPort, WatchedRunner

            decoder = WatchedDecoder(recorder, *decoding)
            self._port = WatchedPort(self._port, recorder)
            self.runner = WatchedRunner(recorder, model, decoder, self._port, *running)
        self.table = SlotTable(
            slots=config.max_running_requests,
            pages_per_slot=-(-config.context_length // config.page_size),
        )
        self._rank = config.rank
        self.tensors_read = frozenset(checkpoint.read)

    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step; raises the extension's Aborted or Deadline."""
        start_ns = time.monotonic_ns()
        before = (self._port.wait_ns, self._port.bytes_out, self._port.bytes_back)
        batch = self.table.apply(plan)
        logits = self.runner.forward(plan.step, plan.lanes, batch)
        tokens = self.runner.sample(logits, batch)
        self.table.record(tokens)
        waited_ns = self._port.wait_ns - before[0]
        return StepResult(
            step=plan.step,
            rank=self._rank,
            tokens=tokens.tobytes(),
            busy_us=(time.monotonic_ns() - start_ns - waited_ns) // 1000,
            wait_us=waited_ns // 1000,
            bytes_out=self._port.bytes_out - before[1],
            bytes_back=self._port.bytes_back - before[2],
        )
