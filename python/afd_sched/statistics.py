"""Counters of a run; a bounded ring of recent steps for the medians."""

from __future__ import annotations

import numpy as np

_RING_STEPS = 4096


class StepStatistics:
    """Times of committed steps. A step's time runs from its publication, or from the commit before
    it if that was later, to its own commit."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self._decode_tokens = 0
        self._decode_ms = 0.0
        self._step_ms = np.zeros(_RING_STEPS)
        self._attention_wait_ms = 0.0
        self._ffn_wait_ms = 0.0
        self._wire_bytes_out = 0
        self._wire_bytes_back = 0
        self._recorded = 0

    def restart(self) -> None:
        """Forgets step times; ``decode_tokens_per_s`` and ``step_ms_*`` are of what follows."""
        self._recorded = 0
        self._decode_tokens = 0
        self._decode_ms = 0.0

    def wire(self, bytes_out: int, bytes_back: int) -> None:
        """Bytes that the attention ranks sent and got in a step."""
        self._wire_bytes_out += bytes_out
        self._wire_bytes_back += bytes_back

    def step(
        self,
        tokens: int,
        pure_decode: bool,
        step_ms: float,
        attention_wait_ms: float,
        ffn_wait_ms: float,
    ) -> None:
        """A committed step; waits are means over the ranks that took part."""
        self._step_ms[self._recorded % _RING_STEPS] = step_ms
        self._recorded += 1
        self.steps += 1
        self.tokens += tokens
        self._attention_wait_ms += attention_wait_ms
        self._ffn_wait_ms += ffn_wait_ms
        if pure_decode:
            self._decode_tokens += tokens
            self._decode_ms += step_ms

    def values(self) -> dict[str, float]:
        """Plain numbers; ``attention_wait_ms`` and ``ffn_wait_ms`` are means per step."""
        recent = self._step_ms[: min(self._recorded, _RING_STEPS)]
        p50, p99 = np.percentile(recent, (50, 99)) if len(recent) else (0.0, 0.0)
        per_step = 1 / self.steps if self.steps else 0.0
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "decode_tokens_per_s": (
                self._decode_tokens * 1000 / self._decode_ms if self._decode_ms else 0.0
            ),
            "step_ms_p50": float(p50),
            "step_ms_p99": float(p99),
            "attention_wait_ms": self._attention_wait_ms * per_step,
            "ffn_wait_ms": self._ffn_wait_ms * per_step,
            "wire_bytes_out": self._wire_bytes_out,
            "wire_bytes_back": self._wire_bytes_back,
        }
