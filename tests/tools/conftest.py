"""A tiny random Llama with a tokenizer: the source of the conversions under test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}"
    "{% endfor %}"
)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hidden 48, feed-forward 96, 4 query heads of 16 over 2 KV heads, 3 layers, tied, two EOS."""
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=160,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=[2, 0],
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(1 + 0.1 * noise)
            elif "embed" in name:
                # Activations of a trained model have a mean far from zero; so have these.
                common = torch.randn(weight.shape[1], generator=generator)
                weight.copy_(0.3 * noise + 0.6 * common)
            else:
                weight.copy_(1.2 * noise / weight.shape[1] ** 0.5)
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(folder)
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "user", "assistant"]
    vocab = {word: i for i, word in enumerate(words + [f"w{i}" for i in range(5, 160)])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return folder
