"""Rotation tables for rotary position embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rotary_tables(
    positions: int, rotary_dim: int, theta: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cos, sin), each [positions, rotary_dim / 2], angle = position * theta^(-2i / rotary_dim).

    Frequencies and angles are rounded to float32 before the cosine, as trained models saw them
    (RoFormer, section 3.2.2).
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies = (1.0 / np.power(theta, exponents.astype(np.float64))).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)
