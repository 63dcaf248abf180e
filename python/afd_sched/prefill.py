"""Which prompts advance in a step, and by how much: chunked prefill under a token budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PrefillAdder:
    """Deals one rank's prompt tokens of one step, earliest request first."""

    def __init__(self, budget_tokens: int) -> None:
        self._left = budget_tokens
        self._pairs: list[tuple[int, int]] = []

    def add(self, slot: int, remaining: int) -> int:
        """Tokens that ``slot`` may run of its ``remaining``; 0 when the budget is spent."""
        count = min(remaining, self._left)
        if count:
            self._left -= count
            self._pairs.append((slot, count))
        return count

    def pairs(self) -> NDArray[np.int32]:
        """[n, 2] of (slot, tokens)."""
        return np.array(self._pairs, np.int32).reshape(-1, 2)
