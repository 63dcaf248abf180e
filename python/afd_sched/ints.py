"""Bulk integers on the wire: numpy arrays as little-endian bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_PACK = [struct.Struct(f"<{count}i").pack for count in range(16)]


def pack_int32(values: ArrayLike) -> bytes:
    """Any shape, row-major."""
    return np.ascontiguousarray(values, _INT32).tobytes()


def pack_few_int32(values: Sequence[int]) -> bytes:
    """A short list of Python integers, without an array in between."""
    return _PACK[len(values)](*values) if len(values) < len(_PACK) else pack_int32(values)


def pack_int64(values: ArrayLike) -> bytes:
    """Any shape, row-major."""
    return np.ascontiguousarray(values, _INT64).tobytes()


def unpack_int32(data: bytes) -> NDArray[np.int32]:
    """A read-only view; raises ValueError if the length is not a multiple of 4."""
    return np.frombuffer(data, _INT32)


def unpack_pairs(data: bytes) -> NDArray[np.int32]:
    """[n, 2]; raises ValueError if the length is not a multiple of 8."""
    return np.frombuffer(data, _INT32).reshape(-1, 2)


def positions_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … count - 1 for each count, end to end."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)
