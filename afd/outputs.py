"""What a request gives back."""

from __future__ import annotations

from typing import Any

import msgspec


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One request's result so far; ``finish_reason`` is None while it runs.

    ``text`` holds no special token and stops before a stop string; ``token_ids`` are every sampled
    id, the ending EOS included. ``finish_reason``: "stop", "length" or "abort".
    """

    index: int
    text: str
    token_ids: list[int]
    prompt_tokens: int
    finish_reason: str | None

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints for this request."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
        }
