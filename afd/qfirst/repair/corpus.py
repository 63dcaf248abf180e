"""Text for training and scoring: read, split by position, cut into windows of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afd.qfirst.errors import QFirstError

# Shares of the text, in this order, by position: a window of one never overlaps one of another.
_TRAIN_SHARE, _VALIDATION_SHARE = 0.90, 0.05
# A tokenizer's memory grows with the piece it is given.
_PIECE_CHARACTERS = 1 << 16


class CorpusError(QFirstError):
    """Text that cannot be read, or is too short for what is asked of it."""


@dataclass(frozen=True)
class Corpus:
    """The files' text in the order given; ``digest`` is the SHA-256 of its UTF-8 bytes."""

    names: tuple[str, ...]
    text: str
    digest: str

    @property
    def size_bytes(self) -> int:
        """Length in UTF-8 bytes."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Tokens:
    """``ids``: int64 [n]; ``sizes``: int64 [n], UTF-8 bytes of text that each token stands for."""

    ids: torch.Tensor
    sizes: torch.Tensor


@dataclass(frozen=True)
class Windows:
    """``ids``: int64 [n, length]; ``sizes``: int64 [n], bytes of all tokens but each first one.

    The first token of a window is read and never predicted.
    """

    ids: torch.Tensor
    sizes: torch.Tensor

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def spread(self, count: int) -> Windows:
        """``count`` of them, evenly spaced; raises CorpusError if there are fewer."""
        if count > len(self):
            raise CorpusError(
                f"the corpus is too short: {count} windows of {self.ids.shape[1]} tokens are "
                f"needed where its text has {len(self)}; give more text or ask for fewer windows"
            )
        chosen = torch.linspace(0, len(self) - 1, count).round().long()
        return Windows(self.ids[chosen], self.sizes[chosen])


@dataclass(frozen=True)
class Split:
    """The three parts of a text; nothing is ever selected on ``test``."""

    train: Tokens
    validation: Tokens
    test: Tokens


Encode = Callable[[str], Tokens]


def read_corpus(paths: Sequence[Path]) -> Corpus:
    """Raises CorpusError for a file that is missing, empty or not UTF-8."""
    parts = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise CorpusError(f"corpus file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CorpusError(f"corpus file {path} is not UTF-8 text: {error.reason}") from error
        if not text.strip():
            raise CorpusError(f"corpus file {path} is empty; give a file with text")
        parts.append(text)
    whole = "\n".join(parts)
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return Corpus(tuple(path.name for path in paths), whole, digest)


def split(corpus: Corpus, encode: Encode) -> Split:
    """The first 90 % to train on, the next 5 % to validate, the last 5 % to test."""
    size = len(corpus.text)
    first = int(size * _TRAIN_SHARE)
    second = int(size * (_TRAIN_SHARE + _VALIDATION_SHARE))
    text = corpus.text
    return Split(encode(text[:first]), encode(text[first:second]), encode(text[second:]))


def windows(tokens: Tokens, length: int) -> Windows:
    """Windows of ``length`` tokens, side by side; what is left over at the end is not used."""
    count = len(tokens.ids) // length
    ids = tokens.ids[: count * length].view(count, length)
    sizes = tokens.sizes[: count * length].view(count, length)[:, 1:].sum(1)
    return Windows(ids, sizes)


def byte_tokens(text: str) -> Tokens:
    """A token is a byte."""
    ids = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).astype(np.int64))
    return Tokens(ids, torch.ones_like(ids))


def tokenizer_tokens(tokenizer: Any) -> Encode:
    """An encoder from a Transformers fast tokenizer; raises CorpusError for a slow one."""
    if not tokenizer.is_fast:
        raise CorpusError("the model's tokenizer has no tokenizer.json, which bits per byte need")

    def encode(text: str) -> Tokens:
        ids: list[NDArray[np.int64]] = []
        sizes: list[NDArray[np.int64]] = []
        for start in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[start : start + _PIECE_CHARACTERS]
            encoded = tokenizer(
                piece, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            ids.append(np.asarray(encoded["input_ids"], np.int64))
            sizes.append(_token_bytes(piece, encoded["offset_mapping"]))
        return Tokens(_joined(ids), _joined(sizes))

    return encode


def _joined(parts: list[NDArray[np.int64]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.int64))


def _token_bytes(text: str, offsets: list[tuple[int, int]]) -> NDArray[np.int64]:
    # Byte position of every character; tokens that share a character count it once.
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    position = np.concatenate(([0], np.cumsum(lengths)))
    ends = np.maximum.accumulate([end for _, end in offsets]) if offsets else np.zeros(0, int)
    return np.diff(position[ends], prepend=0).astype(np.int64)
