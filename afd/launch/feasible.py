"""Whether this machine can run a launch at all, and if not, what is missing and by how much."""

from __future__ import annotations

from pathlib import Path

import psutil

from afd.config import Dtype, EngineConfig, Topology
from afd.errors import ConfigError
from afd.models.config import ModelConfig

_PROFILE = "gb200-nvl72"
_WAY_OUT = f"its control plane runs here without tensors with --simulate {_PROFILE}"
_BYTES = {Dtype.BFLOAT16: 2, Dtype.FLOAT32: 4}


def least_weight_bytes(model: ModelConfig, topology: Topology, dtype: Dtype) -> tuple[int, int]:
    """(each attention worker's, all FFN workers' together): projections, tables and experts alone.

    Experts of an FP8 checkpoint may stay in one byte an element, so this is a lower bound.
    """
    width = _BYTES[dtype]
    tables = model.vocab * model.hidden * (1 if model.tie_embeddings else 2)
    attention = 2 * model.hidden * (model.q_width + model.kv_width)
    dense = (model.layers - len(model.moe_layers)) * 3 * model.hidden * model.dense_width
    own = width * (tables + model.layers * attention + dense)
    expert = 3 * model.hidden * model.expert_width * (1 if model.fp8_block else width)
    experts = len(model.moe_layers) * model.experts * expert
    return (own, experts) if topology.ffn_ranks else (own + experts, 0)


def check_memory(
    model: ModelConfig, topology: Topology, dtype: Dtype, available_bytes: int | None = None
) -> None:
    """Raises ConfigError if the weights alone cannot fit into this machine's free memory."""
    free = psutil.virtual_memory().available if available_bytes is None else available_bytes
    own, experts = least_weight_bytes(model, topology, dtype)
    needed = topology.attention_ranks * own + experts
    if needed > free:
        raise ConfigError(
            f"{topology.attention_ranks} attention workers of {_size(own)} and experts of "
            f"{_size(experts)} need {_size(needed)} of memory for weights alone and "
            f"{_size(free)} are free here, {_size(needed - free)} too little; use a smaller --m or "
            f"more machines; {_WAY_OUT}"
        )


def missing_here(config: EngineConfig) -> str | None:
    """What this machine lacks for a model whose shape ships with the product but whose checkpoint
    was not found; None for a name that nobody knows."""
    from afd.plan.cuts import Cut
    from afd.plan.errors import UnknownNameError
    from afd.plan.memory import attention_weight_bytes, ffn_weight_bytes
    from afd.plan.model_spec import load_model
    from afd.simulate.profile import load_profile

    try:
        model = load_model(config.model)
    except UnknownNameError:
        return None
    # Nodes of a model of this size are counted in GPUs, unless another count was asked for.
    per_node = max(config.workers_per_node, load_profile(_PROFILE).gpus_per_node)
    attention, ffn = config.m * per_node, config.n * per_node
    own = attention_weight_bytes(model, Cut.ROUTED_TOKENS)
    experts = model.routed_bytes
    if ffn:
        experts = ffn_weight_bytes(model, Cut.ROUTED_TOKENS, ffn)
        needed = attention * own + ffn * experts
    else:
        needed = attention * (own + experts)
    free = psutil.virtual_memory().available
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return (
        f"{model.name} with --m {config.m} --n {config.n} cannot run on this machine: the "
        f"checkpoint is missing (a folder of {_size(model.total_bytes)}; give its path as "
        f"--model); it takes {attention + ffn} GPUs at {per_node} a node and {gpus} are here, "
        f"{max(0, attention + ffn - gpus)} too few; {attention} attention workers of "
        f"{_size(own)} and {ffn} FFN workers of {_size(experts)} need {_size(needed)} of memory "
        f"for weights alone and {_size(free)} are free, {_size(max(0, needed - free))} too little; "
        f"{_WAY_OUT}"
    )


def _size(count: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
