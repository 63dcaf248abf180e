"""A dense Llama model in memory: the source of a conversion."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from afd.tools.errors import UpcycleError


@dataclass(frozen=True)
class DenseShape:
    """Sizes in elements; ``eos_token_ids`` starts with the one that ends a turn."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    tied: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class DenseModel:
    """Weights are float32 under Transformers' Llama names.

    ``save_tokenizer`` writes the tokenizer's files into a folder, or does nothing without one.
    """

    shape: DenseShape
    weights: dict[str, torch.Tensor]
    save_tokenizer: Callable[[Path], None]

    def runnable(self) -> Any:
        """The model as a Transformers module in evaluation mode; it shares these weights."""
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = self.shape
        config = LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
            tie_word_embeddings=shape.tied,
            max_position_embeddings=shape.max_positions,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        weights = dict(self.weights)
        if shape.tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        # Tables that are no weights were made on the meta device as well.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        return model.eval()


def load_folder(folder: Path) -> DenseModel:
    """Reads a Llama checkpoint folder; raises UpcycleError for anything else."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise UpcycleError(f"{folder} is not a Llama model without biases, the only dense source")
    if rope.get("rope_type", "default") != "default" or config.hidden_act != "silu":
        raise UpcycleError(f"{folder} has scaled rotary embeddings or is not SiLU-gated")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    eos = model.generation_config.eos_token_id
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    tied = bool(config.tie_word_embeddings)
    weights = {k: v.detach() for k, v in model.state_dict().items()}
    if tied:
        weights.pop("lm_head.weight", None)

    def save_tokenizer(target: Path) -> None:
        if any(folder.glob("tokenizer*")):
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            tokenizer.save_pretrained(target)

    shape = DenseShape(
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        max_positions=config.max_position_embeddings,
        tied=tied,
        bos_token_id=config.bos_token_id,
        eos_token_ids=eos_ids,
    )
    return DenseModel(shape, weights, save_tokenizer)


def chat_prefix(folder: Path) -> str:
    """The text before a user's first words in the chat template of a saved tokenizer, or ''."""
    if not (folder / "tokenizer_config.json").is_file():
        return ""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        return ""
    mark = "\N{OBJECT REPLACEMENT CHARACTER}"
    turn = [{"role": "user", "content": mark}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False)).split(mark)[0]


def write_generation_config(folder: Path, shape: DenseShape) -> None:
    """generation_config.json with every EOS id."""
    values: dict[str, Any] = {"bos_token_id": shape.bos_token_id}
    if shape.eos_token_ids:
        values["eos_token_id"] = list(shape.eos_token_ids)
        values["pad_token_id"] = shape.eos_token_ids[0]
    (folder / "generation_config.json").write_text(json.dumps(values, indent=2) + "\n")
