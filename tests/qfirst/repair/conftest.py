"""A tiny random checkpoint folder with a tokenizer, and text for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS = 5


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers of width 48 over 90 words, written by Transformers."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=90, hidden_size=48, intermediate_size=80, num_hidden_layers=LAYERS,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
        max_position_embeddings=128, initializer_range=0.15, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = ["<unk>", *(f"w{i}" for i in range(1, 90))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 words with a pattern to learn: every third one repeats the first of three."""
    draw = random.Random(3)
    words: list[str] = []
    while len(words) < 4000:
        first, second = (f"w{draw.randrange(1, 90)}" for _ in range(2))
        words += [first, second, first]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(words))
    return path
