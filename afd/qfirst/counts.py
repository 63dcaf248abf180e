"""Bytes, parameters and arithmetic of a dense decoder cut query-first: pure functions of its shape.

At batch one both sides read memory, so a time is a count of bytes and a share of time a share of
them (Q-First, Sections 3 and 4). Elements of weights, cache and wire take ``BF16_BYTES``.
"""

from __future__ import annotations

from afd.qfirst.config import DecoderConfig

BF16_BYTES = 2


def ffn_elements(c: DecoderConfig) -> int:
    """Gate, up and down of one layer."""
    return 3 * c.hidden * c.ffn


def query_elements(c: DecoderConfig) -> int:
    """W_q of one layer; W_o has as many."""
    return c.hidden * c.query_width


def key_value_elements(c: DecoderConfig) -> int:
    """W_k and W_v of one layer."""
    return 2 * c.hidden * c.kv_width


def layer_elements(c: DecoderConfig) -> int:
    """All matrices of one layer; twice this is its arithmetic a token, without the sweep."""
    return ffn_elements(c) + 2 * query_elements(c) + key_value_elements(c)


def parameters(c: DecoderConfig) -> int:
    """Elements of all weights, a tied embedding once."""
    norms = 2 * c.hidden + (2 * c.head_dim if c.qk_norm else 0)
    tables = (1 if c.tied else 2) * c.vocab * c.hidden
    return tables + c.layers * (layer_elements(c) + norms) + c.hidden


def position_bytes(c: DecoderConfig) -> int:
    """Key and value of one cached position in one layer: what a sweep reads of it."""
    return 2 * c.kv_width * BF16_BYTES


def cache_side_bytes(c: DecoderConfig) -> int:
    """Weights a layer that the cache side holds: W_q and W_o."""
    return 2 * query_elements(c) * BF16_BYTES


def pool_bytes(c: DecoderConfig) -> int:
    """Weights a layer that the pool holds: the feed-forward, W_k and W_v."""
    return (ffn_elements(c) + key_value_elements(c)) * BF16_BYTES


def crossover(c: DecoderConfig) -> float:
    """Cached positions whose sweep reads as much as the feed-forward does."""
    return ffn_elements(c) * BF16_BYTES / position_bytes(c)


def crossover_pooled(c: DecoderConfig) -> float:
    """The same between the two sides whole: the pool with W_k and W_v, the sweep with W_q, W_o."""
    return (pool_bytes(c) - cache_side_bytes(c)) / position_bytes(c)


def pool_share(c: DecoderConfig, positions: int) -> float:
    """Share of a request's time at which it holds the pool, of pool and sweep one after another."""
    return pool_bytes(c) / (pool_bytes(c) + positions * position_bytes(c))


def token_cache_bytes(c: DecoderConfig) -> int:
    """Cache of one position over all layers."""
    return c.layers * position_bytes(c)


def sent_bytes(c: DecoderConfig) -> int:
    """Cache side → pool, a stage and token: u."""
    return c.hidden * BF16_BYTES


def received_bytes(c: DecoderConfig) -> int:
    """Pool → cache side, a stage and token: z, k and v."""
    return (c.hidden + 2 * c.kv_width) * BF16_BYTES


def paired_wire_bytes(c: DecoderConfig) -> int:
    """Both ways, a stage and token, with W_q and W_o pooled: z and a out; q, z, k and v back."""
    return 2 * (c.hidden + c.query_width + c.kv_width) * BF16_BYTES


def output_share(c: DecoderConfig) -> float:
    """W_o's share of a layer's arithmetic."""
    return query_elements(c) / layer_elements(c)
