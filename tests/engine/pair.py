"""One attention worker and its FFN workers in this process, for tests that look inside."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Domain
from afd.boundary.open import boundary_layout
from afd.config import BoundaryConfig, Dtype, Topology, WireScales, WireType, WorkerConfig
from afd.models.registry import load_model_config
from afd.worker.attention import AttentionWorker
from afd.worker.ffn import FfnWorker
from afd_sched.ints import pack_int32
from afd_sched.messages import Admit, FfnStep, StepPlan

_MAX_ROWS = 128


class Pair:
    """Feeds prompts through real workers over real symmetric memory."""

    def __init__(self, attention: AttentionWorker, ffns: list[FfnWorker]) -> None:
        self.attention = attention
        self.ffns = ffns

    def logits(self, prompt: list[int]) -> NDArray[np.float32]:
        """[vocab] after a prompt, in one chunk over two lanes."""
        pages = [(0, page) for page in range(len(prompt) // 4 + 1)]
        plan = StepPlan(
            step=0,
            lanes=2,
            admitted=(Admit(0, 0, pack_int32(prompt), 0.0, 1.0, -1, 0),),
            pages=pack_int32(pages),
            extend=pack_int32([(0, len(prompt))]),
        )
        step = FfnStep(0, 2, pack_int32([0]))
        serving = [threading.Thread(target=ffn.step, args=(step,)) for ffn in self.ffns]
        for thread in serving:
            thread.start()
        batch = self.attention.table.apply(plan)
        logits = self.attention.runner.forward(0, 2, batch)[0].copy()
        for thread in serving:
            thread.join()
        return logits


@contextmanager
def pair(
    path: Path,
    wire: WireType,
    dtype: Dtype = Dtype.FLOAT32,
    ffn_ranks: int = 1,
    wire_scales: WireScales = WireScales.FP32_128,
) -> Iterator[Pair]:
    """Fresh workers on a checkpoint."""
    model = load_model_config(path)
    topology = Topology(attention_nodes=1, ffn_nodes=ffn_ranks, workers_per_node=1)
    boundary = BoundaryConfig(
        wire=wire,
        wire_scales=wire_scales,
        num_lanes=2,
        max_lane_tokens=_MAX_ROWS,
        deadline_ms=20_000,
    )
    layout = boundary_layout(model, boundary, topology)
    fd = os.memfd_create("afd-test")
    os.ftruncate(fd, layout.total_bytes)
    domain = Domain(fd, layout, create=True)

    def config(rank: int) -> WorkerConfig:
        return WorkerConfig(
            rank=rank,
            topology=topology,
            boundary=boundary,
            model=model,
            model_path=str(path),
            dtype=dtype,
            max_running_requests=2,
            max_rows=_MAX_ROWS,
            context_length=_MAX_ROWS,
            page_size=4,
            kv_tokens=_MAX_ROWS,
            mem_fraction=0.5,
            threads=1,
            endpoint="",
            memory_fd=fd,
            lifeline_fd=-1,
            log_level="warning",
        )

    try:
        ffns = [FfnWorker(config(1 + f)) for f in range(ffn_ranks)]
        yield Pair(AttentionWorker(config(0)), ffns)
    finally:
        domain.close()
        os.close(fd)
