"""A model's shape, parsed strictly from a Hugging Face config.json.

A field that this engine does not know, or knows with another value, is refused: a wrong guess would
come out as wrong text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from afd.errors import CheckpointError, UnsupportedModelError


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes in elements; ``moe_layers`` lists the decoder layers that have experts, ascending."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    norm_eps: float
    vocab: int
    tie_embeddings: bool
    experts: int
    top_k: int
    expert_width: int
    dense_width: int
    moe_layers: tuple[int, ...]
    renormalize: bool
    max_position_tokens: int
    eos_token_ids: tuple[int, ...]
    fp8_block: tuple[int, int] | None = None

    @property
    def q_width(self) -> int:
        """Elements of all query heads of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads of a token."""
        return self.kv_heads * self.head_dim


# Fields that change no result of inference, or that restate a tensor's shape.
_INERT = frozenset(
    [
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "_name_or_path",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "initializer_range",
        "attention_dropout",
        "router_aux_loss_coef",
        "output_router_logits",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "router_jitter_noise",
        "max_window_layers",
        "auto_map",
        "id2label",
        "label2id",
        "problem_type",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "num_mtp_modules",
        "mtp_transformer_layers",
        "use_mtp",
        "layernorm_full_attention_beta",
        "layernorm_linear_attention_beta",
        "layernorm_mlp_beta",
        "_attn_implementation_autoset",
        "pretraining_tp",
        "sliding_window",
        "max_window_layers",
        "head_dim",
        "num_local_experts",
        "num_experts",
    ]
)

# Fields that must have one of these values if present.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "tie_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
}


# Of an FP8 quantization_config: what names the weights that are stored plainly tells the tensors'
# own dtypes too; the rest must be as published checkpoints have it.
_FP8_INERT = frozenset(
    ["quant_method", "weight_block_size", "modules_to_not_convert", "ignored_layers"]
)
_FP8_ALLOWED: dict[str, tuple[Any, ...]] = {
    "activation_scheme": ("dynamic", None),
    "fmt": ("e4m3", "float8_e4m3fn", None),
    "scale_fmt": ("ue8m0", None),
    "dequantize": (True, False, None),
}


class Fields:
    """A config.json being read; ``finish`` refuses whatever nobody asked for."""

    def __init__(self, values: dict[str, Any], architecture: str) -> None:
        self._values = values
        self._seen: set[str] = set()
        self.architecture = architecture

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """An integer field; raises UnsupportedModelError if missing, not one, or too small."""
        value = self.optional(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UnsupportedModelError(
                f"config.json: {name} must be an integer of at least {least}, not {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.optional(name, default)
        _positive(name, value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A true/false field."""
        value = self.optional(name, default)
        if not isinstance(value, bool):
            raise UnsupportedModelError(f"config.json: {name} must be true or false, not {value!r}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, or an empty one if missing."""
        value = self.optional(name, {})
        if not isinstance(value, dict):
            raise UnsupportedModelError(f"config.json: {name} must be an object, not {value!r}")
        return value

    def integers(self, name: str, default: list[int]) -> list[int]:
        """A list of integers."""
        value = self.optional(name, default)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise UnsupportedModelError(
                f"config.json: {name} must be a list of integers, not {value!r}"
            )
        return value

    def optional(self, name: str, default: Any = None) -> Any:
        """The value, or the default if missing or null."""
        self._seen.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses any other value of a field that may be missing."""
        self._seen.add(name)
        if name in self._values and self._values[name] not in allowed:
            shown = " or ".join(json.dumps(a) for a in allowed)
            raise UnsupportedModelError(
                f"config.json: {name} = {json.dumps(self._values[name])} is not supported for "
                f"{self.architecture}; only {shown} is"
            )

    def finish(self) -> None:
        """Raises UnsupportedModelError for a field nobody read that carries a value."""
        for name, allowed in _REQUIRED.items():
            self.require(name, *allowed)
        for name, value in self._values.items():
            empty = value is None or value is False or value in (0, "", [], {})
            if name not in self._seen and name not in _INERT and not empty:
                raise UnsupportedModelError(
                    f"config.json: field {name} = {json.dumps(value)[:80]} is not known for "
                    f"{self.architecture}; remove it if it changes nothing at inference"
                )


def rope(fields: Fields, head_dim: int) -> tuple[float, int]:
    """(theta, rotary_dim) from either generation of the rope fields.

    ``rope_parameters`` (Transformers 5) or ``rope_theta`` + ``rope_scaling`` +
    ``partial_rotary_factor`` / ``rotary_dim``. Only the default rope type is served.
    """
    parameters, scaling = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for name, source in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        kind = source.get("rope_type", source.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(
                f"config.json: rope type {kind!r} is not supported, only 'default' is"
            )
        for extra in sorted(set(source) - known):
            raise UnsupportedModelError(f"config.json: {name}.{extra} is not supported")
    theta = parameters.get("rope_theta", fields.optional("rope_theta"))
    if theta is None:
        raise UnsupportedModelError("config.json: rope_theta is missing")
    _positive("rope_theta", theta)
    factor = parameters.get("partial_rotary_factor", fields.optional("partial_rotary_factor"))
    rotary_dim = fields.optional("rotary_dim")
    if factor is not None:
        _positive("partial_rotary_factor", factor)
        rotary_dim = int(head_dim * factor)
    elif rotary_dim is None:
        rotary_dim = head_dim
    if type(rotary_dim) is not int or not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise UnsupportedModelError(
            f"config.json: rotary_dim {rotary_dim} must be even and within head_dim {head_dim}"
        )
    return float(theta), rotary_dim


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedModelError(f"config.json: {name} must be a positive number, not {value!r}")


def fp8_block(fields: Fields) -> tuple[int, int] | None:
    """The (rows, columns) of an FP8 scale block, or None for an unquantised checkpoint."""
    quantization = fields.optional("quantization_config")
    if quantization is None:
        return None
    quantization = fields.mapping("quantization_config")
    method = quantization.get("quant_method")
    block = quantization.get("weight_block_size")
    sizes = block if isinstance(block, list) else []
    if method != "fp8" or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
        raise UnsupportedModelError(
            f"config.json: quantization {method!r} with weight_block_size {block!r} is not "
            "supported; only fp8 with a two-dimensional weight_block_size is"
        )
    for name, value in quantization.items():
        if name not in _FP8_INERT and value not in _FP8_ALLOWED.get(name, ()):
            raise UnsupportedModelError(
                f"config.json: quantization_config.{name} = {json.dumps(value)} is not supported"
            )
    return sizes[0], sizes[1]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises CheckpointError in one sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def eos_token_ids(fields: Fields, generation: dict[str, Any]) -> tuple[int, ...]:
    """Every EOS id of the model: config.json's and generation_config.json's, ascending."""
    ids: set[int] = set()
    for value in (fields.optional("eos_token_id"), generation.get("eos_token_id")):
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int for item in listed):
            raise UnsupportedModelError(
                f"eos_token_id must be an integer or a list of integers, not {value!r}"
            )
        ids.update(listed)
    return tuple(sorted(ids))


def decoder_fields(
    fields: Fields,
    generation: dict[str, Any],
    norm_eps: float,
    max_position_tokens: int,
    partial_rotation: bool = False,
) -> dict[str, Any]:
    """What every family's config.json says in the same words: ModelConfig's arguments without the
    experts'. ``norm_eps`` and ``max_position_tokens`` are the family's defaults;
    ``partial_rotation``: whether it may rotate a part of each head."""
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    # Transformers divides when the field is missing, though published files carry it.
    head_dim = fields.integer("head_dim", hidden // heads)
    theta, rotary_dim = rope(fields, head_dim)
    if rotary_dim != head_dim and not partial_rotation:
        raise UnsupportedModelError(
            f"config.json: rotary_dim {rotary_dim} of head_dim {head_dim} is not supported for "
            f"{fields.architecture}, which rotates whole heads"
        )
    return {
        "architecture": fields.architecture,
        "hidden": hidden,
        "layers": fields.integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rotary_dim": rotary_dim,
        "rope_theta": theta,
        "norm_eps": fields.number("rms_norm_eps", norm_eps),
        "vocab": fields.integer("vocab_size"),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        "max_position_tokens": fields.integer("max_position_embeddings", max_position_tokens),
        "eos_token_ids": eos_token_ids(fields, generation),
        "fp8_block": fp8_block(fields),
    }
