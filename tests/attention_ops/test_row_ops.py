"""Norms, rotation and activation against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from afd import _megamoe as ops
from tests.attention_ops.arrays import normal, strided

WIDTHS = [1, 3, 16, 31, 64, 100, 576, 2049]


def norm64(x, weight, eps):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def close(actual, expected, relative=2e-6):
    scale = np.abs(expected) + np.abs(expected).max(initial=0.0) * 1e-3
    assert np.all(np.abs(actual - expected) <= relative * scale + 1e-30)


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(level, width, rng):
    for n, magnitude in ((0, 1.0), (1, 1e-4), (7, 1.0), (40, 1e4)):
        x = strided(normal(rng, n, width) * np.float32(magnitude))
        weight = normal(rng, width)
        out = strided(np.zeros((n, width), np.float32))
        ops.rms_norm(x, weight, 1e-6, out)
        close(out, norm64(x, weight, 1e-6))
        ops.rms_norm(x, weight, 1e-6, x)
        assert np.array_equal(x, out)
        assert np.isnan(x.base[:, :2]).all() and np.isnan(x.base[:, 2 + width :]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm(level, width, rng):
    residual, delta = normal(rng, 9, width), strided(normal(rng, 9, width))
    weight, out = normal(rng, width), np.zeros((9, width), np.float32)
    total = residual + delta
    ops.add_rms_norm(residual, delta, weight, 1e-5, out)
    assert np.array_equal(residual, total)
    close(out, norm64(total, weight, 1e-5))
    again = np.zeros_like(out)
    ops.rms_norm(total, weight, 1e-5, again)
    assert np.array_equal(out, again)


def test_rms_norm_tracks_torch(level, rng):
    x, weight = normal(rng, 64, 576) * np.float32(3.0), normal(rng, 576)
    t = torch.from_numpy(x)
    expected = torch.from_numpy(weight) * (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6))
    out = np.zeros_like(x)
    ops.rms_norm(x, weight, 1e-6, out)
    assert np.allclose(out, expected.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", [2, 16, 40, 64, 72, 128])
def test_head_norm(level, head_dim, rng):
    for heads in (1, 3):
        x = strided(normal(rng, 11, heads * head_dim))
        weight = normal(rng, head_dim)
        expected = norm64(x.reshape(11, heads, head_dim), weight, 1e-6).reshape(11, -1)
        ops.head_norm(x, weight, 1e-6)
        close(x, expected)


@pytest.mark.parametrize(
    ("head_dim", "rotary"), [(2, 2), (16, 8), (40, 40), (64, 64), (72, 36), (128, 64), (128, 2)]
)
def test_rope(level, head_dim, rotary, rng):
    heads, n, half = 3, 13, rotary // 2
    x = strided(normal(rng, n, heads * head_dim))
    angles = rng.uniform(0, 6, (50, half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = rng.integers(0, 50, n).astype(np.int32)
    expected = x.reshape(n, heads, head_dim).astype(np.float64)
    c = cos[positions][:, None].astype(np.float64)
    s = sin[positions][:, None].astype(np.float64)
    a, b = expected[..., :half].copy(), expected[..., half:rotary].copy()
    expected[..., :half] = a * c - b * s
    expected[..., half:rotary] = b * c + a * s
    ops.rope(x, positions, cos, sin, head_dim)
    assert np.allclose(x.reshape(n, heads, head_dim), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"positions holds 50 at 2, outside the table's \[0, 50\)"):
        ops.rope(x, np.where(np.arange(n) == 2, 50, 0).astype(np.int32), cos, sin, head_dim)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(level, width, rng):
    gate_up = strided(normal(rng, 5, 2 * width) * np.float32(8.0))
    gate_up[0, 0] = 0.0
    gate_up[1, 0] = 88.0
    gate_up[2, 0] = -88.0
    gate_up[3, 0] = -200.0
    out = strided(np.zeros((5, width), np.float32))
    ops.silu_mul(gate_up, out)
    gate, up = gate_up[:, :width].astype(np.float64), gate_up[:, width:].astype(np.float64)
    expected = gate / (1.0 + np.exp(-gate)) * up
    assert np.all(np.abs(out - expected) <= 5e-7 * np.abs(expected) + 1e-36)


def test_silu_mul_passes_nan_on(level):
    gate_up = np.ones((1, 40), np.float32)
    gate_up[0, 3] = np.nan
    out = np.zeros((1, 20), np.float32)
    ops.silu_mul(gate_up, out)
    assert np.isnan(out[0]).nonzero()[0].tolist() == [3]


def test_errors_name_the_argument():
    x, weight = np.zeros((2, 6), np.float32), np.zeros(6, np.float32)
    with pytest.raises(ValueError, match="weight must be float32, is float64"):
        ops.rms_norm(x, weight.astype(np.float64), 1e-6, x)
    with pytest.raises(ValueError, match="delta must have size 2 along axis 0, has 1"):
        ops.add_rms_norm(x, x[:1], weight, 1e-6, x)
    with pytest.raises(ValueError, match="x has rows of 6 elements, not a multiple of"):
        ops.head_norm(x, np.zeros(4, np.float32), 1e-6)
    table = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match="cos rotates 4 elements of heads that have 3"):
        ops.rope(x, np.zeros(2, np.int32), table, table, 3)
    with pytest.raises(ValueError, match="gate_up must have size 4 along axis 1, has 6"):
        ops.silu_mul(x, np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="weight must be contiguous"):
        ops.rms_norm(x, np.zeros(12, np.float32)[::2], 1e-6, x)
