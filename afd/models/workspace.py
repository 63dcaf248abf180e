"""The attention worker's activation buffers, allocated once; a step takes views of their rows.

rows of a step   [0 ......... a | a ......... b | b ...]      every buffer is [max_rows, width]
                   lane 0          lane 1         lane 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd.models.config import ModelConfig

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Lane:
    """Views of one lane's rows, and where they read and write the KV cache.

    ``residual`` is the stream; ``delta`` what the last block adds to it; ``hidden`` the normed
    input of the block at work.
    """

    index: int
    positions: I32
    row_slot: I32
    row_length: I32
    locations: NDArray[np.int64]
    residual: F32
    delta: F32
    hidden: F32
    qkv: F32
    q: F32
    k: F32
    v: F32
    attended: F32
    lse: F32
    gate_up: F32
    act: F32
    logits: F32
    ids: I32
    weights: F32


class Workspace:
    """Buffers of ``max_rows`` rows."""

    def __init__(self, model: ModelConfig, max_rows: int) -> None:
        def rows(width: int) -> F32:
            return np.zeros((max_rows, width), np.float32)

        self._model = model
        has_dense = len(model.moe_layers) < model.layers
        self.residual = rows(model.hidden)
        self.delta = rows(model.hidden)
        self._hidden = rows(model.hidden)
        self._qkv = rows(model.q_width + 2 * model.kv_width)
        self._attended = rows(model.q_width)
        self._lse = rows(model.heads)
        self._gate_up = rows(2 * model.dense_width if has_dense else 0)
        self._act = rows(model.dense_width if has_dense else 0)
        self._logits = rows(model.experts)
        self._ids = np.zeros((max_rows, model.top_k), np.int32)
        self._weights = rows(model.top_k)

    def lanes(
        self, count: int, row_slot: I32, positions: I32, locations: NDArray[np.int64]
    ) -> list[Lane]:
        """Splits the step's rows into ``count`` lanes of nearly equal size, in order.

        A row's KV is written by its own lane before any later lane of the same layer reads it, so
        one prompt's chunk may span lanes.
        """
        total = len(row_slot)
        bounds = [total * i // count for i in range(count + 1)]
        lengths = positions + 1
        return [
            self._lane(i, slice(bounds[i], bounds[i + 1]), row_slot, positions, lengths, locations)
            for i in range(count)
        ]

    def _lane(
        self,
        index: int,
        rows: slice,
        row_slot: I32,
        positions: I32,
        lengths: I32,
        locations: NDArray[np.int64],
    ) -> Lane:
        q_width, kv_width = self._model.q_width, self._model.kv_width
        qkv = self._qkv[rows]
        return Lane(
            index=index,
            positions=positions[rows],
            row_slot=row_slot[rows],
            row_length=lengths[rows],
            locations=locations[rows],
            residual=self.residual[rows],
            delta=self.delta[rows],
            hidden=self._hidden[rows],
            qkv=qkv,
            q=qkv[:, :q_width],
            k=qkv[:, q_width : q_width + kv_width],
            v=qkv[:, q_width + kv_width :],
            attended=self._attended[rows],
            lse=self._lse[rows],
            gate_up=self._gate_up[rows],
            act=self._act[rows],
            logits=self._logits[rows],
            ids=self._ids[rows],
            weights=self._weights[rows],
        )
