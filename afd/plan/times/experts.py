"""One MoE layer's expert work, as separate stages and as one persistent kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from afd.plan.times.calibration import Calibration


@dataclass(frozen=True)
class ExpertTerm:
    """Expert work of the busiest rank: reading weights, computing, moving rows.

    ``launch_us`` is what the stages' own launches add where ``weights_us`` and ``compute_us`` come
    from timed launches. ``complete`` marks a time measured end to end: nothing is added to it.
    """

    weights_us: float
    compute_us: float
    wire_us: float
    source: str
    launch_us: float = 0.0
    complete: bool = False
    wire_source: str = ""

    @property
    def sum_us(self) -> float:
        return self.launch_us + self.weights_us + self.compute_us + self.wire_us


def dispatch_start_us(calibration: Calibration, ranks: int) -> float:
    """Launches and synchronisation of one staged exchange among ``ranks`` ranks."""
    doublings = max(0.0, math.log2(ranks / 4))
    return calibration.colocated_moe_us + calibration.ep_doubling_us * doublings


def staged_us(term: ExpertTerm, calibration: Calibration, ranks: int) -> float:
    """Dispatch, grouped GEMMs and combine as launches one after another."""
    if term.complete:
        return term.sum_us
    return dispatch_start_us(calibration, ranks) + term.sum_us


def fused_us(term: ExpertTerm, calibration: Calibration) -> float:
    """The persistent FFN kernel: no launches, and rows move while other tiles compute."""
    if term.complete:
        return term.sum_us
    return calibration.ffn_start_us + term.weights_us + max(term.compute_us, term.wire_us)


def unfused_period_us(
    attention_us: float, term: ExpertTerm, calibration: Calibration, slots: float
) -> float:
    """Period of a lane and layer when dispatch, GEMM and combine are separate launches.

    Dispatch and combine are collectives of both sides over ``slots`` expert slots (every rank of
    the group has as many as an FFN rank, dummies included), so neither side computes meanwhile.
    """
    meeting_us = calibration.slot_us * slots + term.wire_us
    return max(attention_us, term.sum_us - term.wire_us) + meeting_us
