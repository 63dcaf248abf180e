"""Text to ids and back; Transformers' tokenizer, and text that grows token by token."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afd.errors import CheckpointError, RequestError

Conversation = Sequence[dict[str, str]]


class Tokenizer:
    """A checkpoint's tokenizer and chat template."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError if the folder holds no tokenizer."""
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is no folder; --tokenizer-path names one")
        # Only tokenizers are used, so a hint that torch is missing would mislead.
        logging.getLogger("transformers").addFilter(
            lambda record: "PyTorch was not found" not in record.getMessage()
        )
        # Heavy, and only the front end needs it.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{folder} has no usable tokenizer ({str(error).splitlines()[0]}); pass "
                "--tokenizer-path, or --skip-tokenizer-init and token ids"
            ) from error

    @property
    def has_chat_template(self) -> bool:
        """Whether this is a chat model."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens that the tokenizer adds by itself."""
        return list(self._tokenizer(text)["input_ids"])

    def encode_chat(self, conversation: Conversation) -> list[int]:
        """Ids of a conversation ({"role", "content"} turns), ready for the assistant's turn."""
        if not self.has_chat_template:
            raise RequestError("the tokenizer has no chat template; use a plain prompt (--no-chat)")
        text = self._tokenizer.apply_chat_template(
            list(conversation), tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself.
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class TextStream:
    """The text of one growing answer, cut before the first stop string.

    text   [ stable ..................... | may still change or begin a stop string ]
                                    given out at most up to here ^
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._done = ""
        self._begin = 0
        self._settled = 0
        self.text = ""
        self.stopped = False

    def push(self, ids: Sequence[int], final: bool) -> str:
        """Adds ids; returns the text that became certain. ``final`` lets everything out."""
        if self.stopped:
            return ""
        self._ids.extend(ids)
        whole = self._decode(final)
        cut = min((at for s in self._stop if (at := whole.find(s)) >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
            certain = whole[:cut]
        elif final:
            certain = whole
        else:
            certain = whole[: len(whole) - self._held_back(whole)]
        fresh = certain[len(self.text) :]
        self.text = certain
        return fresh

    def _decode(self, final: bool) -> str:
        # Decoding from a settled token keeps the cost flat; its neighbours decide the spacing.
        before = self._tokenizer.decode(self._ids[self._begin : self._settled])
        now = self._tokenizer.decode(self._ids[self._begin :])
        if now.endswith("\ufffd") and not final:
            return self._done
        text = self._done + now[len(before) :]
        self._done, self._begin, self._settled = text, self._settled, len(self._ids)
        return text

    def _held_back(self, text: str) -> int:
        """Length of the longest end of text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
