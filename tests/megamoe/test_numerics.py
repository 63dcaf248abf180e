"""The FP8 wire against torch's conversions, at every instruction-set level."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd._megamoe import ScaleFormat
from tests.megamoe.reference import e4m3, e4m3_values, fp8, from_fp8
from tests.megamoe.weights import F32

FORMATS = list(ScaleFormat.__members__.values())


@pytest.fixture(params=ops.isa_levels(), autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before = ops.isa_level()
    ops.isa_level(request.param)
    yield
    ops.isa_level(before)


Scales = NDArray[np.float32] | NDArray[np.uint8]


def encode(
    x: F32, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> tuple[NDArray[np.uint8], Scales]:
    """Codes and scales as they lie on the wire."""
    codes = np.full(x.shape, 0xEE, np.uint8)
    block = 32 if scale_format is ScaleFormat.UE8M0_PER_32 else 128
    blocks = (len(x), -(-x.shape[1] // block))
    if scale_format is ScaleFormat.FP32_PER_128:
        scales: Scales = np.full(blocks, np.nan, np.float32)
    else:
        scales = np.full(blocks, 0xFF, np.uint8)
    ops.fp8_encode(x, codes, scales, scale_format)
    return codes, scales


def decode(
    codes: NDArray[np.uint8], scales: Scales, scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
) -> F32:
    out = np.full(codes.shape, np.nan, np.float32)
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
    expected = e4m3_values(codes)
    actual = decode(codes, np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def test_every_finite_code_survives_the_round_trip() -> None:
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    np.testing.assert_array_equal(encode_unscaled(e4m3_values(codes)), codes)


def test_rounding_at_and_beside_every_boundary() -> None:
    finite = e4m3_values(np.arange(0x7F, dtype=np.uint8))
    middles = (finite[1:] + finite[:-1]) / 2
    values = np.concatenate([middles, np.nextafter(middles, np.float32(0)),
                             np.nextafter(middles, np.float32(1e9))])  # fmt: skip
    values = np.concatenate([values, -values]).astype(np.float32)
    expected = e4m3(torch.from_numpy(values)).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode_unscaled(values), expected)


@pytest.mark.parametrize("scale_format", FORMATS)
@pytest.mark.parametrize("hidden", [1, 31, 64, 127, 128, 129, 200, 576])
def test_rows_and_scales_equal_the_reference(hidden: int, scale_format: ScaleFormat) -> None:
    """Rows of any magnitude that float32 has, from a lone subnormal to infinity."""
    rng = np.random.default_rng(hidden)
    x = rng.standard_normal((64, hidden)).astype(np.float32)
    x *= np.exp2(rng.uniform(-20, 20, (64, 1))).astype(np.float32)
    x[16:32] *= np.exp2(np.linspace(-130, -110, 16, dtype=np.float32))[:, None]
    x[32:48] *= np.exp2(np.linspace(90, 107, 16, dtype=np.float32))[:, None]
    x[48:] = rng.integers(-700, 701, (16, hidden)) * np.float32(1e-45)
    x[3] = 0
    x[4, ::2] = -0.0
    x[5, 0], x[6, 0], x[7, 0] = np.inf, -np.inf, np.nan
    codes, scales = encode(x, scale_format)
    expected_codes, expected_scales = fp8(x, scale_format)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(codes & 0x7F, expected_codes & 0x7F)
    sign = codes & 0x80 == expected_codes & 0x80
    assert (sign | (codes & 0x7F == 0x7F)).all()  # a NaN's sign says nothing
    actual = decode(codes, scales, scale_format)
    np.testing.assert_array_equal(actual, from_fp8(codes, scales, scale_format))


@pytest.mark.parametrize("scale_format", [ScaleFormat.UE8M0_PER_128, ScaleFormat.UE8M0_PER_32])
def test_every_exponent_is_torchs(scale_format: ScaleFormat) -> None:
    """Also 0 (2^-127, a subnormal) and 255 (NaN), which are never written."""
    exponents = np.arange(256, dtype=np.uint8)[:, None]
    codes = np.full((256, 1), 0x38, np.uint8)  # 1.0
    expected = torch.from_numpy(exponents).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(decode(codes, exponents, scale_format), expected)
    # Nothing is so small or so large that another is written.
    lowest, highest = np.float32([[1e-45]]), np.float32([[np.inf]])
    assert encode(lowest, scale_format)[1] == 127  # amax / 448 is 0, which counts as 1
    assert encode(np.float32([[500e-45]]), scale_format)[1] == 1
    assert encode(highest, scale_format)[1] == 254


def test_a_power_of_two_scale_is_rounded_up_where_torchs_would_saturate() -> None:
    """640 / 448 is nearer to 1 than to 2, and 640 does not fit e4m3 unscaled."""
    x = np.full((1, 32), 640, np.float32)
    nearest = torch.tensor([640 / 448]).to(torch.float8_e8m0fnu).float()
    assert nearest == 1
    assert e4m3(torch.from_numpy(x) / nearest).float().max() == 448
    codes, exponents = encode(x, ScaleFormat.UE8M0_PER_32)
    assert exponents == 128
    assert (decode(codes, exponents, ScaleFormat.UE8M0_PER_32) == 640).all()


@pytest.mark.parametrize("scale_format", FORMATS)
def test_what_is_past_the_largest_code_saturates(scale_format: ScaleFormat) -> None:
    """Where a subnormal scale is too coarse for amax / 448, and never to the NaN beside 448."""
    x = np.zeros((600, 32), np.float32)
    x[:, 0] = np.arange(1, 601) * np.float32(1e-45)
    codes, _ = encode(x, scale_format)
    assert ((codes & 0x7F) <= 0x7E).all()
    if scale_format is ScaleFormat.FP32_PER_128:
        assert (codes[480:, 0] == 0x7E).all()


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
