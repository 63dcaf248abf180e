"""Array helpers of the kernel tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Standard normal float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def strided(values: NDArray[np.float32], extra: int = 5) -> NDArray[np.float32]:
    """The same rows as a slice of a wider buffer whose other elements are NaN."""
    wide = np.full((values.shape[0], values.shape[1] + extra), np.nan, values.dtype)
    view = wide[:, 2 : 2 + values.shape[1]]
    view[:] = values
    return view


def round_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bfloat16 of ``values`` as the uint16 that kernels take."""
    return (round_bf16(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
