"""Sampling follows the exact distribution, deterministically."""

from __future__ import annotations

import numpy as np
import pytest

from afd import _megamoe as ops
from tests.attention_ops.arrays import normal, strided

DRAWS = 20000


def sample(logits, temperature=1.0, top_k=0, top_p=1.0, seed=0, position=0):
    """One token a row; scalars hold for every row."""
    n = len(logits)
    out = np.full(n, -1, np.int32)
    ops.sample(
        logits,
        np.broadcast_to(np.asarray(temperature, np.float32), n).copy(),
        np.broadcast_to(np.asarray(top_k, np.int32), n).copy(),
        np.broadcast_to(np.asarray(top_p, np.float32), n).copy(),
        np.broadcast_to(np.asarray(seed, np.uint64), n).copy(),
        np.broadcast_to(np.asarray(position, np.int64), n).copy(),
        out,
    )
    return out


def distribution(logits, temperature, top_k, top_p):
    """Temperature, then top-k, then top-p over the rest, in float64."""
    order = np.argsort(-logits, kind="stable")
    wide = logits.astype(np.float64)[order] / temperature
    p = np.exp(wide - wide[0])
    if top_k > 0:
        p[top_k:] = 0.0
    p /= p.sum()
    kept = np.concatenate([[True], np.cumsum(p)[:-1] < np.float32(top_p)])
    p = np.where(kept, p, 0.0)
    result = np.zeros(len(logits))
    result[order] = p / p.sum()
    return result


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.7, 0, 1.0),
        (1.0, 5, 1.0),
        (1.3, 0, 0.8),
        (0.9, 40, 0.6),
        (100.0, 0, 0.5),
        (0.05, 0, 0.9),
        (1.0, 199, 0.999),
    ],
)
def test_frequencies_match_the_distribution(level, temperature, top_k, top_p, rng):
    logits = normal(rng, 200) * np.float32(2.0)
    logits[50:55] = logits[50]
    logits[7] = -np.inf
    p = distribution(logits, temperature, top_k, top_p)
    rows = np.broadcast_to(logits, (DRAWS, 200)).copy()
    counts = np.bincount(
        sample(rows, temperature, top_k, top_p, seed=11, position=np.arange(DRAWS)), minlength=200
    )
    assert not counts[p == 0].any()
    common = p * DRAWS >= 8
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(p[common], p[~common].sum()) * DRAWS
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi2 = ((observed - expected) ** 2 / expected).sum()
    freedom = max(len(expected) - 1, 1)
    assert chi2 < freedom + 5.0 * np.sqrt(2.0 * freedom) + 5.0


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_a_nucleus_of_many_thousands(level, spread, rng):
    """Every draw lies in the exact nucleus, and both halves of its mass are drawn equally often."""
    vocabulary, draws = 12000, 400
    logits = normal(rng, vocabulary) * np.float32(spread)
    p = distribution(logits, 1.0, 0, 0.7)
    rows = np.broadcast_to(logits, (draws, vocabulary)).copy()
    tokens = sample(rows, 1.0, 0, 0.7, seed=5, position=np.arange(draws))
    edge = np.argsort(-logits, kind="stable")[(p > 0).sum() :][:2]
    assert ((p[tokens] > 0) | np.isin(tokens, edge)).all()
    order = np.argsort(-p, kind="stable")
    upper = order[: np.searchsorted(np.cumsum(p[order]), 0.5)]
    assert abs(np.isin(tokens, upper).mean() - 0.5) < 0.13


def test_seeds_give_independent_numbers():
    logits = np.zeros((4000, 2), np.float32)
    streams = [sample(logits, seed=s, position=np.arange(4000)) for s in (0, 1, 2, 2**64 - 1)]
    diagonal = sample(logits, seed=np.arange(4000), position=np.arange(4000))
    for stream in [*streams, diagonal]:
        assert abs(stream.mean() - 0.5) < 0.04
    for i, a in enumerate(streams):
        for b in streams[i + 1 :]:
            assert abs((a == b).mean() - 0.5) < 0.04


def test_a_row_depends_on_itself_alone(level, rng):
    n, vocabulary = 50, 3001
    logits = strided(normal(rng, n, vocabulary) * np.float32(3.0))
    temperature = rng.choice(np.array([0.0, 0.5, 1.0], np.float32), n)
    top_k = rng.choice(np.array([0, 1, 50, 4000], np.int32), n)
    top_p = rng.choice(np.array([1.0, 0.9], np.float32), n)
    seed = rng.integers(0, 2**64, n, np.uint64)
    position = rng.integers(0, 10000, n)
    whole = sample(logits, temperature, top_k, top_p, seed, position)
    for i in rng.permutation(n):
        row = logits[i : i + 1]
        one = sample(row, temperature[i], top_k[i], top_p[i], seed[i], position[i])
        assert one[0] == whole[i]
    greedy = (temperature == 0) | (top_k == 1)
    assert np.array_equal(whole[greedy], logits.argmax(1)[greedy])


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 17, 500, 50001])
def test_greedy_takes_the_lowest_of_equals(level, vocabulary, rng):
    logits = np.round(normal(rng, 6, vocabulary))
    logits[3, : vocabulary // 2] = -np.inf
    logits[4] = -np.inf
    logits[4, -1] = -5.0
    assert np.array_equal(sample(logits, temperature=0.0), logits.argmax(1))


def test_a_cut_through_equal_logits_keeps_lower_ids(level):
    logits = np.zeros((3000, 900), np.float32)
    assert set(sample(logits, top_k=3, seed=np.arange(3000))) == {0, 1, 2}
    assert set(sample(logits, top_p=2.5 / 900, seed=np.arange(3000))) == {0, 1, 2}


def test_bad_rows_are_named(level):
    logits = np.zeros((3, 70), np.float32)
    for value, message in [
        (np.nan, "row 1: a logit is NaN"),
        (np.inf, r"row 1: a logit is \+infinity"),
    ]:
        broken = logits.copy()
        broken[1, 65] = value
        for temperature in (0.0, 1.0):
            with pytest.raises(ValueError, match=message):
                sample(broken, temperature=temperature)
    broken = logits.copy()
    broken[2] = -np.inf
    with pytest.raises(ValueError, match="row 2: every logit is -infinity"):
        sample(broken)
    with pytest.raises(ValueError, match="row 0: temperature must be finite and at least 0"):
        sample(logits, temperature=-1.0)
    for top_p in (0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"row 0: top_p must be in \(0, 1\]"):
            sample(logits, top_p=top_p)
