"""From what the user asked for to what will run; every limit is checked here, before a process."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import platformdirs
from rich.progress import Progress

from afd.config import (
    BoundaryConfig,
    Dtype,
    DtypeChoice,
    EngineConfig,
    Topology,
    WireScales,
    WireType,
)
from afd.errors import ConfigError
from afd.launch.feasible import check_memory, missing_here
from afd.models.config import ModelConfig, read_json
from afd.models.registry import load_model_config

_MAX_RANKS = 1024
_MAX_LANES = 4


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a launch is made of; paths exist and numbers fit each other.

    ``max_rows``: most tokens of one attention rank in one step.
    """

    engine: EngineConfig
    model_path: str
    model: ModelConfig
    topology: Topology
    boundary: BoundaryConfig
    dtype: Dtype
    context_length: int
    max_rows: int
    attention_threads: int
    ffn_threads: int


def cache_dir(config: EngineConfig) -> Path:
    """Where built models are kept."""
    if config.download_dir is not None:
        return Path(config.download_dir)
    return platformdirs.user_cache_path("afd") / "models"


def check_numbers(config: EngineConfig) -> None:
    """Raises ConfigError for what no launch could use, whatever the model."""
    least = {
        "workers_per_node": 1,
        "m": 1,
        "n": 0,
        "max_running_requests": 1,
        "chunked_prefill_size": 1,
        "page_size": 1,
        "kv_tokens": 1,
        "context_length": 1,
        "max_queued_requests": 1,
        "threads": 1,
    }
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and value < bound:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {bound}, not {value}")
    if not 1 <= config.num_lanes <= _MAX_LANES:
        raise ConfigError(f"--num-lanes must be 1 to {_MAX_LANES}, not {config.num_lanes}")
    if not 0.0 < config.mem_fraction_static <= 1.0:
        raise ConfigError(
            f"--mem-fraction-static must be in (0, 1], not {config.mem_fraction_static}"
        )
    if config.wire is not WireType.FP8 and config.wire_scales is not WireScales.FP32_128:
        raise ConfigError(
            f"--wire-scales {config.wire_scales.value} is for --wire fp8; "
            f"the {config.wire.value} wire has no scales"
        )
    for name in ("start_timeout_s", "step_timeout_s"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0")


def _topology(config: EngineConfig, model: ModelConfig) -> Topology:
    topology = Topology(
        attention_nodes=config.m, ffn_nodes=config.n, workers_per_node=config.workers_per_node
    )
    check_topology(topology, config, model.experts, len(model.moe_layers))
    return topology


def check_topology(topology: Topology, config: EngineConfig, experts: int, moe_layers: int) -> None:
    """Raises ConfigError for more ranks than a launch, or the model, has room for."""
    if topology.ranks > _MAX_RANKS:
        raise ConfigError(
            f"--m {config.m} --n {config.n} makes {topology.ranks} ranks; at most {_MAX_RANKS} fit"
        )
    if topology.ffn_ranks > experts:
        raise ConfigError(
            f"--n {config.n} makes {topology.ffn_ranks} FFN ranks and the model has only "
            f"{experts} experts; use a smaller --n"
        )
    if topology.ffn_ranks and not moe_layers:
        raise ConfigError("the model has no MoE layer to disaggregate; use --n 0")


def _dtype(choice: DtypeChoice, folder: Path, model: ModelConfig) -> Dtype:
    if choice is not DtypeChoice.AUTO:
        return Dtype(choice.value)
    values = read_json(folder / "config.json")
    stored = values.get("dtype", values.get("torch_dtype"))
    narrow = stored == "bfloat16" or model.fp8_block is not None
    return Dtype.BFLOAT16 if narrow else Dtype.FLOAT32


def check_model(config: EngineConfig) -> None:
    """Raises ConfigError for a model that is not here: it names the known ones, or for one whose
    shape is known what it would take."""
    from afd.tools.default_model import known_names

    if Path(config.model).expanduser().is_dir() or config.model in known_names():
        return
    if (sentence := missing_here(config)) is not None:
        raise ConfigError(sentence)
    raise ConfigError(
        f"model {config.model!r} is neither a folder with a checkpoint nor one of "
        f"{', '.join(known_names())}"
    )


def find_model(config: EngineConfig, progress: Progress | None = None) -> Path:
    """The checkpoint folder: an existing path, or a default model built into the cache.

    Raises ConfigError as ``check_model`` does.
    """
    from afd.tools.default_model import ensure

    check_model(config)
    path = Path(config.model).expanduser()
    return path.resolve() if path.is_dir() else ensure(config.model, cache_dir(config), progress)


def resolve(config: EngineConfig, progress: Progress | None = None) -> ResolvedConfig:
    """Checks and completes a configuration; raises AfdError in one sentence.

    Threads: the two roles work in turn as often as at once, so each role's ranks share all cores.
    """
    check_numbers(config)
    folder = find_model(config, progress)
    model = load_model_config(folder)
    topology = _topology(config, model)
    context = config.context_length or model.max_position_tokens
    if context > model.max_position_tokens:
        raise ConfigError(
            f"--context-length {context} is above the model's {model.max_position_tokens}"
        )
    if config.kv_tokens is not None:
        context = min(context, config.kv_tokens)
    max_rows = config.max_running_requests + config.chunked_prefill_size
    dtype = _dtype(config.dtype, folder, model)
    check_memory(model, topology, dtype)
    cores = len(os.sched_getaffinity(0))
    return ResolvedConfig(
        engine=config,
        model_path=str(folder),
        model=model,
        topology=topology,
        boundary=BoundaryConfig(
            wire=config.wire,
            wire_scales=config.wire_scales,
            num_lanes=config.num_lanes,
            max_lane_tokens=-(-max_rows // config.num_lanes),
            deadline_ms=int(config.step_timeout_s * 1000),
            return_mode=config.return_mode,
        ),
        dtype=dtype,
        context_length=context,
        max_rows=max_rows,
        attention_threads=config.threads or max(1, cores // topology.attention_ranks),
        ffn_threads=config.threads or max(1, cores // max(1, topology.ffn_ranks)),
    )
