"""Paged attention against dense float64 attention; merging; what the cache refuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from afd import _megamoe as ops
from tests.attention_ops.arrays import normal, round_bf16, strided

BF16, FP32 = ops.WeightType.BF16, ops.WeightType.FP32
SHAPES = [  # head_dim, kv_heads, group, page_size
    (16, 1, 1, 1),
    (40, 2, 3, 5),
    (64, 3, 3, 16),
    (72, 1, 8, 7),
    (80, 2, 5, 64),
    (128, 2, 4, 16),
    (256, 1, 2, 3),
    (1, 2, 2, 4),
]


@dataclass
class Paged:
    """A filled cache and the same keys and values dense: [slot][length, kv_heads, head_dim]."""

    cache: ops.KvCache
    page_table: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]
    layer: int


def fill(rng, lengths, head_dim, kv_heads, page_size, dtype) -> Paged:
    """Slots of the given lengths on shuffled pages of layer 1; other table entries are -1."""
    counts = [-(-length // page_size) for length in lengths]
    pages = sum(counts) + 3
    free = rng.permutation(pages).tolist()
    table = np.full((len(lengths), max(counts, default=0) + 1), -1, np.int32)
    cache = ops.KvCache(2, pages, page_size, kv_heads, head_dim, dtype)
    keys, values = [], []
    for slot, length in enumerate(lengths):
        for page in range(counts[slot]):
            table[slot, page] = free.pop()
        k = strided(normal(rng, length, kv_heads * head_dim))
        v = strided(normal(rng, length, kv_heads * head_dim))
        at = np.arange(length)
        locations = table[slot, at // page_size].astype(np.int64) * page_size + at % page_size
        cache.store(1, k, v, locations)
        shape = (length, kv_heads, head_dim)
        stored = round_bf16 if dtype == BF16 else np.array
        keys.append(stored(k).reshape(shape).astype(np.float64))
        values.append(stored(v).reshape(shape).astype(np.float64))
    return Paged(cache, table, keys, values, 1)


def attend(pool, paged, q, slots, lengths, heads, scale):
    """The kernel's (out, lse)."""
    out = strided(np.zeros(q.shape, np.float32))
    lse = np.zeros((len(q), heads), np.float32)
    slots, lengths = np.asarray(slots, np.int32), np.asarray(lengths, np.int32)
    ops.paged_attention(
        pool, paged.cache, paged.layer, q, slots, lengths, paged.page_table, scale, out, lse
    )
    return np.array(out), lse


