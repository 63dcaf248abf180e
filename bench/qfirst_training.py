"""What a training step of `afd-qfirst convert` is made of, by dtype and attention backend.

    python bench/qfirst_training.py

CPU time of one thread, so that other load on the machine counts little. Shapes are those of
SmolLM2-135M at two windows of 512 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from afd.qfirst.repair.attention import Backend, attend

REPEATS = 20


def cpu_seconds(work: Callable[[], object]) -> float:
    """Mean of REPEATS calls after one that is not counted."""
    work()
    began = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - began) / REPEATS


def product(dtype: torch.dtype) -> float:
    """GFLOP/s of one feed-forward projection."""
    x, weight = torch.randn(1024, 576).to(dtype), torch.randn(1536, 576).to(dtype)
    return 2e-9 * 1024 * 576 * 1536 / cpu_seconds(lambda: functional.linear(x, weight))


def attention(dtype: torch.dtype, backend: Backend) -> float:
    """Milliseconds of a layer's attention, forward and backward."""
    q, k, v = (
        torch.randn(2, heads, 512, 64).to(dtype).requires_grad_() for heads in (9, 3, 3)
    )  # fmt: skip
    return 1e3 * cpu_seconds(lambda: attend(q, k, v, backend).sum().backward())


def main() -> None:
    """Prints one line a dtype."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        times = ", ".join(f"{b} {attention(dtype, b):.1f} ms" for b in Backend)
        print(f"{dtype}: products {product(dtype):.0f} GFLOP/s; attention {times}")


if __name__ == "__main__":
    main()
