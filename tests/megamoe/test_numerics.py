"""The FP8 wire against ml_dtypes, at every instruction-set level."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd._megamoe import ScaleFormat
from tests.megamoe.reference import F32, fp8, from_fp8


@pytest.fixture(params=ops.isa_levels(), autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before = ops.isa_level()
    ops.isa_level(request.param)
    yield
    ops.isa_level(before)


def encode(
    x: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> tuple[NDArray[np.uint8], F32]:
    """Codes, and scales as the numbers that they stand for."""
    codes = np.full(x.shape, 0xEE, np.uint8)
    block = 32 if scale_format is ScaleFormat.UE8M0_PER_32 else 128
    blocks = (len(x), -(-x.shape[1] // block))
    if scale_format is ScaleFormat.FP32_PER_128:
        scales = np.full(blocks, np.nan, np.float32)
        ops.fp8_encode(x, codes, scales, scale_format)
        return codes, scales
    exponents = np.full(blocks, 0xFF, np.uint8)
    ops.fp8_encode(x, codes, exponents, scale_format)
    assert ((exponents >= 1) & (exponents <= 254)).all()
    return codes, np.exp2(exponents.astype(np.float32) - 127)


def decode(
    codes: NDArray[np.uint8], scales: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> F32:
    out = np.full(codes.shape, np.nan, np.float32)
    if scale_format is not ScaleFormat.FP32_PER_128:
        exponents = (np.log2(scales) + 127).astype(np.uint8)
        ops.fp8_decode(codes, exponents, out, scale_format)
    else:
        ops.fp8_decode(codes, scales, out, scale_format)
    return out


def encode_unscaled(values: F32) -> NDArray[np.uint8]:
    """Codes of values up to 448, a block each with a 448 that makes the scale 1."""
    x = np.zeros((len(values), 128), np.float32)
    x[:, 0] = 448
    x[:, 1:] = values[:, None]
    codes, scales = encode(x)
    assert (scales == 1).all()
    assert (codes[:, 1:] == codes[:, 1:2]).all()
    return codes[:, 1]


def test_decoding_all_codes() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    actual = decode(codes, np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def test_every_finite_code_survives_the_round_trip() -> None:
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(encode_unscaled(values), codes)


def test_rounding_at_and_beside_every_boundary() -> None:
    finite = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (finite[1:] + finite[:-1]) / 2
    values = np.concatenate([middles, np.nextafter(middles, np.float32(0)),
                             np.nextafter(middles, np.float32(1e9))])  # fmt: skip
    values = np.concatenate([values, -values]).astype(np.float32)
    expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(encode_unscaled(values), expected)


@pytest.mark.parametrize("scale_format", list(ScaleFormat.__members__.values()))
@pytest.mark.parametrize("hidden", [1, 31, 64, 127, 128, 129, 200, 576])
def test_rows_and_scales_equal_the_reference(hidden: int, scale_format: ScaleFormat) -> None:
    rng = np.random.default_rng(hidden)
    x = rng.standard_normal((16, hidden)).astype(np.float32)
    x *= np.exp(rng.uniform(-20, 20, (16, 1))).astype(np.float32)
    x[3] = 0
    x[4, ::2] = -0.0
    codes, scales = encode(x, scale_format)
    expected_codes, expected_scales = fp8(x, scale_format)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(codes, expected_codes)
    actual = decode(codes, scales, scale_format)
    np.testing.assert_array_equal(actual, from_fp8(codes, scales, scale_format))


def test_not_a_number_stays_one_and_leaves_its_neighbours_alone() -> None:
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(1, 128)
    clean = encode(x)
    x[0, 5] = np.nan
    codes, scales = encode(x)
    out = decode(codes, scales)
    assert np.isnan(out[0, 5])
    np.testing.assert_array_equal(scales, clean[1])
    np.testing.assert_array_equal(np.delete(codes, 5), np.delete(clean[0], 5))


def test_the_smallest_and_largest_floats() -> None:
    tiny = np.zeros((1, 128), np.float32)
    tiny[0, 0] = np.float32(1e-45)
    codes, scales = encode(tiny)
    assert scales[0, 0] > 0
    assert np.isfinite(decode(codes, scales)).all()
    large = np.full((1, 128), np.finfo(np.float32).max, np.float32)
    np.testing.assert_allclose(decode(*encode(large)), large, rtol=1e-6)
