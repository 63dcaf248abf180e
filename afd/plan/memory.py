"""Memory: what a GPU of each role must hold, and how many requests fit beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from afd.plan.cuts import Cut
from afd.plan.errors import DoesNotFitError
from afd.plan.hardware import Hardware
from afd.plan.model_spec import ModelSpec


@dataclass(frozen=True)
class MemoryRule:
    """Shares of memory that may hold state; the defaults are the published runs' settings.

    A colocated engine may use ``engine_share`` of the memory and spends ``workspace_bytes`` on
    activations, graphs and communication buffers. An attention GPU gives ``kv_share_of_free`` of
    what its weights leave to the cache: the rest is graphs and the boundary's buffers.
    """

    engine_share: float = 0.90
    workspace_bytes: float = 3.3e9
    kv_share_of_free: float = 0.85
    ffn_share: float = 0.90


DEFAULT_RULE = MemoryRule()


def attention_weight_bytes(model: ModelSpec, cut: Cut) -> float:
    """Weights an attention GPU keeps under ``cut``; embedding tables stay with the request."""
    tables = model.vocabulary * model.hidden * 2 * (1 if model.tied_embeddings else 2)
    projections = model.layers * model.attention_weight_elements * model.dense_bytes_per_element
    if cut is Cut.SWEEP_ONLY:
        return 0.0
    if cut is Cut.QUERY_FIRST:
        kv = 2 * model.hidden * model.kv_heads * model.head_dim * model.dense_bytes_per_element
        return tables + max(0.0, projections - model.layers * kv)
    return model.dense_bytes


def ffn_weight_bytes(model: ModelSpec, cut: Cut, gpus: int) -> float:
    """Weights an FFN GPU keeps: its expert shard, and what the attention side gave away."""
    moved = model.dense_bytes - attention_weight_bytes(model, cut)
    return model.routed_bytes / gpus + max(0.0, moved)


def attention_batch(
    model: ModelSpec,
    hardware: Hardware,
    cut: Cut,
    context_tokens: float,
    kv_bytes_per_element: float,
    rule: MemoryRule = DEFAULT_RULE,
) -> int:
    """Resident requests of one attention GPU, rounded down to a graph bucket."""
    weights = attention_weight_bytes(model, cut)
    free = (hardware.memory_bytes - weights) * rule.kv_share_of_free
    per_request = model.kv_bytes_per_request(context_tokens, kv_bytes_per_element)
    if free < per_request:
        raise DoesNotFitError("an attention GPU with one request", weights + per_request,
                              weights + max(0.0, free))  # fmt: skip
    return graph_bucket(int(free // per_request))


def graph_bucket(requests: int) -> int:
    """The largest captured batch size: multiples of 8 from 64, of 4 from 8, else every size."""
    step = 8 if requests >= 64 else 4 if requests >= 8 else 1
    return requests // step * step


def colocated_batch(
    model: ModelSpec,
    hardware: Hardware,
    expert_parallel: int,
    context_tokens: float,
    kv_bytes_per_element: float,
    rule: MemoryRule = DEFAULT_RULE,
) -> int:
    """Resident requests of one GPU that also keeps dense weights and 1/EP of the experts."""
    weights = model.dense_bytes + model.routed_bytes / expert_parallel
    usable = hardware.memory_bytes * rule.engine_share - rule.workspace_bytes
    per_request = model.kv_bytes_per_request(context_tokens, kv_bytes_per_element)
    if usable < weights + per_request:
        raise DoesNotFitError(
            f"a colocated EP{expert_parallel} GPU with one request", weights + per_request, usable
        )
    return int((usable - weights) // per_request)


def require_ffn_fits(
    model: ModelSpec, hardware: Hardware, cut: Cut, gpus: int, rule: MemoryRule = DEFAULT_RULE
) -> None:
    """Raises unless the experts (and moved dense weights) fit on ``gpus`` FFN GPUs."""
    needed = ffn_weight_bytes(model, cut, gpus)
    usable = hardware.memory_bytes * rule.ffn_share
    if needed > usable:
        raise DoesNotFitError(f"an FFN GPU of {gpus}", needed, usable)


def require_batch_fits(
    model: ModelSpec,
    hardware: Hardware,
    cut: Cut,
    context_tokens: float,
    kv_bytes_per_element: float,
    batch: int,
) -> None:
    """Raises unless an attention GPU's memory holds its weights and the cache of ``batch``."""
    needed = attention_weight_bytes(model, cut)
    needed += batch * model.kv_bytes_per_request(context_tokens, kv_bytes_per_element)
    if needed > hardware.memory_bytes:
        raise DoesNotFitError(
            f"an attention GPU with {batch} requests", needed, hardware.memory_bytes
        )


def batch_expansion(
    model: ModelSpec,
    hardware: Hardware,
    context_tokens: float,
    kv_bytes_per_element: float,
    baseline_ep: int = 4,
    rule: MemoryRule = DEFAULT_RULE,
) -> float:
    """KV capacity of an attention GPU over that of a colocated GPU (before any rounding)."""
    free = (hardware.memory_bytes - model.dense_bytes) * rule.kv_share_of_free
    base = hardware.memory_bytes * rule.engine_share - rule.workspace_bytes
    base -= model.dense_bytes + model.routed_bytes / baseline_ep
    if base <= 0 or math.isinf(base):
        raise DoesNotFitError("a colocated GPU", -base, 0.0)
    return free / base
