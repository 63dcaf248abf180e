"""Step time and throughput of one layout, colocated or disaggregated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from afd.plan.cuts import (
    Cut,
    attention_dense_share,
    bytes_back_per_token_layer,
    bytes_out_per_token_layer,
)
from afd.plan.hardware import Hardware
from afd.plan.memory import DEFAULT_RULE, MemoryRule
from afd.plan.model_spec import ModelSpec
from afd.plan.pipeline import conditions, lane_period_us, step_us, tokens_per_s_per_gpu
from afd.plan.skew import busiest_rank_factor, measured_rank_factor, slowest_rank_factor
from afd.plan.times.calibration import Calibration
from afd.plan.times.experts import fused_us, staged_us, unfused_period_us
from afd.plan.times.kernels import KernelTimes, held_processors_us, link_transfer


@dataclass(frozen=True)
class Workload:
    """What is served: context per request, and how uneven contexts and experts are."""

    context_tokens: float
    kv_bytes_per_element: float = 2.0
    context_cv: float = 0.0
    skew_exponent: float | None = None
    expert_counts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bench:
    """Everything an estimate needs besides the layout."""

    model: ModelSpec
    hardware: Hardware
    calibration: Calibration
    kernels: KernelTimes
    workload: Workload
    rule: MemoryRule = DEFAULT_RULE

    def at_context(self, context_tokens: float) -> Bench:
        """The same with another context length."""
        return replace(self, workload=replace(self.workload, context_tokens=context_tokens))

    def busiest(self, ranks: int) -> float:
        """Rows of the busiest expert rank over the mean."""
        if self.workload.expert_counts:
            return measured_rank_factor(self.workload.expert_counts, ranks)
        exponent = self.workload.skew_exponent
        if exponent is None:
            exponent = self.calibration.skew_exponent
        return busiest_rank_factor(
            self.model.experts, self.model.experts_per_token, ranks, exponent
        )


@dataclass(frozen=True)
class Estimate:
    """One layout's step, per layer and lane in µs and as a whole in ms."""

    layout: str
    system: str
    attention_nodes: int
    ffn_nodes: int
    expert_parallel: int
    lanes: int
    cut: str
    batch_per_gpu: int
    step_ms: float
    tokens_per_s_per_gpu: float
    terms_us: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    regime: str = ""

    @property
    def gpu_tokens_per_s(self) -> float:
        return self.tokens_per_s_per_gpu


def colocated(bench: Bench, expert_parallel: int, batch: int) -> Estimate:
    """Attention and experts on the same GPUs, DP = EP; the MoE stages are serial.

    T = L (T_FMHA + T_dense + rounds × (start + weights + GEMM + wire)) + head.
    """
    model, kernels, cal = bench.model, bench.kernels, bench.calibration
    slow = slowest_rank_factor(expert_parallel, batch, bench.workload.context_cv)
    fmha = kernels.attention(batch, bench.workload.context_tokens * slow, bench.hardware.processors)
    dense = kernels.dense(batch)
    rounds = math.ceil(batch / cal.dispatch_round_tokens)
    link = _routed_bytes(model)
    moe = kernels.experts(batch / rounds, expert_parallel, bench.busiest(expert_parallel), link)
    moe_us = rounds * staged_us(moe, cal, expert_parallel)
    head = kernels.head(batch)
    moe_total = model.moe_layers * moe_us
    step_ms = (model.layers * (fmha.us + dense.us) + moe_total + head.us) * 1e-3
    return Estimate(
        layout=f"colocated EP{expert_parallel}", system="colocated", attention_nodes=0,
        ffn_nodes=0, expert_parallel=expert_parallel, lanes=1, cut="none", batch_per_gpu=batch,
        step_ms=step_ms, tokens_per_s_per_gpu=tokens_per_s_per_gpu(batch, step_ms),
        terms_us={
            "T_FMHA": fmha.us, "T_dense": dense.us, "T_moe": moe_us,
            "moe start": moe_us - rounds * moe.sum_us, "moe launches": rounds * moe.launch_us,
            "moe weights": rounds * moe.weights_us, "moe GEMM": rounds * moe.compute_us,
            "dispatch+combine": rounds * moe.wire_us, "head per step": head.us,
        },
        sources={"T_FMHA": fmha.source, "T_dense": dense.source, "T_moe": moe.source,
                 "moe start": moe.source if moe.complete else cal.source,
                 "dispatch+combine": moe.wire_source or moe.source,
                 "head per step": head.source},
        regime="serial",
    )  # fmt: skip


def _routed_bytes(model: ModelSpec) -> float:
    """Bytes of a token's routed copies out and back: 3 per hidden element and copy."""
    return bytes_out_per_token_layer(model, Cut.ROUTED_TOKENS) + bytes_back_per_token_layer(
        model, Cut.ROUTED_TOKENS
    )


