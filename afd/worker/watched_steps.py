"""What records a rank's whole steps, on tensors or simulated."""

from __future__ import annotations

import time

from afd.worker.loop import StepExecutor
from afd_sched.ints import unpack_pairs
from afd_sched.messages import FfnResult, FfnStep, StepPlan, StepResult
from afd_sched.spans import Phase, Recorder

_now = time.monotonic_ns


class WatchedExecutor:
    """A StepExecutor around another: whole steps."""

    def __init__(self, executor: StepExecutor, recorder: Recorder) -> None:
        self._executor = executor
        self._recorder = recorder
        self._begin_ns = 0
        self._prompt_tokens = 0

    @property
    def due_ns(self) -> int:
        """See StepExecutor."""
        return self._executor.due_ns

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        """See StepExecutor."""
        self._recorder.step = plan.step
        self._prompt_tokens = 0
        if isinstance(plan, StepPlan) and plan.extend:
            self._prompt_tokens = int(unpack_pairs(plan.extend)[:, 1].sum())
        self._begin_ns = _now()
        self._executor.begin(plan, arrived_ns)

    def finish(self) -> StepResult | FfnResult:
        """See StepExecutor."""
        result = self._executor.finish()
        rows = len(result.tokens) // 4 if isinstance(result, StepResult) else 0
        self._recorder.span(
            Phase.STEP, self._begin_ns, _now(), rows=rows, detail=self._prompt_tokens
        )
        return result
