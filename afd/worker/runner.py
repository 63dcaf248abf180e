"""One step of an attention rank: lanes pipelined over layers, so that one computes while another
is away at the experts.

    lane 0   attend 0 ─ dispatch ─┐ (away)      combine ─ attend 1 ─ dispatch ─┐
    lane 1                attend 0 ─ dispatch ─┐ (away)               combine ─ attend 1 …
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd.boundary.ports import AttentionPort
from afd.models.config import ModelConfig
from afd.models.decoder import Decoder
from afd.models.weights import DenseFfn, MoeRouter
from afd.models.workspace import Lane, Workspace
from afd_sched.replica import RankBatch


class Runner:
    """Runs planned batches through the decoder and the boundary."""

    def __init__(
        self,
        model: ModelConfig,
        decoder: Decoder,
        port: AttentionPort,
        max_rows: int,
        page_size: int,
    ) -> None:
        self._model = model
        self._decoder = decoder
        self._port = port
        self._page_size = page_size
        self._workspace = Workspace(model, max_rows)
        self._logits = np.empty((0, model.vocab), np.float32)

    def forward(self, step: int, lane_count: int, batch: RankBatch) -> NDArray[np.float32]:
        """Logits [sampled rows, vocab] of a batch, valid until the next call."""
        lanes = self._split(lane_count, batch)
        for lane, tokens in zip(lanes, self._tokens(lanes, batch), strict=True):
            self._decoder.embed(tokens, lane)
        away: list[int | None] = [None] * lane_count
        for layer, weights in enumerate(self._decoder.layers):
            for lane in lanes:
                self._collect(step, away, lane)
                self._decoder.attend(layer, weights, lane, batch.page_table)
                if isinstance(weights.ffn, DenseFfn):
                    self._decoder.dense(weights.ffn, lane)
                else:
                    self._dispatch(step, weights.ffn, lane)
                    away[lane.index] = weights.ffn.layer
        for lane in lanes:
            self._collect(step, away, lane)
        return self._readout(batch.sample_rows)

    def sample(self, logits: NDArray[np.float32], batch: RankBatch) -> NDArray[np.int32]:
        """One token per sampled row."""
        tokens = np.empty(len(logits), np.int32)
        ops.sample(
            logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.seed,
            batch.position,
            tokens,
        )
        return tokens

    def _split(self, lane_count: int, batch: RankBatch) -> list[Lane]:
        page, offset = np.divmod(batch.row_position, np.int32(self._page_size))
        pages = batch.page_table[batch.row_slot, page].astype(np.int64)
        locations = pages * self._page_size + offset
        return self._workspace.lanes(lane_count, batch.row_slot, batch.row_position, locations)

    @staticmethod
    def _tokens(lanes: list[Lane], batch: RankBatch) -> list[NDArray[np.int32]]:
        ends = np.cumsum([len(lane.positions) for lane in lanes])
        return np.split(batch.row_token, ends[:-1])

    def _dispatch(self, step: int, router: MoeRouter, lane: Lane) -> None:
        self._decoder.route(router, lane)
        self._port.dispatch(step, router.layer, lane.index, lane.hidden, lane.ids, lane.weights)

    def _collect(self, step: int, away: list[int | None], lane: Lane) -> None:
        layer = away[lane.index]
        if layer is not None:
            self._port.combine(step, layer, lane.index, lane.delta)
            away[lane.index] = None

    def _readout(self, sample_rows: NDArray[np.int32]) -> NDArray[np.float32]:
        count = len(sample_rows)
        if len(self._logits) < count:
            self._logits = np.empty((count, self._model.vocab), np.float32)
        logits = self._logits[:count]
        if count:
            self._decoder.logits(
                self._workspace.residual[sample_rows], self._workspace.delta[sample_rows], logits
            )
        return logits
