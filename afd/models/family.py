"""What a model file must say: how to parse its config, name its tensors, norm q and k, and route.

Everything else about a pre-norm decoder with rotary attention is shared (``decoder.py``).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from afd.models.config import Fields, ModelConfig


class QkNorm(Enum):
    """Where q and k are RMS-normalised before the rotation."""

    NONE = "none"
    PER_HEAD = "per head"
    FULL_WIDTH = "over all heads of a token"


class Routing(Enum):
    """How router logits become experts and weights."""

    SOFTMAX = "softmax over all experts, then top-k"
    SIGMOID_BIAS = "top-k of sigmoid + bias, weighed by the sigmoids"


class Family(Protocol):
    """One architecture; implementations are stateless module-level objects named FAMILY."""

    qk_norm: QkNorm
    routing: Routing

    def parse(self, fields: Fields, generation: dict[str, Any]) -> ModelConfig:
        """The model's shape; raises UnsupportedModelError."""
        ...

    def router(self, layer: int) -> str:
        """Name of the router weight [experts, hidden]."""
        ...

    def router_bias(self, layer: int) -> str:
        """Name of the selection bias [experts]; asked only under SIGMOID_BIAS."""
        ...

    def expert(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Names of one expert's gate, up and down weights."""
        ...

    def dense(self, layer: int) -> tuple[str, str, str]:
        """Names of a dense layer's gate, up and down weights; asked only of non-MoE layers."""
        ...
