"""The pool under threads that are not scheduled, many pools, and misuse."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from afd import _megamoe as ops
from tests.attention_ops.arrays import normal


def test_sizes():
    assert ops.Pool(1).threads == 1
    assert ops.Pool(4).threads == 4
    for threads in (0, -1, 100000):
        with pytest.raises(ValueError, match="threads must be in"):
            ops.Pool(threads)


def test_many_pools_compute_at_once(rng):
    """Eight oversubscribed pools at a time on whatever cores there are: every product is right."""
    matrix = ops.Matrix(512, 256, ops.WeightType.FP32)
    matrix.load(0, normal(rng, 512, 256))
    x = normal(rng, 24, 256)
    expected = np.zeros((24, 512), np.float32)
    ops.linear(ops.Pool(1), x, matrix, expected)
    wrong = []

    def work() -> None:
        pool = ops.Pool(4)
        out = np.zeros_like(expected)
        for n in [24, 1, 9] * 100:
            out.fill(0.0)
            ops.linear(pool, x[:n], matrix, out[:n])
            if not np.array_equal(out[:n], expected[:n]):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_pools_come_and_go():
    for _ in range(200):
        ops.Pool(3)
