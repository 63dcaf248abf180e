"""How to pick tokens and when to stop, as a user says it."""

from __future__ import annotations

import msgspec

from afd.errors import RequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names follow SGLang. ``temperature`` 0 is greedy; ``top_k`` -1 and ``top_p`` 1 are off.

    ``seed`` None draws one; the same seed gives the same tokens in any batch. ``stop`` strings end
    the text before them; ``stop_token_ids`` end it like an EOS id.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError for a value outside its range."""
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature must be 0 or more, not {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise RequestError(f"top_k must be -1 (off) or at least 1, not {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise RequestError(f"seed must be in [0, 2**63), not {self.seed}")
        if isinstance(self.stop, str) or any(not s for s in self.stop):
            raise RequestError("stop must be a sequence of non-empty strings")
