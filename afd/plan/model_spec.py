"""What the planner must know of a model, from a shipped file or a checkpoint's config.json."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from afd.plan.data import load, names, take
from afd.plan.errors import PlanError, UnknownNameError

BYTES_PER_ELEMENT = {"fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "mxfp4": 0.53125, "nvfp4": 0.5625}

# What a release may append to a model's name without changing a shape.
RELEASE = re.compile(r"(-(instruct|thinking|chat|base|fp8|\d{4}|v\d+(\.\d+)?))*")


@dataclass(frozen=True)
class ModelSpec:
    """Shapes per layer, and how many bytes an element of each kind takes.

    ``latent_kv_elements`` above zero means one compressed row per token and layer (MLA) instead
    of key and value heads. ``windowed_layers`` read at most ``window_tokens`` of the context.
    """

    name: str
    layers: int
    moe_layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    dense_ffn_width: int
    vocabulary: int
    tied_embeddings: bool
    expert_bytes_per_element: float
    dense_bytes_per_element: float
    latent_kv_elements: int = 0
    attention_weights: int = 0
    windowed_layers: int = 0
    window_tokens: int = 0

    @property
    def expert_bytes(self) -> float:
        """Bytes of one routed expert (gate, up, down)."""
        return 3 * self.hidden * self.expert_width * self.expert_bytes_per_element

    @property
    def attention_weight_elements(self) -> int:
        """Weights of the q, k, v and output projections of one layer."""
        if self.attention_weights:
            return self.attention_weights
        q = self.hidden * self.query_heads * self.head_dim
        return 2 * q + 2 * self.hidden * self.kv_heads * self.head_dim

    def kv_bytes_per_token_layer(self, kv_bytes_per_element: float) -> float:
        """Bytes one cached position takes in one layer."""
        if self.latent_kv_elements:
            return self.latent_kv_elements * kv_bytes_per_element
        return 2 * self.kv_heads * self.head_dim * kv_bytes_per_element

    def kv_bytes_per_request(self, context_tokens: float, kv_bytes_per_element: float) -> float:
        """Bytes the cache of one request takes over all layers; windowed layers stop growing."""
        window = min(context_tokens, self.window_tokens)
        positions = (self.layers - self.windowed_layers) * context_tokens
        positions += self.windowed_layers * window
        return positions * self.kv_bytes_per_token_layer(kv_bytes_per_element)

    @property
    def routed_bytes(self) -> float:
        """All routed experts of all layers."""
        return self.moe_layers * self.experts * self.expert_bytes

    @property
    def dense_bytes(self) -> float:
        """All but routed experts: projections, shared experts, dense FFN, embedding tables."""
        per_element = self.dense_bytes_per_element
        attention = self.layers * self.attention_weight_elements * per_element
        shared = self.moe_layers * 3 * self.hidden * self.shared_width * per_element
        dense_layers = self.layers - self.moe_layers
        dense = dense_layers * 3 * self.hidden * self.dense_ffn_width * per_element
        router = self.moe_layers * self.hidden * self.experts * 2
        tables = self.vocabulary * self.hidden * 2 * (1 if self.tied_embeddings else 2)
        return attention + shared + dense + router + tables

    @property
    def total_bytes(self) -> float:
        return self.routed_bytes + self.dense_bytes


def load_model(name: str) -> ModelSpec:
    """A shipped name, a checkpoint folder, or the path of a config.json."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise PlanError(f"model {name}: this folder has no config.json")
    if path.name.endswith(".json"):
        return from_hf_config(_read_json(path), path.parent.name)
    key = canonical_name(name)
    table = load("models", "model", key)
    return from_hf_config(table, take(table, "name", f"model {key}"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PlanError(f"{path}: must hold a JSON object")
    return value


def canonical_name(name: str) -> str:
    """``Qwen/Qwen3-235B-A22B-Instruct-2507-FP8`` → the shipped file's name.

    Any case, owner prefix and release suffix; another weight format is another model.
    """
    if name.endswith(".toml"):
        return name
    wanted = name.rsplit("/", 1)[-1].lower()
    known = names("models")
    for candidate in sorted(known, key=len, reverse=True):
        if wanted.startswith(candidate) and RELEASE.fullmatch(wanted[len(candidate) :]):
            return candidate
    raise UnknownNameError("model", name, known)


def from_hf_config(config: dict[str, Any], name: str) -> ModelSpec:
    """Reads the fields of a Transformers ``config.json``; the shipped files use the same names."""
    try:
        return _from_fields(config, name)
    except (TypeError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"model {name}: a field has the wrong type: {error}") from error


def _from_fields(config: dict[str, Any], name: str) -> ModelSpec:
    if isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    where = f"model {name}"
    hidden, layers = (
        int(take(config, "hidden_size", where)),
        int(take(config, "num_hidden_layers", where)),
    )
    heads = int(take(config, "num_attention_heads", where))
    experts = _first(config, ("num_experts", "num_local_experts", "n_routed_experts"), 0)
    if not experts:
        raise PlanError(f"{where}: has no routed experts; attention-FFN disaggregation needs them")
    width = _first(config, ("moe_intermediate_size", "intermediate_size"), 0)
    first_dense = int(config.get("first_k_dense_replace", 0) or 0)
    expert_format, dense_format = _formats(config, where)
    spec = ModelSpec(
        name=name, layers=layers, moe_layers=layers - first_dense, hidden=hidden,
        query_heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        experts=experts,
        experts_per_token=_first(config, ("num_experts_per_tok", "moe_topk"), 0),
        expert_width=width,
        shared_width=int(config.get("n_shared_experts") or 0) * width,
        dense_ffn_width=int(config.get("intermediate_size") or 0),
        vocabulary=int(take(config, "vocab_size", where)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        expert_bytes_per_element=BYTES_PER_ELEMENT[expert_format],
        dense_bytes_per_element=BYTES_PER_ELEMENT[dense_format],
    )  # fmt: skip
    if config.get("kv_lora_rank"):
        spec = _with_latent_attention(spec, config)
    sliding = (config.get("layer_types") or []).count("sliding_attention")
    if config.get("sliding_layers"):
        sliding = int(config["sliding_layers"])
    if sliding:
        spec = replace(
            spec, windowed_layers=sliding, window_tokens=int(take(config, "sliding_window", where))
        )
    for field in ("layers", "hidden", "query_heads", "kv_heads", "head_dim", "expert_width"):
        if getattr(spec, field) < 1:
            raise PlanError(f"{where}: {field} must be at least 1, not {getattr(spec, field)}")
    if spec.experts_per_token < 1 or spec.experts_per_token > spec.experts:
        raise PlanError(f"{where}: experts per token must lie between 1 and {spec.experts}")
    return spec


def _first(config: dict[str, Any], keys: tuple[str, ...], default: int) -> int:
    return next((int(config[k]) for k in keys if config.get(k)), default)


def _formats(config: dict[str, Any], where: str) -> tuple[str, str]:
    """(expert format, dense format) as named keys of ``BYTES_PER_ELEMENT``."""
    quant = config.get("quantization_config") or {}
    method = str(quant.get("quant_method", ""))
    guess = {"fp8": "fp8", "mxfp4": "mxfp4"}.get(method, "bf16")
    expert = str(config.get("expert_format", guess))
    dense = str(config.get("dense_format", "bf16" if guess == "mxfp4" else guess))
    for value in (expert, dense):
        if value not in BYTES_PER_ELEMENT:
            raise PlanError(
                f"{where}: unknown format {value!r}; known: {', '.join(BYTES_PER_ELEMENT)}"
            )
    return expert, dense


def _with_latent_attention(spec: ModelSpec, config: dict[str, Any]) -> ModelSpec:
    """Multi-head latent attention: one row of kv_lora_rank + rope elements per token and layer."""
    rank, rope = int(config["kv_lora_rank"]), int(config.get("qk_rope_head_dim", 64))
    nope, value = int(config.get("qk_nope_head_dim", 128)), int(config.get("v_head_dim", 128))
    q_rank, heads = int(config.get("q_lora_rank") or 0), spec.query_heads
    q_in = spec.hidden * q_rank + q_rank * heads * (nope + rope)
    if not q_rank:
        q_in = spec.hidden * heads * (nope + rope)
    kv = spec.hidden * (rank + rope) + rank * heads * (nope + value)
    return replace(
        spec,
        kv_heads=1,
        head_dim=rank + rope,
        latent_kv_elements=rank + rope,
        attention_weights=q_in + kv + heads * value * spec.hidden,
    )
