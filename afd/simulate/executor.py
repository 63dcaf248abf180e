"""The seam of the simulation: step executors that take the time a real one would, and no tensor.

    plan arrives ─┐
    last step ends┴─► + CPU time of this rank's own work ─► + modelled time ─► due

A rank of a real rack has a processor to itself. Here many share one, so a step starts when its plan
arrived or the step before was due, not when this process got round to it; what the rank itself
does with the plan is charged by the CPU time it took.
"""

from __future__ import annotations

import time

import numpy as np

from afd.plan.cuts import Cut, bytes_back_per_token_layer, bytes_out_per_token_layer
from afd.plan.model_spec import ModelSpec
from afd.simulate.profile import ServiceTimes
from afd.worker.loop import WrongPlanError
from afd_sched.messages import FfnResult, FfnStep, StepPlan, StepResult
from afd_sched.replica import SlotTable

_CUT = Cut.ROUTED_TOKENS


class SimulatedAttention:
    """A StepExecutor with a real slot table and modelled decode steps.

    Prompts are taken in without modelled time: what is simulated is decoding.
    """

    def __init__(self, rank: int, table: SlotTable, model: ModelSpec, times: ServiceTimes) -> None:
        self.due_ns = 0
        self._rank = rank
        self._table = table
        self._vocabulary = model.vocabulary
        self._times = times
        layers = model.moe_layers
        self._bytes_out = int(bytes_out_per_token_layer(model, _CUT) * layers)
        self._bytes_back = int(bytes_back_per_token_layer(model, _CUT) * layers)
        self._result: StepResult

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        """See StepExecutor; raises PlanError, WrongPlanError."""
        if not isinstance(plan, StepPlan):
            raise WrongPlanError(plan)
        start_ns = max(arrived_ns, self.due_ns)
        cpu_ns = time.thread_time_ns()
        batch = self._table.apply(plan)
        tokens = ((batch.position + self._rank) % self._vocabulary).astype(np.int32)
        self._table.record(tokens)
        rows = len(batch.row_slot)
        step_us = wait_us = 0.0
        if not plan.extend:
            context = int(batch.row_position.mean()) + 1
            modelled = self._times.step(rows, context, plan.lanes)
            step_us, wait_us = modelled.step_us, modelled.wait_us
        self._result = StepResult(
            step=plan.step,
            rank=self._rank,
            tokens=tokens.tobytes(),
            busy_us=int(step_us - wait_us),
            wait_us=int(wait_us),
            bytes_out=rows * self._bytes_out,
            bytes_back=rows * self._bytes_back,
        )
        own_ns = time.thread_time_ns() - cpu_ns
        self.due_ns = start_ns + own_ns + int(step_us * 1000)

    def finish(self) -> StepResult:
        """See StepExecutor."""
        return self._result


class SimulatedFfn:
    """A StepExecutor that answers at once: the pipeline model puts the experts' time into the
    attention ranks' step, and an FFN rank is told no number of rows."""

    due_ns = 0

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._step = -1

    def begin(self, plan: StepPlan | FfnStep, arrived_ns: int) -> None:
        """See StepExecutor; raises WrongPlanError."""
        if not isinstance(plan, FfnStep):
            raise WrongPlanError(plan)
        self._step = plan.step

    def finish(self) -> FfnResult:
        """See StepExecutor."""
        return FfnResult(step=self._step, rank=self._rank, busy_us=0, wait_us=0)
