"""A GGUF file gives the model that was written into it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from afd.tools.errors import UpcycleError
from afd.tools.gguf_model import load_gguf

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's order of a head's rows: 0, d/2, 1, d/2 + 1, ..."""
    d = weight.shape[0] // heads
    rows = [h * d + i + half for h in range(heads) for i in range(d // 2) for half in (0, d // 2)]
    return weight[rows]


def _write(path: Path, folder: Path, architecture: str = "llama") -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_token_list(names + [f"w{i}" for i in range(3, config.vocab_size)])
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        elif name.startswith("model.layers."):
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            if part.endswith("q_proj"):
                values = _interleaved(values, config.num_attention_heads)
            elif part.endswith("k_proj"):
                values = _interleaved(values, config.num_key_value_heads)
            writer.add_tensor(f"blk.{layer}.{_PARTS[part]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_weights_and_shape_come_back(llama_folder: Path, tmp_path: Path) -> None:
    expected = _write(tmp_path / "model.gguf", llama_folder)
    dense = load_gguf(tmp_path / "model.gguf")
    assert dense.shape.eos_token_ids == (2, 0)
    assert dense.shape.tied and dense.shape.norm_eps == 1e-5
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(dense.runnable()(tokens).logits, expected(tokens).logits)


def test_other_architectures_and_other_files_are_refused(
    llama_folder: Path, tmp_path: Path
) -> None:
    _write(tmp_path / "gemma.gguf", llama_folder, architecture="gemma")
    with pytest.raises(UpcycleError, match="holds a gemma model"):
        load_gguf(tmp_path / "gemma.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(UpcycleError, match="not a readable GGUF file"):
        load_gguf(tmp_path / "text.gguf")
