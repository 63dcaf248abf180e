"""Kernel times by roofline: bytes over bandwidth, FLOPs over peak, with stated efficiencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from afd.plan.hardware import Hardware
from afd.plan.model_spec import ModelSpec
from afd.plan.times.calibration import Calibration
from afd.plan.times.experts import ExpertTerm

US = 1e6


@dataclass(frozen=True)
class Term:
    """A time with the name of where it came from; ``complete`` if timed inside a running engine."""

    us: float
    source: str
    complete: bool = False


class KernelTimes(Protocol):
    """Times per layer and lane on one GPU; ``batch`` is tokens per GPU."""

    def attention(self, batch: float, context_tokens: float, processors: int) -> Term:
        """Decode attention (FMHA) over ``batch`` resident requests."""

    def dense(self, batch: float) -> Term:
        """Projections, norms, router, KV write and the other small kernels."""

    def experts(
        self, tokens_per_rank: float, ranks: int, busiest: float, link_bytes: float
    ) -> ExpertTerm:
        """Experts of one rank; ``tokens_per_rank`` is what each rank contributes on average."""

    def head(self, batch: float) -> Term:
        """Output projection and sampling, once per step."""

    def transfer(self, tokens: float, out_bytes: float, back_bytes: float) -> tuple[Term, Term]:
        """(dispatch, combine): one way each, for ``tokens`` routed tokens of one attention GPU;
        ``out_bytes`` and ``back_bytes`` are per token."""


def last_wave_factor(tiles: float, processors: int, bandwidth_share: float) -> float:
    """Time over that of a perfectly even split of (request, KV head) tiles over processors.

    With more tiles than processors a tile is not split; in a short last wave each running
    processor draws at most ``bandwidth_share`` times its even share of memory bandwidth.
    """
    waves = tiles / processors
    if waves <= 1:
        return 1.0
    whole = math.floor(waves)
    rest = waves - whole
    tail = max(rest, 1 / bandwidth_share) if rest > 1e-9 else 0.0
    return (whole + tail) / waves


def held_processors_us(
    attention_us: float, held_us: float, held_share: float, bandwidth_share: float
) -> float:
    """What attention split evenly over all processors loses while ``held_share`` of them are taken.

    The parts of the held processors start ``held_us`` late, or when the others are done; the others
    meanwhile have the whole bandwidth, and at the end the late parts have what ``bandwidth_share``
    lets their processors draw. With s held and p the share: s / (1 - s) × (1 / (p s) - 1) of it.
    """
    if not 0 < held_share < 1:
        return 0.0
    late_us = min(max(0.0, held_us), (1 - held_share) * attention_us)
    alone = min(1.0, bandwidth_share * held_share)
    return late_us * held_share / (1 - held_share) * (1 / alone - 1)


@dataclass(frozen=True)
class Roofline:
    """``KernelTimes`` from a hardware profile and a calibration."""

    model: ModelSpec
    hardware: Hardware
    calibration: Calibration
    kv_bytes_per_element: float = 2.0

    def attention(self, batch: float, context_tokens: float, processors: int) -> Term:
        """start + KV bytes / (bandwidth × efficiency) × last-wave factor."""
        per_layer = (
            self.model.kv_bytes_per_request(context_tokens, self.kv_bytes_per_element)
            / self.model.layers
        )
        rate = self.hardware.memory_bytes_per_s * self.calibration.attention_efficiency
        tail = last_wave_factor(
            batch * self.model.kv_heads, processors, self.calibration.processor_bandwidth_share
        )
        read_us = batch * per_layer / rate * US * tail
        # A compressed cache is read once for many heads, so its products may outlast the read.
        peak = self.hardware.bf16_flops_per_s * self.calibration.dense_gemm_efficiency
        flops = batch * context_tokens * attention_flops_per_position(self.model)
        us = self.calibration.attention_start_us + max(read_us, flops / peak * US)
        return Term(us, self.calibration.source)

    def dense(self, batch: float) -> Term:
        """A fixed time by model, plus GEMM and row traffic that grow with the batch."""
        fixed, source = self.calibration.dense_us_of(self.model.name)
        weights = self.model.attention_weight_elements
        weights += 3 * self.model.hidden * self.model.shared_width
        peak = peak_flops(self.hardware, self.model.dense_bytes_per_element)
        gemm = 2 * batch * weights / (peak * self.calibration.dense_gemm_efficiency)
        rows = batch * self.model.hidden * 2 * self.calibration.dense_passes
        shared_elements = 3 * self.model.hidden * self.model.shared_width
        shared = shared_elements * self.model.dense_bytes_per_element
        us = fixed + (gemm + (rows + shared) / (self.hardware.memory_bytes_per_s * 0.8)) * US
        return Term(us, f"roofline, fixed part {source}")

    def experts(
        self, tokens_per_rank: float, ranks: int, busiest: float, link_bytes: float
    ) -> ExpertTerm:
        """Touched experts are read once; rows pay FLOPs and 3 bytes per hidden element."""
        model, cal = self.model, self.calibration
        touched = 1 - (1 - model.experts_per_token / model.experts) ** (tokens_per_rank * ranks)
        weights = model.experts / ranks * model.expert_bytes * touched
        weights_s = weights / (self.hardware.memory_bytes_per_s * cal.weight_read_efficiency)
        rows = tokens_per_rank * model.experts_per_token * busiest
        flops = rows * 6 * model.hidden * model.expert_width
        peak = peak_flops(self.hardware, model.expert_bytes_per_element)
        wire_s = (
            tokens_per_rank * busiest * link_bytes
            / (self.hardware.link_bytes_per_s * cal.expert_efficiency)
        )  # fmt: skip
        return ExpertTerm(
            weights_s * US, flops / (peak * cal.expert_efficiency) * US, wire_s * US, cal.source
        )

    def head(self, batch: float) -> Term:
        """Vocabulary matrix once, logits several passes in float32."""
        table = self.model.vocabulary * self.model.hidden * 2
        logits = batch * self.model.vocabulary * 4 * self.calibration.sampling_passes
        us = (table / 0.9 + logits / 0.8) / self.hardware.memory_bytes_per_s * US
        return Term(us, "roofline")

    def transfer(self, tokens: float, out_bytes: float, back_bytes: float) -> tuple[Term, Term]:
        """Link latency + bytes over one direction of the link."""
        return link_transfer(self.hardware, tokens, out_bytes, back_bytes)


def link_transfer(
    hardware: Hardware, tokens: float, out_bytes: float, back_bytes: float
) -> tuple[Term, Term]:
    """(dispatch, combine) from the link's latency and bandwidth; bytes are per token."""
    source = f"{hardware.name} link figures"
    out, back = (
        Term(hardware.link_latency_us + tokens * b / hardware.link_bytes_per_s * US, source)
        for b in (out_bytes, back_bytes)
    )
    return out, back


def attention_flops_per_position(model: ModelSpec) -> float:
    """Score and value products of one query token with one cached position, all heads."""
    if model.latent_kv_elements:
        return 2.0 * model.query_heads * (2 * model.latent_kv_elements)
    return 4.0 * model.query_heads * model.head_dim


def peak_flops(hardware: Hardware, bytes_per_element: float) -> float:
    """FP8 rate for weights of one byte or less, BF16 rate above."""
    return hardware.fp8_flops_per_s if bytes_per_element <= 1 else hardware.bf16_flops_per_s