def disaggregated(
    bench: Bench,
    attention_nodes: int,
    ffn_nodes: int,
    batch: int,
    lanes: int = 2,
    cut: Cut = Cut.ROUTED_TOKENS,
    fused: bool = True,
    expert_parallel: int | None = None,
) -> Estimate:
    """M attention nodes, N FFN nodes, ``batch`` resident requests per attention GPU.

    ``fused`` false prices the ablation: dispatch, GEMM and combine as separate launches.
    ``expert_parallel`` below the FFN GPUs' number means replicas of the experts that share the
    attention side between them.
    """
    model, hardware, cal = bench.model, bench.hardware, bench.calibration
    lane_batch = batch / lanes
    ranks = expert_parallel or ffn_nodes * hardware.gpus_per_node
    slow = slowest_rank_factor(
        attention_nodes * hardware.gpus_per_node, batch, bench.workload.context_cv
    )
    fmha = bench.kernels.attention(
        lane_batch, bench.workload.context_tokens * slow,
        hardware.processors - hardware.boundary_processors,
    )  # fmt: skip
    dense = bench.kernels.dense(lane_batch)
    share = attention_dense_share(model, cut)
    out_bytes = bytes_out_per_token_layer(model, cut)
    back_bytes = bytes_back_per_token_layer(model, cut)
    per_ffn_gpu = attention_nodes / ffn_nodes * lane_batch
    moe = bench.kernels.experts(
        per_ffn_gpu, ranks, bench.busiest(ranks), _ffn_wire_bytes(model, cut)
    )
    moved = 0.0
    if share < 1:
        moved = (1 - share) * bench.kernels.dense(per_ffn_gpu).us
    te = moved + (fused_us(moe, cal) if fused else staged_us(moe, cal, ranks))
    if cut is Cut.ROUTED_TOKENS:
        out, back = bench.kernels.transfer(lane_batch, out_bytes, back_bytes)
    else:
        out, back = link_transfer(hardware, lane_batch, out_bytes, back_bytes)
    tc = (out.us + back.us) / 2
    held_us = 0.0
    if lanes > 1 and not fmha.complete:
        held_us = _held_us(bench, lane_batch, fmha.us, te + 2 * tc - share * dense.us / 2)
    ta = fmha.us + held_us + share * dense.us
    period = _cut_period_us(cut, fmha.us, ta, te, tc, lanes)
    if not fused:
        slots = (attention_nodes + ffn_nodes) / ffn_nodes * model.experts
        period = unfused_period_us(ta, moe, cal, slots)
    fill = ta + te + 2 * tc
    head = bench.kernels.head(batch)
    body_us = fill + period * (lanes * model.moe_layers - 1)
    body_us += (model.layers - model.moe_layers) * lanes * ta
    step_ms = (body_us + head.us) * 1e-3
    met = conditions(ta, te, tc, lanes)
    return Estimate(
        layout=f"AFD {attention_nodes}:{ffn_nodes}", system="afd",
        attention_nodes=attention_nodes, ffn_nodes=ffn_nodes, expert_parallel=ranks, lanes=lanes,
        cut=cut.value, batch_per_gpu=batch, step_ms=step_ms,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu(batch, step_ms, attention_nodes, ffn_nodes),
        terms_us={
            "T_FMHA": fmha.us, "boundary in its way": held_us, "T_dense": share * dense.us,
            "T_a": ta, "T_e": te, "T_c": tc,
            "dispatch": out.us, "combine": back.us, "ffn weights": moe.weights_us,
            "ffn GEMM": moe.compute_us, "ffn wire": moe.wire_us, "dense moved": moved,
            "period": period, "exposed": period - ta, "head per step": head.us,
        },
        sources={"T_FMHA": fmha.source, "T_dense": dense.source, "T_e": moe.source,
                 "ffn wire": moe.wire_source or moe.source, "T_c": out.source,
                 "combine": back.source, "head per step": head.source},
        regime="hidden" if met.fully_hidden or period <= ta * 1.0001 else
        ("FFN exposed" if te > ta else "transfer exposed"),
    )  # fmt: skip


def _held_us(bench: Bench, lane_batch: float, fmha_us: float, away_us: float) -> float:
    """What attention waits for processors that another lane's boundary kernel holds.

    Only where a tile is split over several processors, which all get an equal part: whole tiles go
    to whichever processor is free. ``away_us`` is how long that kernel stays after this lane's
    attention could start.
    """
    hardware = bench.hardware
    if 2 * lane_batch * bench.model.kv_heads > hardware.processors:
        return 0.0
    held_share = hardware.boundary_processors / hardware.processors
    bandwidth_share = bench.calibration.processor_bandwidth_share
    return held_processors_us(fmha_us, away_us, held_share, bandwidth_share)


def _ffn_wire_bytes(model: ModelSpec, cut: Cut) -> float:
    """Bytes an FFN GPU moves per token it is responsible for, both ways."""
    if cut is Cut.ROUTED_TOKENS:
        return _routed_bytes(model)
    inside = _routed_bytes(model)
    return inside + bytes_out_per_token_layer(model, cut) + bytes_back_per_token_layer(model, cut)


def _cut_period_us(
    cut: Cut, fmha_us: float, ta_us: float, te_us: float, tc_us: float, lanes: int
) -> float:
    """Query-first: within one lane the sweep runs while the pool works, so the round trip is
    max(T_FMHA, T_e + 2 T_c) plus the rest of T_a; the other cuts are serial within a lane."""
    if cut is not Cut.QUERY_FIRST:
        return lane_period_us(ta_us, te_us, tc_us, lanes)
    round_trip = max(fmha_us, te_us + 2 * tc_us) + (ta_us - fmha_us)
    return max(ta_us, te_us, round_trip / lanes)


__all__ = ["Bench", "Estimate", "Workload", "colocated", "disaggregated", "step_us"]
