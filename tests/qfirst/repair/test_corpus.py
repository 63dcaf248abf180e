"""Windows of text: nothing shared between the parts, every byte counted once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from afd.qfirst.repair.corpus import (
    CorpusError,
    byte_tokens,
    read_corpus,
    split,
    tokenizer_tokens,
    windows,
)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, so several tokens share one character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("text", ["plain words\n", "naïve – 12 €, 漢字 and 🜁 beyond\n"])
def test_the_tokens_bytes_are_the_texts_bytes(text: str) -> None:
    tokens = tokenizer_tokens(byte_level_tokenizer())(text * 3)
    assert int(tokens.sizes.sum()) == len((text * 3).encode()) == len(tokens.ids)
    assert int(tokens.sizes.min()) >= 0


def test_parts_are_side_by_side_and_windows_never_overlap(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("".join(chr(33 + i % 90) for i in range(1000)))
    corpus = read_corpus([path])
    parts = split(corpus, byte_tokens)
    joined = torch.cat([parts.train.ids, parts.validation.ids, parts.test.ids])
    assert bytes(joined.tolist()) == path.read_bytes()
    assert [len(p.ids) for p in (parts.train, parts.validation, parts.test)] == [900, 50, 50]
    cut = windows(parts.train, 64)
    assert torch.equal(cut.ids.flatten(), parts.train.ids[: 14 * 64])
    assert cut.sizes.tolist() == [63] * 14
    with pytest.raises(CorpusError, match="too short: 15 windows of 64"):
        cut.spread(15)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "blank").write_text(" \n")
    for name, words in (("latin", "not UTF-8"), ("blank", "is empty"), ("none", "cannot be read")):
        with pytest.raises(CorpusError, match=f"{name}.*{words}"):
            read_corpus([tmp_path / name])
