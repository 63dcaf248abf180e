"""What records a worker's phases. Each class stands where the plain one would; without a timeline
none of them exists, so nothing is paid."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afd.boundary.megamoe import MegamoeFfnPort
from afd.boundary.ports import AttentionPort
from afd.models.decoder import Decoder
from afd.models.weights import LayerWeights, MoeRouter
from afd.models.workspace import Lane
from afd.worker.runner import Runner
from afd_sched.messages import FfnStep
from afd_sched.replica import RankBatch
from afd_sched.spans import Phase, Recorder

_now = time.monotonic_ns


class WatchedDecoder(Decoder):
    """Attention (and its sweep over the cache), routing and the head."""

    def __init__(self, recorder: Recorder, *arguments: Any) -> None:
        """``arguments`` are Decoder's."""
        super().__init__(*arguments)
        self._recorder = recorder

    def attend(
        self, layer: int, weights: LayerWeights, lane: Lane, page_table: NDArray[np.int32]
    ) -> None:
        """See Decoder."""
        begin_ns = _now()
        super().attend(layer, weights, lane, page_table)
        self._lane(Phase.ATTEND, begin_ns, layer, lane)

    def _sweep(self, layer: int, lane: Lane, page_table: NDArray[np.int32]) -> None:
        begin_ns = _now()
        super()._sweep(layer, lane, page_table)
        end_ns = _now()
        rows = len(lane.row_length)
        context = int(lane.row_length.mean()) if rows else 0
        self._recorder.span(Phase.SWEEP, begin_ns, end_ns, layer, lane.index, rows, context)

    def route(self, router: MoeRouter, lane: Lane) -> None:
        """See Decoder."""
        begin_ns = _now()
        super().route(router, lane)
        self._lane(Phase.ROUTE, begin_ns, router.layer, lane)

    def logits(
        self, residual: NDArray[np.float32], delta: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """See Decoder."""
        begin_ns = _now()
        super().logits(residual, delta, out)
        self._recorder.span(Phase.HEAD, begin_ns, _now(), rows=len(out))

    def _lane(self, phase: Phase, begin_ns: int, layer: int, lane: Lane) -> None:
        self._recorder.span(phase, begin_ns, _now(), layer, lane.index, len(lane.positions))


class WatchedRunner(Runner):
    """Sampling."""

    def __init__(self, recorder: Recorder, *arguments: Any) -> None:
        """``arguments`` are Runner's."""
        super().__init__(*arguments)
        self._recorder = recorder

    def sample(self, logits: NDArray[np.float32], batch: RankBatch) -> NDArray[np.int32]:
        """See Runner."""
        begin_ns = _now()
        tokens = super().sample(logits, batch)
        self._recorder.span(Phase.SAMPLE, begin_ns, _now(), rows=len(tokens))
        return tokens


class WatchedPort:
    """An AttentionPort around another: dispatch, and combine as the wait and what follows it."""

    def __init__(self, port: AttentionPort, recorder: Recorder) -> None:
        self._port = port
        self._recorder = recorder

    def dispatch(
        self,
        step: int,
        layer: int,
        lane: int,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """See AttentionPort."""
        begin_ns = _now()
        self._port.dispatch(step, layer, lane, x, ids, weights)
        self._recorder.span(Phase.DISPATCH, begin_ns, _now(), layer, lane, len(x))

    def combine(self, step: int, layer: int, lane: int, out: NDArray[np.float32]) -> None:
        """See AttentionPort."""
        waited_ns = self._port.wait_ns
        begin_ns = _now()
        self._port.combine(step, layer, lane, out)
        end_ns = _now()
        # The port waits for every FFN rank before it reduces a row.
        ready_ns = begin_ns + self._port.wait_ns - waited_ns
        self._recorder.span(Phase.WAIT, begin_ns, ready_ns, layer, lane, len(out))
        self._recorder.span(Phase.COMBINE, ready_ns, end_ns, layer, lane, len(out))

    @property
    def wait_ns(self) -> int:
        """See AttentionPort."""
        return self._port.wait_ns

    @property
    def bytes_out(self) -> int:
        """See AttentionPort."""
        return self._port.bytes_out

    @property
    def bytes_back(self) -> int:
        """See AttentionPort."""
        return self._port.bytes_back


class WatchedFfnPort:
    """An FfnPort around the boundary's: waits and tiles of each layer and lane."""

    def __init__(self, port: MegamoeFfnPort, recorder: Recorder) -> None:
        self._port = port
        self._recorder = recorder

    def serve(self, step: FfnStep) -> None:
        """See FfnPort."""
        span = self._recorder.span
        for row in self._port.serve_watched(step).tolist():
            layer, lane, waiting_ns, computing_ns, published_ns, tokens, tiles = row
            span(Phase.FFN_WAIT, waiting_ns, computing_ns, layer, lane, tokens)
            span(Phase.FFN_TILES, computing_ns, published_ns, layer, lane, tokens, tiles)

    @property
    def wait_ns(self) -> int:
        """See FfnPort."""
        return self._port.wait_ns
