"""Rubin + LPX: what moving the MoE, or dense work too, would give, and whether it is feasible."""

from __future__ import annotations

import math
from dataclasses import dataclass

from afd.plan.cuts import Cut
from afd.plan.hardware import Hardware
from afd.plan.layouts import Bench, colocated
from afd.plan.memory import attention_batch, batch_expansion
from afd.plan.model_spec import ModelSpec

LPUS_PER_RACK = 256
LPX_RACKS_PER_RUBIN_RACK = 2


@dataclass(frozen=True)
class Decomposition:
    """T = T_FMHA + T_dense + T_moe of one colocated decode step, in ms."""

    fmha_ms: float
    dense_ms: float
    moe_ms: float

    @property
    def step_ms(self) -> float:
        return self.fmha_ms + self.dense_ms + self.moe_ms

    @property
    def moe_only_speedup(self) -> float:
        """1 / (1 − MoE share): MoE time hidden, tax gone, the batch factor cancelled."""
        return self.step_ms / (self.fmha_ms + self.dense_ms)

    @property
    def dense_and_moe_speedup(self) -> float:
        """1 / FMHA share: only the cache sweep is left on the attention side."""
        return self.step_ms / self.fmha_ms


def decompose(bench: Bench, expert_parallel: int, batch: int) -> Decomposition:
    """The colocated step's three parts; the head's work counts as dense."""
    got = colocated(bench, expert_parallel, batch)
    layers = bench.model.layers
    return Decomposition(
        fmha_ms=layers * got.terms_us["T_FMHA"] * 1e-3,
        dense_ms=(layers * got.terms_us["T_dense"] + got.terms_us["head per step"]) * 1e-3,
        moe_ms=bench.model.moe_layers * got.terms_us["T_moe"] * 1e-3,
    )


def moe_flops_per_token(model: ModelSpec) -> float:
    """Multiply-adds × 2 of all routed experts of one token over all layers."""
    per_expert = 6.0 * model.hidden * model.expert_width
    return model.moe_layers * model.experts_per_token * per_expert


def dense_flops_per_token(model: ModelSpec) -> float:
    """Projections of all layers."""
    return 2.0 * model.layers * model.attention_weight_elements


@dataclass(frozen=True)
class Projection:
    """The projection's result; times in ms per step, bytes per Rubin GPU and step."""

    model: str
    context_tokens: float
    base: Decomposition
    moe_only_speedup: float
    dense_and_moe_speedup: float
    rubin_batch: int
    rubin_batch_expansion: float
    weights_gb: float
    lpx_memory_gb: float
    capacity_ok: bool
    rubin_fmha_ms: float
    rubin_dense_ms: float
    lpx_moe_ms: float
    lpx_dense_budget_ms: float
    compute_ok: bool
    dense_compute_ok: bool
    wire_bytes_per_hidden_once: float
    wire_bytes_routed_copies: float
    transport_ms: float
    transport_ok: bool
    verdict: str


def project(
    bench: Bench, rubin: Hardware, lpx: Hardware, expert_parallel: int, batch: int,
    racks: int = LPX_RACKS_PER_RUBIN_RACK,
) -> Projection:  # fmt: skip
    """Takes the base chip's shares over to Rubin, and checks capacity, compute and transport.

    Rubin times scale with memory bandwidth (22 / 8); LPX compute is at published peak, fed by the
    whole Rubin rack.
    """
    model, workload = bench.model, bench.workload
    base = decompose(bench, expert_parallel, batch)
    kv = workload.kv_bytes_per_element
    rubin_batch = attention_batch(
        model, rubin, Cut.ROUTED_TOKENS, workload.context_tokens, kv, bench.rule
    )
    scale = bench.hardware.memory_bytes_per_s / rubin.memory_bytes_per_s
    growth = rubin_batch / batch
    fmha_ms, dense_ms = base.fmha_ms * growth * scale, base.dense_ms * scale
    lpx_flops = racks * LPUS_PER_RACK * lpx.fp8_flops_per_s
    tokens = rubin_batch * rubin.max_gpus
    moe_ms = tokens * moe_flops_per_token(model) / lpx_flops * 1e3
    memory = racks * LPUS_PER_RACK * lpx.memory_bytes
    once = 3.0 * model.hidden * model.moe_layers * rubin_batch
    copies = once * model.experts_per_token
    transport_ms = copies / rubin.link_bytes_per_s * 1e3
    budget = fmha_ms + dense_ms
    capacity_ok = model.total_bytes <= memory
    compute_ok, transport_ok = moe_ms <= budget, transport_ms <= budget
    dense_ok = moe_ms + dense_ms <= fmha_ms
    return Projection(
        model=model.name, context_tokens=workload.context_tokens, base=base,
        moe_only_speedup=base.moe_only_speedup,
        dense_and_moe_speedup=base.dense_and_moe_speedup,
        rubin_batch=rubin_batch,
        rubin_batch_expansion=batch_expansion(model, rubin, workload.context_tokens, kv),
        weights_gb=model.total_bytes / 1e9, lpx_memory_gb=memory / 1e9, capacity_ok=capacity_ok,
        rubin_fmha_ms=fmha_ms, rubin_dense_ms=dense_ms, lpx_moe_ms=moe_ms,
        lpx_dense_budget_ms=dense_ms, compute_ok=compute_ok, dense_compute_ok=dense_ok,
        wire_bytes_per_hidden_once=once, wire_bytes_routed_copies=copies,
        transport_ms=transport_ms, transport_ok=transport_ok,
        verdict=_verdict(capacity_ok, compute_ok, transport_ok, dense_ok, model, memory, racks),
    )  # fmt: skip


def _verdict(
    capacity: bool, compute: bool, transport: bool, dense: bool, model: ModelSpec,
    memory: float, racks: int,
) -> str:  # fmt: skip
    if not capacity:
        need = math.ceil(model.total_bytes / (memory / racks))
        return (
            f"not feasible: weights of {model.total_bytes / 1e9:.0f} GB exceed {memory / 1e9:.0f} "
            f"GB of LPX memory; {need} racks would hold them"
        )
    if not compute or not transport:
        return "not feasible: the remote path takes longer than Rubin's remaining work"
    moved = "dense + MoE" if dense else "MoE only"
    return f"feasible on paper ({moved}); a projection, not a measurement"
