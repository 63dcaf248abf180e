"""A StepLoop that records when it commits, plans and publishes; used only with a timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator

from afd_sched.scheduler import Scheduler, StepBundle
from afd_sched.spans import Phase, Recorder
from afd_sched.steps import InFlight, Outgoing, StepLoop


class WatchedStepLoop(StepLoop):
    """See the module. A publication lasts until its last plan is handed to the socket."""

    def __init__(
        self, scheduler: Scheduler, attention_ranks: int, ffn_ranks: int, recorder: Recorder
    ) -> None:
        super().__init__(scheduler, attention_ranks, ffn_ranks)
        self._recorder = recorder

    def _plan(self) -> StepBundle | None:
        begin_ns = time.monotonic_ns()
        bundle = super()._plan()
        if bundle is not None:
            self._recorder.step = bundle.step
            self._recorder.span(
                Phase.PLAN, begin_ns, time.monotonic_ns(), detail=bundle.extend_tokens
            )
        return bundle

    def _publish(self, bundle: StepBundle, now_ms: float) -> Iterator[Outgoing]:
        begin_ns = time.monotonic_ns()
        yield from super()._publish(bundle, now_ms)
        self._recorder.step = bundle.step
        self._recorder.span(Phase.PUBLISH, begin_ns, time.monotonic_ns(), rows=len(bundle.plans))

    def _commit(self, step: InFlight, now_ms: float) -> Outgoing:
        begin_ns = time.monotonic_ns()
        outgoing = super()._commit(step, now_ms)
        self._recorder.step = step.bundle.step
        self._recorder.span(Phase.COMMIT, begin_ns, time.monotonic_ns())
        return outgoing
