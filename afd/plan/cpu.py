"""This machine's CPU as a hardware profile, by a half-second measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from afd.plan.hardware import Hardware


def best_seconds(work: Callable[[], object], tries: int = 3) -> float:
    """The fastest of a few runs of ``work()``."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def measure_cpu() -> Hardware:
    """Reads and writes 128 MB for bandwidth, multiplies 1024² float32 matrices for FLOPs."""
    source = np.ones(1 << 24, dtype=np.float32)
    target = np.empty_like(source)
    copy_s = best_seconds(lambda: np.copyto(target, source))
    matrix = np.ones((1024, 1024), dtype=np.float32)
    gemm_s = best_seconds(lambda: matrix @ matrix)
    bandwidth = 2 * source.nbytes / copy_s
    flops = 2 * 1024**3 / gemm_s
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        name="this CPU (measured)",
        memory_bytes=float(memory),
        memory_bytes_per_s=bandwidth,
        fp8_flops_per_s=flops,
        bf16_flops_per_s=flops,
        link_bytes_per_s=bandwidth / 2,
        link_latency_us=5.0,
        gpus_per_node=1,
        max_gpus=max(2, cores),
        processors=cores,
        boundary_processors=0,
        note=f"{cores} cores; memory copy and float32 GEMM measured now; ranks share the machine",
    )
