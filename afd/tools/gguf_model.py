"""Reads a Llama model out of a GGUF file: weights, shape, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

from afd.tools.dense_model import DenseModel, DenseShape
from afd.tools.errors import UpcycleError

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# GGUF records one EOS id; chat models also stop at the end of a document.
_OTHER_EOS_TOKENS = ("<|im_end|>", "<|endoftext|>")


def load_gguf(path: Path) -> DenseModel:
    """The model in ``path``; raises UpcycleError if it is not a Llama model without biases."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError) as error:
        raise UpcycleError(f"{path} is not a readable GGUF file: {error}") from error
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise UpcycleError(f"{path} holds a {architecture} model; only llama can be converted")
    shape = _shape(reader)
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        # A copy: float32 tensors come as read-only views of the file.
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        name, part = _transformers_name(tensor.name, path)
        if part == "attn_q":
            values = _rotary_halves(values, shape.heads)
        elif part == "attn_k":
            values = _rotary_halves(values, shape.kv_heads)
        weights[name] = torch.from_numpy(values)

    def save_tokenizer(target: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        tokenizer.save_pretrained(target)

    return DenseModel(shape, weights, save_tokenizer)


def _field(reader: GGUFReader, name: str, default: Any = None) -> Any:
    field = reader.get_field(name)
    if field is None:
        if default is None:
            raise UpcycleError(f"the GGUF file has no field {name}")
        return default
    return field.contents()


def _shape(reader: GGUFReader) -> DenseShape:
    heads = int(_field(reader, "llama.attention.head_count"))
    hidden = int(_field(reader, "llama.embedding_length"))
    tokens = _field(reader, "tokenizer.ggml.tokens")
    eos = [int(_field(reader, "tokenizer.ggml.eos_token_id"))]
    eos += [tokens.index(t) for t in _OTHER_EOS_TOKENS if t in tokens]
    return DenseShape(
        hidden=hidden,
        ffn=int(_field(reader, "llama.feed_forward_length")),
        layers=int(_field(reader, "llama.block_count")),
        heads=heads,
        kv_heads=int(_field(reader, "llama.attention.head_count_kv", heads)),
        head_dim=int(_field(reader, "llama.attention.key_length", hidden // heads)),
        vocab=len(tokens),
        # Stored as float32, meant as a short decimal.
        norm_eps=float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_theta=float(_field(reader, "llama.rope.freq_base", 10_000.0)),
        max_positions=int(_field(reader, "llama.context_length")),
        tied=all(t.name != "output.weight" for t in reader.tensors),
        bos_token_id=int(_field(reader, "tokenizer.ggml.bos_token_id")),
        eos_token_ids=tuple(dict.fromkeys(eos)),
    )


def _transformers_name(name: str, path: Path) -> tuple[str, str]:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name], name
    pieces = name.split(".")
    if len(pieces) == 4 and pieces[0] == "blk" and pieces[3] == "weight":
        part = pieces[2]
        if part in _LAYER_NAMES:
            return f"model.layers.{pieces[1]}.{_LAYER_NAMES[part]}.weight", part
    raise UpcycleError(f"{path} has a tensor {name}, which a Llama model without biases has not")


def _rotary_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    # GGUF interleaves the two halves that a rotation pairs; Transformers keeps them apart.
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))
