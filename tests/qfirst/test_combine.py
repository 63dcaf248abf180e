"""The algebra of a split sweep: the paper's numbers, and the edges where naive forms break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from afd import _megamoe
from afd.qfirst.combine import Partial, add_current, lerp, merge, score, sweep, sweep_spelled_out
from afd.qfirst.errors import QFirstError

# Heads, key heads, head width: Qwen3-0.6B's.
HEADS, KV_HEADS, WIDTH = 16, 8, 128
SCALE = WIDTH**-0.5


def draw(positions: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, HEADS, WIDTH, generator=generator)
    k, v = torch.randn(2, 1, KV_HEADS, positions, WIDTH, generator=generator)
    return q, k, v


def split(
    k: torch.Tensor, v: torch.Tensor, owner: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(k[:, :, owner == n], v[:, :, owner == n]) for n in range(4)]


def test_200_random_four_way_splits_agree_as_published() -> None:
    generator = torch.Generator().manual_seed(0)
    worst = worst_stock = 0.0
    for seed in range(200):
        q, k, v = draw(512, seed)
        shards = split(k, v, torch.randint(0, 4, (512,), generator=generator))
        order = torch.randperm(4, generator=generator).tolist()
        whole = sweep_spelled_out(q, k, v, SCALE).o
        exact = merge([sweep_spelled_out(q, *shards[n], SCALE) for n in order]).o
        stock = merge([sweep(q, *shards[n], SCALE) for n in order]).o
        worst = max(worst, float((exact - whole).abs().max()))
        worst_stock = max(worst_stock, float((stock - whole).abs().max()))
    assert worst <= 1.4e-7
    # The stock kernel sums in float32; that, and not the merge, is what this adds.
    assert worst_stock <= 1e-6


@settings(deadline=None, max_examples=60)
@given(
    owners=st.lists(st.integers(0, 3), max_size=40),
    order=st.permutations(range(4)),
    grouping=st.integers(1, 3),
    spread=st.sampled_from([0.0, 1.0, 30.0, 800.0]),
    seed=st.integers(0, 1000),
)
def test_any_split_any_order_any_grouping_gives_one_sweep(
    owners: list[int], order: list[int], grouping: int, spread: float, seed: int
) -> None:
    q, k, v = draw(len(owners), seed)
    q = q * spread
    shards = split(k, v, torch.tensor(owners, dtype=int))
    parts = [sweep_spelled_out(q, *shard, SCALE) for shard in shards]
    for part in parts:
        part.o[part.lse == -math.inf] = math.nan
    ordered = [parts[n] for n in order]
    merged = merge([merge(ordered[:grouping]), merge(ordered[grouping:])])
    whole = sweep_spelled_out(q, k, v, SCALE)
    if not owners:
        assert (merged.lse == -math.inf).all()
        return
    # A score of magnitude m is rounded by about 1e-7 m, and its weight by that factor.
    bound = 1e-6 * (1 + spread)
    torch.testing.assert_close(merged.o, whole.o, rtol=bound, atol=bound * 3)
    torch.testing.assert_close(merged.lse, whole.lse, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("cached", [0, 1, 2, 63, 511])
def test_the_current_position_is_one_more_cached_one(cached: int) -> None:
    q, k, v = draw(cached + 1, 9)
    past = sweep(q, k[:, :, :cached], v[:, :, :cached], SCALE)
    step = add_current(past, v[:, :, cached], score(q, k[:, :, cached], SCALE))
    whole = sweep_spelled_out(q, k, v, SCALE)
    torch.testing.assert_close(step.o, whole.o, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(step.lse, whole.lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("nats", [0.0, 9.7, 89.0, 120.0, 800.0, 1e30])
def test_the_combine_is_right_at_every_magnitude_and_both_signs(nats: float, sign: int) -> None:
    lse, s = torch.tensor([[sign * nats]]), torch.zeros(1, 1)
    out = add_current(Partial(torch.full((1, 1, 4), 3.0), lse), torch.full((1, 1, 4), -5.0), s)
    weight = 0.0 if sign * nats < -700 else 1 / (1 + math.exp(-sign * nats))
    torch.testing.assert_close(out.o, torch.full((1, 1, 4), -5.0 * (1 - weight) + 3.0 * weight))
    torch.testing.assert_close(out.lse, torch.logaddexp(lse, s))


def test_a_weight_too_small_to_leave_one_keeps_its_digits() -> None:
    # 1 - sigmoid(30) is 0 in float32, though 9.4e-14 times 1e13 is almost one.
    mixed = lerp(torch.tensor([1e13]), torch.zeros(1), torch.tensor(30.0))
    assert float(mixed) == pytest.approx(1e13 / (1 + math.exp(30)), rel=1e-6)


def test_the_named_overflows_happen_to_the_naive_forms_and_not_here() -> None:
    hundred = torch.tensor(100.0)
    assert torch.log(torch.exp(hundred) + torch.exp(hundred)).isinf()
    one = Partial(torch.zeros(1, 1, 4), torch.full((1, 1), 100.0))
    assert float(merge([one, one]).lse) == pytest.approx(100 + math.log(2))

    x = torch.tensor(89.0)
    assert (torch.exp(x) / (1 + torch.exp(x))).isnan()
    wide = torch.linspace(-800, 800, 100_001)
    assert lerp(torch.ones(1), -torch.ones(1), wide).isfinite().all()

    # The sums themselves leave float32 where a shard's scores spread a little beyond 30.
    scores = torch.randn(400, generator=torch.Generator().manual_seed(1)) * 40
    values = torch.randn(400, 1, generator=torch.Generator().manual_seed(2))
    assert torch.exp(scores).sum().isinf()
    shards = [
        Partial(scores[i::2].softmax(-1) @ values[i::2], scores[i::2].logsumexp(-1)) for i in (0, 1)
    ]
    torch.testing.assert_close(merge(shards).o, scores.softmax(-1) @ values)


def test_one_over_one_plus_exp_is_the_librarys_sigmoid_to_two_last_places() -> None:
    x = torch.linspace(-120, 120, 2_000_001)
    ratio = (1 / (1 + torch.exp(-x))) / torch.sigmoid(x)
    # Below the smallest normal number the two round differently; the weight there is nothing.
    assert float((ratio[x > -87] - 1).abs().max()) <= 3e-7


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(QFirstError, match="at least one shard"):
        merge([])


def test_the_extensions_sweep_and_merge_return_the_same_pairs() -> None:
    positions, page = 150, 16
    q, k, v = draw(positions, 4)
    owner = torch.randint(0, 3, (positions,), generator=torch.Generator().manual_seed(3))
    parts = [_extension_sweep(q, k[:, :, owner == n], v[:, :, owner == n], page) for n in range(4)]
    out, lse = parts[0]
    for other, other_lse in parts[1:]:
        _megamoe.merge_attention(out, lse, other, other_lse, WIDTH)
    shards = split(k, v, owner)
    for (ours, ours_lse), (theirs, theirs_lse) in zip(
        (sweep(q, *shard, SCALE) for shard in shards[1:]), parts[1:], strict=True
    ):
        np.testing.assert_allclose(theirs_lse, ours_lse, atol=2e-6)
        if ours_lse.isfinite().all():
            np.testing.assert_allclose(theirs.reshape(HEADS, WIDTH), ours[0], atol=2e-6)
    merged = merge([sweep(q, *shard, SCALE) for shard in shards])
    np.testing.assert_allclose(out.reshape(HEADS, WIDTH), merged.o[0], atol=2e-6)
    np.testing.assert_allclose(lse, merged.lse, atol=2e-6)


def _extension_sweep(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, page: int
) -> tuple[np.ndarray, np.ndarray]:
    positions = k.shape[2]
    pages = max(1, -(-positions // page))
    cache = _megamoe.KvCache(1, pages, page, KV_HEADS, WIDTH, _megamoe.WeightType.FP32)
    rows = [np.ascontiguousarray(x[0].transpose(0, 1).flatten(1)) for x in (k, v)]
    cache.store(0, *rows, np.arange(positions, dtype=np.int64))
    out = np.full((1, HEADS * WIDTH), np.nan, np.float32)
    lse = np.empty((1, HEADS), np.float32)
    _megamoe.paged_attention(
        _megamoe.Pool(1), cache, 0, q.reshape(1, -1).numpy(), np.zeros(1, np.int32),
        np.array([positions], np.int32), np.arange(pages, dtype=np.int32)[None], SCALE, out, lse,
    )  # fmt: skip
    return out, lse
