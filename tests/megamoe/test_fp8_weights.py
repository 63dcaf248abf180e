"""Experts whose weights stay e4m3 with block scales, at every instruction-set level."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from afd import _megamoe as ops
from afd._megamoe import Experts, Pool, WeightType
from tests.megamoe.fp8_weights import BLOCK, Fp8
from tests.megamoe.reference import e4m3_values, expert
from tests.megamoe.weights import Weights


@pytest.fixture(params=ops.isa_levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = ops.isa_level()
    ops.isa_level(request.param)
    yield request.param
    ops.isa_level(before)


def _bank(width: int, hidden: int, experts: int, dtype: WeightType = WeightType.FP8) -> Experts:
    return Experts(
        moe_layers=1, expert_ids=list(range(experts)), hidden=hidden, width=width, dtype=dtype
    )


def _load(bank: Experts, expert: int, parts: list[Fp8]) -> None:
    bank.load_fp8(
        0, expert, *(p.codes for p in parts), *(p.scales for p in parts), block=parts[0].block
    )


@pytest.mark.parametrize(
    ("hidden", "width", "block"),
    [(576, 192, BLOCK), (300, 83, BLOCK), (129, 16, BLOCK), (257, 260, (16, 256))],
)
def test_every_level_computes_experts_of_e4m3_weights(
    level: str, hidden: int, width: int, block: tuple[int, int]
) -> None:
    rng = np.random.default_rng(hidden)
    bank, weights = _bank(width, hidden, 3), []
    for e in range(3):
        parts = [Fp8.random(rng, *s, block) for s in [(width, hidden)] * 2 + [(hidden, width)]]
        _load(bank, e, parts)
        weights.append([part.values() for part in parts])
    x = rng.standard_normal((40, hidden)).astype(np.float32)
    ids = rng.integers(0, 3, (40, 1), dtype=np.int32)
    ids[:29] = 1  # more rows than a register tile, and single ones
    out = np.full_like(x, np.nan)
    bank.forward(Pool(2), 0, x, ids, np.ones((40, 1), np.float32), out)
    for e in range(3):
        rows = ids[:, 0] == e
        seen = torch.from_numpy(x[rows]).double()
        y, slack = expert(seen, *weights[e], WeightType.FP8, level)
        expected = y.numpy()
        spread = np.abs(expected).mean(axis=1, keepdims=True)
        assert (np.abs(out[rows] - expected) <= slack.numpy() + 1e-4 * spread).all()
        alone = np.empty_like(x[rows][:1])
        bank.forward(Pool(1), 0, x[rows][:1], ids[rows][:1], np.ones((1, 1), np.float32), alone)
        np.testing.assert_array_equal(alone, out[rows][:1])


def test_all_codes_become_their_value(level: str) -> None:
    """With an identity for gate and a constant for up, the code's value comes out of down."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    hidden = len(codes)
    zeros = np.zeros((16, hidden), np.uint8)
    gate, up = zeros.copy(), zeros.copy()
    gate[0, 0] = up[0, 0] = 0x38  # 1.0
    down = np.zeros((hidden, 16), np.uint8)
    down[:, 0] = codes
    bank = _bank(16, hidden, 1)
    ones = np.ones((1, 2), np.float32)
    bank.load_fp8(0, 0, gate, up, down, ones, ones, np.ones((2, 1), np.float32), block=BLOCK)
    x = np.zeros((1, hidden), np.float32)
    x[0, 0] = 32  # silu(32) is 32
    out = np.empty_like(x)
    bank.forward(Pool(1), 0, x, np.zeros((1, 1), np.int32), ones[:, :1], out)
    np.testing.assert_array_equal(out[0], e4m3_values(codes) * 1024)


def test_memory_is_half_of_bfloat16() -> None:
    narrow, wide = _bank(768, 2048, 2), _bank(768, 2048, 2, WeightType.BF16)
    assert narrow.nbytes <= 0.51 * wide.nbytes


def test_what_cannot_be_loaded_says_why() -> None:
    rng = np.random.default_rng(0)
    parts = [Fp8.random(rng, *s, BLOCK) for s in [(32, 200)] * 2 + [(200, 32)]]
    bank = _bank(32, 200, 1)
    with pytest.raises(ValueError, match="multiple of 16 rows, covers 100"):
        _load(
            bank,
            0,
            [
                Fp8(
                    p.codes,
                    np.ones((3, 2), np.float32)[
                        : -(-len(p.codes) // 100), : -(-p.codes.shape[1] // 128)
                    ].copy(),
                    (100, 128),
                )
                for p in parts
            ],
        )
    parts[1].codes[3, 7] = 0xFF
    with pytest.raises(ValueError, match="not a number, in column 7"):
        _load(bank, 0, parts)
    weights = Weights.random(rng, 1, 1, 200, 32)
    with pytest.raises(ValueError, match="codes with their scales"):
        bank.load(0, 0, weights.gate[0, 0], weights.up[0, 0], weights.down[0, 0])
    parts[1].codes[3, 7] = 0
    with pytest.raises(ValueError, match="need a matrix of FP8 weights"):
        _load(_bank(32, 200, 1, WeightType.BF16), 0, parts)
    with pytest.raises(ValueError, match="KV cache"):
        ops.KvCache(1, 1, 16, 1, 16, WeightType.FP8)
