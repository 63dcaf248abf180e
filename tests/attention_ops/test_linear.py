"""Matrix and linear: packing is exact, products are right, a row does not know its batch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from afd import _megamoe as ops
from tests.attention_ops.arrays import bf16_bits, normal, round_bf16, strided

TYPES = [ops.WeightType.BF16, ops.WeightType.FP32]
SHAPES = [(1, 1), (33, 7), (96, 129), (100, 64), (200, 577), (384, 40)]


def make(rows: int, cols: int, dtype: ops.WeightType, rng: np.random.Generator):
    """A loaded matrix and the float32 values it must hold."""
    weight = normal(rng, rows, cols)
    matrix = ops.Matrix(rows, cols, dtype)
    matrix.load(0, weight)
    return matrix, round_bf16(weight) if dtype == ops.WeightType.BF16 else weight


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_rows_come_back_as_stored(level, dtype, rows, cols, rng):
    matrix = ops.Matrix(rows, cols, dtype)
    weight = normal(rng, rows, cols)
    stored = round_bf16(weight) if dtype == ops.WeightType.BF16 else weight
    cut = rows // 3
    matrix.load(cut, weight[cut:])
    matrix.load(0, weight[:cut])
    order = rng.permutation(rows).astype(np.int32)
    out = strided(np.zeros((rows, cols), np.float32))
    matrix.gather(order, out)
    assert np.array_equal(out, stored[order])
    assert matrix.shape == (rows, cols)
    again = ops.Matrix(rows, cols, dtype)
    again.load(0, bf16_bits(weight))
    again.gather(order, out)
    assert np.array_equal(out, round_bf16(weight)[order])


def test_conversion_rounds_like_ml_dtypes(level):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e-39, 3.4e38], np.float32)
    bits = np.random.default_rng(1).integers(0, 2**32, 5000, np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([special, bits.view(np.float32), ties.view(np.float32)])[None]
    matrix = ops.Matrix(1, values.shape[1], ops.WeightType.BF16)
    matrix.load(0, values)
    out = np.zeros_like(values)
    matrix.gather(np.zeros(1, np.int32), out)
    with np.errstate(invalid="ignore"):  # a NaN is cast, too
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(out, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_product(level, pool, dtype, rows, cols, rng):
    matrix, weight = make(rows, cols, dtype, rng)
    for n in (0, 1, 2, 3, 7, 12, 13, 29, 150):
        x = strided(normal(rng, n, cols))
        start = normal(rng, n, rows)
        rounds = level.startswith(("avx512bf16", "amx")) and dtype == ops.WeightType.BF16
        seen = round_bf16(x).astype(np.float64) if rounds else x.astype(np.float64)
        exact = seen @ weight.T.astype(np.float64)
        size = np.abs(seen) @ np.abs(weight.T.astype(np.float64))
        for accumulate in (False, True):
            out = strided(start)
            ops.linear(pool, x, matrix, out, accumulate)
            expected = exact + start if accumulate else exact
            # One rounding a step in the worst case, the square root of that in practice.
            assert np.all(np.abs(out - expected) <= 6e-7 * (size + np.abs(start))), (n, accumulate)
            assert np.isnan(out.base[:, 0]).all()
            assert np.isnan(out.base[:, 2 + rows :]).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), [(200, 577), (384, 40), (1000, 1500)])
def test_a_row_is_bit_identical_in_any_batch(level, dtype, rows, cols, rng):
    matrix, _ = make(rows, cols, dtype, rng)
    x = normal(rng, 300, cols)
    alone = np.zeros((300, rows), np.float32)
    lone = ops.Pool(1)
    for i in range(300):
        ops.linear(lone, x[i : i + 1], matrix, alone[i : i + 1])
    for threads in (1, 2, 5):
        pool = ops.Pool(threads)
        for n in (2, 3, 5, 11, 12, 13, 25, 64, 97, 300):
            out = np.zeros((n, rows), np.float32)
            ops.linear(pool, x[300 - n :], matrix, out)
            assert np.array_equal(out, alone[300 - n :]), (threads, n)


def test_levels_agree_on_float32_weights(rng):
    """Levels with a fused multiply-add run the same chain, so they agree to the bit."""
    results = {}
    for name in ops.isa_levels():
        before = ops.isa_level()
        ops.isa_level(name)
        matrix, _ = make(100, 77, ops.WeightType.FP32, np.random.default_rng(3))
        ops.isa_level(before)
        out = np.zeros((17, 100), np.float32)
        ops.linear(ops.Pool(1), normal(np.random.default_rng(4), 17, 77), matrix, out)
        results[name] = out
    for name, out in results.items():
        if name != "portable":
            assert np.array_equal(out, results["avx2"]), name
        assert np.allclose(out, results["portable"], rtol=1e-5, atol=1e-5)


def test_errors_name_the_argument(pool):
    matrix = ops.Matrix(8, 4, ops.WeightType.FP32)
    x, out = np.zeros((2, 4), np.float32), np.zeros((2, 8), np.float32)
    frozen = out.copy()
    frozen.setflags(write=False)
    cases = [
        ((x.astype(np.float64), out), "x must be float32, is float64"),
        ((x[:, :3], out), "x must have size 4 along axis 1, has 3"),
        ((x[0], out), r"x must have 2 dimension\(s\), has 1"),
        ((x, out[:1]), "out must have size 2 along axis 0, has 1"),
        ((x, frozen), "out must be writeable"),
        ((x, np.zeros((2, 16), np.float32)[:, ::2]), "out must have contiguous rows"),
        (([[0.0] * 4] * 2, out), "x must be a numpy array, got list"),
        ((x.astype(">f4"), out), "x must be float32, is >f4"),
    ]
    for (a, b), message in cases:
        with pytest.raises(ValueError, match=message):
            ops.linear(pool, a, matrix, b)
    with pytest.raises(ValueError, match="weight with 2 rows does not fit at first_row 7"):
        matrix.load(7, np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="weight must be float32, or bfloat16 viewed as uint16"):
        matrix.load(0, np.zeros((2, 4), np.int8))
    with pytest.raises(ValueError, match="weight must be C-contiguous"):
        matrix.load(0, np.zeros((2, 8), np.float32)[:, :4])
    with pytest.raises(ValueError, match=r"rows holds 8 at 1, outside \[0, 8\)"):
        matrix.gather(np.array([0, 8], np.int32), x)
    with pytest.raises(ValueError, match="positive rows and cols"):
        ops.Matrix(0, 4, ops.WeightType.FP32)
    with pytest.raises(ValueError, match="unknown level"):
        ops.isa_level("sse9")
