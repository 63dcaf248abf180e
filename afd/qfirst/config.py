"""The shape of a dense decoder, from a checkpoint's config.json; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afd.models.config import Fields, decoder_fields, read_json
from afd.qfirst.errors import QFirstError, WiringError
from afd.qfirst.wiring import Wiring

# A name that Transformers does not know: read as its base it would run the wrong wiring.
REWIRED_TYPE = "afd_qfirst"
_BASE_TYPES = ("llama", "mistral", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes in elements; ``qk_norm`` is Qwen3's RMS norm per head before rotation."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    tied: bool = True
    max_positions: int = 4096

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise WiringError(
                f"{self.heads} query heads over {self.kv_heads} key heads of {self.head_dim}: the "
                "first must be a multiple of the second and a head's width must be even"
            )

    @property
    def query_width(self) -> int:
        """Elements of all query heads of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads, or all value heads, of a token."""
        return self.kv_heads * self.head_dim


def read_config(path: Path) -> tuple[DecoderConfig, Wiring]:
    """Shape and wiring that a config.json says.

    Raises QFirstError, UnsupportedModelError or CheckpointError for anything else than a dense
    decoder with separate query, key and value projections.
    """
    values = read_json(path)
    kind = values.get("model_type")
    wiring = Wiring()
    if kind == REWIRED_TYPE:
        stored = values.pop("wiring", None)
        if not isinstance(stored, dict):
            raise WiringError(f"{path}: a rewired checkpoint must say its wiring")
        wiring = Wiring.from_json(stored)
        kind = values.pop("base_model_type", None)
    if kind not in _BASE_TYPES:
        raise QFirstError(
            f"{path}: model_type {kind!r} cannot be read; dense decoders with separate query, key "
            f"and value projections can: {', '.join(_BASE_TYPES)}"
        )
    fields = Fields(values, str(kind))
    common = decoder_fields(fields, {}, norm_eps=1e-6, max_position_tokens=4096)
    if common["rotary_dim"] != common["head_dim"]:
        raise QFirstError(f"{path}: rotary embeddings over part of a head are not supported")
    if kind != "qwen3" and values.get("sliding_window") is not None:
        raise QFirstError(f"{path}: sliding-window attention is not supported")
    fields.require("mlp_bias", False, None)
    fields.require("layer_types", None, ["full_attention"] * common["layers"])
    ffn = fields.integer("intermediate_size")
    fields.finish()
    return _decoder_config(common, ffn, kind == "qwen3"), wiring


def _decoder_config(common: dict[str, Any], ffn: int, qk_norm: bool) -> DecoderConfig:
    return DecoderConfig(
        vocab=common["vocab"], hidden=common["hidden"], layers=common["layers"],
        heads=common["heads"], kv_heads=common["kv_heads"], head_dim=common["head_dim"], ffn=ffn,
        norm_eps=common["norm_eps"], rope_theta=common["rope_theta"], qk_norm=qk_norm,
        tied=common["tie_embeddings"], max_positions=common["max_position_tokens"],
    )  # fmt: skip


def config_json(config: DecoderConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    """The config.json of a saved decoder; Transformers' own if it moves no read point."""
    base = "qwen3" if config.qk_norm else "llama"
    values: dict[str, Any] = {
        "model_type": base,
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": config.max_positions,
        "dtype": dtype,
    }
    if wiring != Wiring():
        values["base_model_type"] = base
        values["model_type"] = REWIRED_TYPE
        values["architectures"] = ["QueryFirstForCausalLM"]
        values["wiring"] = wiring.to_json()
    return values
