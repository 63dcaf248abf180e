"""Experts as the tests draw them; without torch, which an FFN process has no use for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Experts, WeightType

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Matrices = NDArray[np.float32] | dict[tuple[int, int], F32]


@dataclass(frozen=True)
class Weights:
    """gate, up [width, hidden] and down [hidden, width] by (layer, expert): arrays of all of them,
    or dicts of a few. ``type`` is what they are stored as, which may round them."""

    gate: Matrices
    up: Matrices
    down: Matrices
    type: WeightType = WeightType.FP32

    def has(self, layer: int, expert: int) -> bool:
        """Whether there are weights to load."""
        return not isinstance(self.gate, dict) or (layer, expert) in self.gate

    def load(self, experts: Experts, layer: int, expert: int) -> None:
        """Loads one expert."""
        at = layer, expert
        experts.load(layer, expert, self.gate[at], self.up[at], self.down[at])

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        layers: int,
        experts: int,
        hidden: int,
        width: int,
        type: WeightType = WeightType.FP32,
    ) -> Weights:
        """Weights under which activations keep about unit size."""
        wide = (layers, experts, width, hidden)
        narrow = (layers, experts, hidden, width)
        return cls(
            gate=(rng.standard_normal(wide) / np.sqrt(hidden)).astype(np.float32),
            up=(rng.standard_normal(wide) / np.sqrt(hidden)).astype(np.float32),
            down=(rng.standard_normal(narrow) / np.sqrt(width)).astype(np.float32),
            type=type,
        )
