"""This machine's CPU as a hardware profile, by a half-second measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from afd.plan.hardware import Hardware

TRIES = 3


def best_seconds(work: Callable[[], object], tries: int = TRIES) -> float:
    """The fastest of a few runs of ``work()``."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def free_memory_bytes() -> float:
    """Memory this process could still take."""
    return float(psutil.virtual_memory().available)


def measure_cpu() -> Hardware:
    """One core's share of this machine: a rank is a core, and ranks share memory and bandwidth.

    Copies 64 MB on every core at once for bandwidth, multiplies float32 matrices on one core.
    """
    cores = len(os.sched_getaffinity(0))
    source = np.ones((cores, 1 << 23), dtype=np.float32)
    target = np.empty_like(source)
    with ThreadPoolExecutor(cores) as pool:
        copy_s = best_seconds(lambda: list(pool.map(np.copyto, target, source)))
    matrix = np.ones((768, 768), dtype=np.float32)
    before = time.process_time()
    gemm_s = best_seconds(lambda: matrix @ matrix)
    busy = max(1.0, (time.process_time() - before) / (TRIES * gemm_s))
    bandwidth = 2 * source.nbytes / copy_s / cores
    flops = 2 * 768**3 / gemm_s / min(busy, cores)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        name="this CPU (measured)",
        memory_bytes=memory / cores,
        memory_bytes_per_s=bandwidth,
        fp8_flops_per_s=flops,
        bf16_flops_per_s=flops,
        link_bytes_per_s=bandwidth / 2,
        link_latency_us=5.0,
        gpus_per_node=1,
        max_gpus=max(2, cores),
        processors=1,
        boundary_processors=0,
        note=f"one of {cores} cores; memory copy and float32 GEMM measured now",
        calibration="cpu",
    )
