"""Causal attention for training, by a backend that is named, pinned and recorded."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch.nn import functional

# Rows of queries that are scored at once: a block sees no key behind its last row.
_BLOCK_ROWS = 128


class Backend(StrEnum):
    """What computes attention: torch's fused kernel, or block-causal matrix products.

    On CPUs the fused kernel's bfloat16 backward pass is several times slower than the products.
    """

    FUSED = "fused"
    PRODUCTS = "products"


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: Backend) -> torch.Tensor:
    """q [B, H, T, D], k and v [B, K, T, D] → [B, H, T, D] in the dtype of ``q``."""
    if backend is Backend.FUSED:
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return _products(q, k, v)


def _products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, heads, length, width = q.shape
    kv_heads = k.shape[1]
    grouped = (q * width**-0.5).view(batch, kv_heads, heads // kv_heads, length, width)
    outputs = []
    for start in range(0, length, _BLOCK_ROWS):
        end = min(start + _BLOCK_ROWS, length)
        block = grouped[:, :, :, start:end]
        rows = block.reshape(batch, kv_heads, -1, width)
        scores = (rows @ k[:, :, :end].transpose(-1, -2)).view(*block.shape[:-1], end)
        hidden = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1)
        weights = functional.softmax(scores + hidden, dim=-1)
        mixed = weights.view(batch, kv_heads, -1, end) @ v[:, :, :end]
        outputs.append(mixed.view(block.shape))
    return torch.cat(outputs, dim=3).view(q.shape)
