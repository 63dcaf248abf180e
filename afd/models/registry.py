"""Which file serves which architecture; a model is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from afd.errors import CheckpointError, UnsupportedModelError
from afd.models.config import Fields, ModelConfig, read_json
from afd.models.family import Family

_HOMES = {
    "MiniMaxM2ForCausalLM": "afd.models.minimax_m2",
    "MixtralForCausalLM": "afd.models.mixtral",
    "Qwen3MoeForCausalLM": "afd.models.qwen3_moe",
}


def architectures() -> tuple[str, ...]:
    """The served architectures, as config.json names them."""
    return tuple(_HOMES)


def family_of(architecture: str) -> Family:
    """The family of an architecture; raises UnsupportedModelError with the known names."""
    if architecture not in _HOMES:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; supported are "
            f"{', '.join(architectures())}"
        )
    family: Family = import_module(_HOMES[architecture]).FAMILY
    return family


def load_model_config(folder: Path) -> ModelConfig:
    """Parses config.json and generation_config.json of a checkpoint folder.

    Raises CheckpointError for unreadable files, UnsupportedModelError for anything not served.
    """
    values = read_json(folder / "config.json")
    names = values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"{folder / 'config.json'} must name one architecture, not {names!r}")
    family = family_of(names[0])
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    fields = Fields(values, names[0])
    config = family.parse(fields, generation)
    fields.finish()
    if config.heads % config.kv_heads:
        raise UnsupportedModelError(
            f"config.json: num_attention_heads {config.heads} does not divide by "
            f"num_key_value_heads {config.kv_heads}"
        )
    if config.top_k > config.experts:
        raise UnsupportedModelError(
            f"config.json: num_experts_per_tok {config.top_k} is more than the {config.experts} "
            "experts"
        )
    return config
