"""The router's choice of experts."""

from __future__ import annotations

import numpy as np
import pytest

from afd import _megamoe as ops
from tests.attention_ops.arrays import normal, strided

SIZES = [(1, 1), (4, 2), (16, 8), (60, 4), (128, 8), (257, 16), (10, 10)]


def choose(scores, k):
    """Descending, equal scores by ascending id."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)


@pytest.mark.parametrize(("experts", "k"), SIZES)
@pytest.mark.parametrize("renormalize", [True, False])
def test_softmax(level, experts, k, renormalize, rng):
    n = 37
    logits = strided(normal(rng, n, experts) * np.float32(3.0))
    logits[5] += 1e4
    ids, weights = np.zeros((n, k), np.int32), np.zeros((n, k), np.float32)
    ops.route_softmax(logits, renormalize, ids, weights)
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert np.array_equal(ids, choose(p, k))
    expected = np.take_along_axis(p, ids.astype(np.int64), 1)
    if renormalize:
        expected /= expected.sum(1, keepdims=True)
    assert np.allclose(weights, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(("experts", "k"), SIZES)
def test_sigmoid(level, experts, k, rng):
    n = 37
    logits, bias = strided(normal(rng, n, experts)), normal(rng, experts)
    ids, weights = np.zeros((n, k), np.int32), np.zeros((n, k), np.float32)
    ops.route_sigmoid(logits, bias, ids, weights)
    gates = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    assert np.array_equal(ids, choose(gates + bias, k))
    expected = np.take_along_axis(gates, ids.astype(np.int64), 1)
    expected /= expected.sum(1, keepdims=True)
    assert np.allclose(weights, expected, rtol=2e-6, atol=0)


def test_ties_go_to_the_lower_id(level):
    logits = np.array([[1, 3, 3, 1, 3, 0, 1, 1]], np.float32)
    ids, weights = np.zeros((1, 5), np.int32), np.zeros((1, 5), np.float32)
    ops.route_softmax(logits, True, ids, weights)
    assert ids.tolist() == [[1, 2, 4, 0, 3]]
    ops.route_sigmoid(logits, np.zeros(8, np.float32), ids, weights)
    assert ids.tolist() == [[1, 2, 4, 0, 3]]
    # The bias decides who is chosen, not with what weight.
    ops.route_sigmoid(logits, np.array([9, 0, 0, 9, 0, 9, 9, 9], np.float32), ids, weights)
    assert ids.tolist() == [[0, 3, 6, 7, 5]]
    assert np.all(weights[0, :4] > weights[0, 4])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_name_the_row(level, broken):
    logits = np.zeros((3, 8), np.float32)
    logits[1, 4] = broken
    ids, weights = np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="logits row 1 holds NaN or infinity"):
        ops.route_softmax(logits, True, ids, weights)
    logits[1, 4] = np.nan
    with pytest.raises(ValueError, match="logits row 1 holds NaN or infinity"):
        ops.route_sigmoid(logits, np.zeros(8, np.float32), ids, weights)
    with pytest.raises(ValueError, match="ids asks for 9 of 8 experts"):
        ops.route_softmax(logits, True, np.zeros((3, 9), np.int32), np.zeros((3, 9), np.float32))


def test_a_masked_expert_is_never_chosen_first(level):
    logits = np.array([[-np.inf, 0.0, -np.inf, 1.0]], np.float32)
    ids, weights = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32)
    ops.route_softmax(logits, True, ids, weights)
    assert ids.tolist() == [[3, 1]]
