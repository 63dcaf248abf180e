"""Expert weights of every type that can be stored, e4m3 codes with block scales among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Experts, WeightType
from tests.megamoe.reference import e4m3_values
from tests.megamoe.weights import F32, Weights

BLOCK = (128, 128)


@dataclass(frozen=True)
class Fp8:
    """A quantised matrix: codes [rows, cols], scales [row blocks, column blocks]."""

    codes: NDArray[np.uint8]
    scales: F32
    block: tuple[int, int] = BLOCK

    @classmethod
    def random(
        cls, rng: np.random.Generator, rows: int, cols: int, block: tuple[int, int] = BLOCK
    ) -> Fp8:
        """Every finite code, scales of any size that keeps the weight about unit norm."""
        codes = rng.integers(0, 256, (rows, cols), dtype=np.uint8)
        codes[codes & 0x7F == 0x7F] = 0x3C
        blocks = (-(-rows // block[0]), -(-cols // block[1]))
        scales = np.exp(rng.uniform(-2, 2, blocks)) / (100 * np.sqrt(cols))
        return cls(codes, scales.astype(np.float32), block)

    def values(self) -> F32:
        """The weight in float32: every product of a code and a scale, rounded once."""
        rows, cols = self.codes.shape
        scales = self.scales.repeat(self.block[0], 0)[:rows].repeat(self.block[1], 1)[:, :cols]
        return e4m3_values(self.codes) * scales


@dataclass(frozen=True)
class Fp8Weights(Weights):
    """Weights whose gate, up and down are the values of ``parts``, by (layer, expert)."""

    parts: dict[tuple[int, int], list[Fp8]] | None = None

    def load(self, experts: Experts, layer: int, expert: int) -> None:
        """Loads the codes."""
        assert self.parts is not None
        parts = self.parts[layer, expert]
        codes, scales = [p.codes for p in parts], [p.scales for p in parts]
        experts.load_fp8(layer, expert, *codes, *scales, block=BLOCK)


def random_weights(
    rng: np.random.Generator,
    layers: int,
    numbers: Sequence[int],
    hidden: int,
    width: int,
    type: WeightType,
    idle: Sequence[int] = (),
) -> Weights:
    """The experts of these numbers, under which activations keep about unit size; NaN for those of
    them that are ``idle``."""
    sizes = [(width, hidden)] * 2 + [(hidden, width)]
    values: list[dict[tuple[int, int], F32]] = [{}, {}, {}]
    parts: dict[tuple[int, int], list[Fp8]] = {}
    for at in ((layer, e) for layer in range(layers) for e in numbers):
        if type is WeightType.FP8:
            parts[at] = [Fp8.random(rng, *size) for size in sizes]
            for part in parts[at] if at[1] in idle else []:
                part.scales.fill(np.nan)
            drawn = [part.values() for part in parts[at]]
        else:
            drawn = [
                rng.standard_normal(size, np.float32) / np.float32(np.sqrt(size[1]))
                for size in sizes
            ]
            for matrix in drawn if at[1] in idle else []:
                matrix.fill(np.nan)
        for kind, matrix in zip(values, drawn, strict=True):
            kind[at] = matrix
    if type is WeightType.FP8:
        return Fp8Weights(*values, type, parts)
    return Weights(*values, type)