def reference(paged, q, slots, lengths, group, scale):
    """Dense softmax in float64."""
    head_dim = paged.keys[0].shape[2]
    heads = q.shape[1] // head_dim
    out, lse = np.zeros((len(q), heads, head_dim)), np.full((len(q), heads), -np.inf)
    for i, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        for h in range(heads if length else 0):
            k = paged.keys[slot][:length, h // group]
            s = k @ q[i].reshape(heads, head_dim)[h].astype(np.float64) * scale
            m = s.max()
            p = np.exp(s - m)
            out[i, h] = p @ paged.values[slot][:length, h // group] / p.sum()
            lse[i, h] = m + np.log(p.sum())
    return out.reshape(len(q), -1), lse


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("head_dim", "kv_heads", "group", "page_size"), SHAPES)
def test_decode_and_extend(level, pool, head_dim, kv_heads, group, page_size, dtype, rng):
    held = [0, 1, 31, 32, 33, 150, 300]
    paged = fill(rng, held, head_dim, kv_heads, page_size, dtype)
    # Decode rows of every slot, a row that sees nothing, then a chunk of slot 5 (extend).
    slots = [*range(7), 5, 5] + [5] * 40 + [6, 6]
    lengths = [*held, 0, 7] + list(range(111, 151)) + [300, 299]
    heads = kv_heads * group
    q = strided(normal(rng, len(slots), heads * head_dim) * np.float32(2.0))
    scale = head_dim**-0.5
    out, lse = attend(pool, paged, q, slots, lengths, heads, scale)
    expected, expected_lse = reference(paged, q, slots, lengths, group, scale)
    assert np.allclose(out, expected, rtol=1e-5, atol=4e-6)
    assert np.allclose(lse, expected_lse, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_row_is_bit_identical_in_any_batch(level, dtype, rng):
    head_dim, kv_heads, group, page_size = 40, 2, 3, 5
    paged = fill(rng, [200, 77], head_dim, kv_heads, page_size, dtype)
    slots = [0] * 100 + [1] * 20
    lengths = list(range(101, 201)) + list(range(58, 78))
    q = normal(rng, 120, kv_heads * group * head_dim)
    args = (kv_heads * group, 0.2)
    out, lse = attend(ops.Pool(3), paged, q, slots, lengths, *args)
    lone = ops.Pool(1)
    for i in range(120):
        row, row_lse = attend(
            lone, paged, q[i : i + 1], slots[i : i + 1], lengths[i : i + 1], *args
        )
        assert np.array_equal(row[0], out[i]) and np.array_equal(row_lse[0], lse[i])
    order = rng.permutation(120)
    mixed, _ = attend(
        lone, paged, q[order], np.array(slots)[order], np.array(lengths)[order], *args
    )
    assert np.array_equal(mixed, out[order])


def test_scores_of_any_magnitude(level, pool, rng):
    paged = fill(rng, [90], 64, 1, 16, FP32)
    q = normal(rng, 4, 64) * np.float32(1e4)
    out, lse = attend(pool, paged, q, [0] * 4, [90] * 4, 1, 1.0)
    expected, expected_lse = reference(paged, q, [0] * 4, [90] * 4, 1, 1.0)
    assert np.allclose(out, expected, atol=2e-2)  # scores of 1e5 keep two digits after the point
    assert np.allclose(lse, expected_lse, rtol=1e-6)


def test_stale_values_beyond_the_length_are_not_read(level, pool, rng):
    paged = fill(rng, [40], 16, 1, 8, FP32)
    q = normal(rng, 1, 16)
    clean = attend(pool, paged, q, [0], [33], 1, 0.25)
    poison = np.full((1, 16), np.nan, np.float32)
    for at in range(33, 40):
        where = np.array([paged.page_table[0, at // 8] * 8 + at % 8], np.int64)
        paged.cache.store(1, poison, poison, where)
    again = attend(pool, paged, q, [0], [33], 1, 0.25)
    assert np.array_equal(clean[0], again[0]) and np.array_equal(clean[1], again[1])


def test_an_unwritten_position_is_zero(level, pool):
    cache = ops.KvCache(1, 4, 8, 1, 24, BF16)
    out, lse = np.ones((1, 24), np.float32), np.ones((1, 1), np.float32)
    table = np.arange(4, dtype=np.int32)[None]
    q, slot, length = np.ones((1, 24), np.float32), np.zeros(1, np.int32), np.full(1, 20, np.int32)
    ops.paged_attention(pool, cache, 0, q, slot, length, table, 1.0, out, lse)
    assert not out.any() and np.allclose(lse, np.log(20.0))


@pytest.mark.parametrize("head_dim", [1, 40, 64])
def test_merging_shards_gives_the_whole(level, pool, head_dim, rng):
    kv_heads, group, held, cut = 2, 2, 130, 64
    heads = kv_heads * group
    paged = fill(rng, [held], head_dim, kv_heads, 16, FP32)
    q = normal(rng, 6, heads * head_dim)
    whole, whole_lse = attend(pool, paged, q, [0] * 6, [held] * 6, heads, 0.3)
    left, left_lse = attend(pool, paged, q, [0] * 6, [cut] * 6, heads, 0.3)
    tail = Paged(paged.cache, paged.page_table[:, cut // 16 :], [], [], 1)
    right, right_lse = attend(pool, tail, q, [0] * 6, [held - cut] * 6, heads, 0.3)
    ops.merge_attention(left, left_lse, right, right_lse, head_dim)
    assert np.allclose(left, whole, rtol=1e-5, atol=2e-6)
    assert np.allclose(left_lse, whole_lse, rtol=1e-6, atol=2e-6)


def test_merging_empty_and_extreme_shards(level):
    nan, empty = np.nan, -np.inf
    out_a = np.array([[1, 2], [nan, nan], [nan, nan], [1, 2], [1, 2], [1, 2]], np.float32)
    out_b = np.array([[nan, nan], [3, 4], [nan, nan], [3, 4], [3, 4], [3, 4]], np.float32)
    lse_a = np.array([[5.0], [empty], [empty], [3e38], [-1000.0], [7.0]], np.float32)
    lse_b = np.array([[empty], [6.0], [empty], [-3e38], [1000.0], [7.0]], np.float32)
    ops.merge_attention(out_a, lse_a, out_b, lse_b, 2)
    assert np.array_equal(out_a, [[1, 2], [3, 4], [0, 0], [1, 2], [3, 4], [2, 3]])
    expected = np.array([[5.0], [6.0], [empty], [3e38], [1000.0], [7.0 + np.log(2.0)]], np.float32)
    assert np.array_equal(lse_a, expected)


def test_errors_name_the_argument(pool, rng):
    paged = fill(rng, [9], 8, 2, 4, FP32)
    q = normal(rng, 2, 32)

    def call(q=q, slots=(0, 0), lengths=(1, 2), layer=1, table=paged.page_table, lse_heads=4):
        ops.paged_attention(
            pool, paged.cache, layer, q, np.array(slots, np.int32), np.array(lengths, np.int32),
            table, 1.0, np.zeros_like(q), np.zeros((2, lse_heads), np.float32),
        )  # fmt: skip

    call()
    for changes, message in [
        ({"slots": (0, 1)}, r"row_slot\[1\] = 1 is outside \[0, 0\]"),
        ({"lengths": (-1, 2)}, r"row_length\[0\] = -1 is outside \[0, 16\]"),
        ({"lengths": (1, 17)}, r"row_length\[1\] = 17 is outside"),
        ({"lengths": (1, 13)}, r"page_table\[0, 3\] = -1 is outside \[0, 6\)"),
        ({"layer": 2}, r"layer 2 is outside \[0, 2\)"),
        ({"q": q[:, :24]}, "q has 3 heads, not a multiple of the cache's 2"),
        ({"q": q[:, :30]}, "q has rows of 30 elements, not a multiple of the head size 8"),
        ({"lse_heads": 3}, "lse must have size 4 along axis 1, has 3"),
        ({"table": paged.page_table.astype(np.int64)}, "page_table must be int32, is int64"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**changes)
    kv = normal(rng, 2, 16)
    with pytest.raises(ValueError, match=r"locations\[1\] = 24 is outside \[0, 24\)"):
        paged.cache.store(0, kv, kv, np.array([0, 24]))
    with pytest.raises(ValueError, match="v must have size 2 along axis 0, has 1"):
        paged.cache.store(0, kv, kv[:1], np.array([0, 1]))
    with pytest.raises(ValueError, match="page_size must be positive, got 0"):
        ops.KvCache(1, 1, 0, 1, 8, FP32)


def test_the_cache_is_resident_only_where_written():
    cache = ops.KvCache(64, 1 << 16, 16, 8, 128, BF16)
    assert cache.nbytes == 2 * 64 * (1 << 16) * 16 * 8 * 128 * 2
    row = np.ones((1, 8 * 128), np.float32)
    cache.store(63, row, row, np.array([(1 << 20) - 1]))
