"""Where a block's query, key and value are read from, as data: all wirings of the paper are one.

The residual stream passes 2 * layers half-layers, each an attention or a feed-forward that adds to
it. State 0 is the embedding, state i the stream after i half-layers. An attention ordinarily reads
the state it adds to; a wiring says, for each of its three inputs, how many half-layers earlier the
state is that it reads instead (Q-First, Sections 7 and 8, and "how the four depths were run").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from afd.qfirst.errors import WiringError

EMBEDDING: Final = "embedding"

# Half-layers back, or the network's input whatever the layer.
Read = int | Literal["embedding"]


class Order(StrEnum):
    """Which half of a layer runs first."""

    ATTENTION_FIRST = "attention_first"
    FFN_FIRST = "ffn_first"


@dataclass(frozen=True)
class Wiring:
    """Read points of a decoder; ``held_out`` layers read all three where the attention stands.

    A read that reaches below the stack takes the embedding, so under ``ATTENTION_FIRST`` layer 0 is
    exempt from any early read by construction.
    """

    order: Order = Order.ATTENTION_FIRST
    query: Read = 0
    key: Read = 0
    value: Read = 0
    held_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("query", "key", "value"):
            read = getattr(self, name)
            valid = isinstance(read, int) and not isinstance(read, bool) and read >= 0
            if read != EMBEDDING and not valid:
                raise WiringError(
                    f"wiring: {name} = {read!r} is neither a count of half-layers nor {EMBEDDING!r}"
                )
        object.__setattr__(self, "held_out", tuple(sorted(set(self.held_out))))

    def attention_state(self, layer: int) -> int:
        """Index of the state that the layer's attention adds to."""
        return 2 * layer + (self.order is Order.FFN_FIRST)

    def states(self, layer: int) -> tuple[int, int, int]:
        """Indices of the states that the layer's query, key and value read."""
        stand = self.attention_state(layer)
        if layer in self.held_out:
            return stand, stand, stand
        q, k, v = (
            0 if read == EMBEDDING else max(0, stand - read)
            for read in (self.query, self.key, self.value)
        )
        return q, k, v

    def moved_layers(self, layers: int) -> tuple[int, ...]:
        """The layers with an input that is not the state their attention stands at."""
        return tuple(
            layer for layer in range(layers)
            if any(s != self.attention_state(layer) for s in self.states(layer))
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint's config says."""
        return {
            "order": self.order.value, "query": self.query, "key": self.key, "value": self.value,
            "held_out": list(self.held_out),
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Wiring:
        """The wiring a config says; raises WiringError for a field that is missing or unknown."""
        names = {"order", "query", "key", "value", "held_out"}
        if set(values) != names:
            wrong = ", ".join(sorted(set(values) ^ names))
            raise WiringError(f"wiring: fields missing or unknown: {wrong}")
        if values["order"] not in list(Order):
            raise WiringError(f"wiring: order {values['order']!r} is none of {', '.join(Order)}")
        return cls(
            Order(values["order"]), values["query"], values["key"], values["value"],
            tuple(int(layer) for layer in values["held_out"]),
        )  # fmt: skip


# The paper's arms. Family A: a block's feed-forward does not consume that block's attention.
FAMILY_A: Final = ("swapped", "early_q", "early_k", "early_qk", "parallel")
FAMILY_B: Final = ("standard", "shifted", "shared_query")

_FIRST, _LAST = Order.ATTENTION_FIRST, Order.FFN_FIRST


def wiring(arm: str) -> Wiring:
    """The wiring of one of the paper's eight arms; raises WiringError that lists them."""
    arms = {
        "standard": Wiring(),
        "shifted": Wiring(_FIRST, query=1),
        "shared_query": Wiring(_FIRST, query=EMBEDDING),
        "swapped": Wiring(_LAST),
        "early_q": Wiring(_LAST, query=1),
        "early_k": Wiring(_LAST, key=1),
        "early_qk": Wiring(_LAST, query=1, key=1),
        "parallel": Wiring(_LAST, query=1, key=1, value=1),
    }
    if arm not in arms:
        raise WiringError(f"arm {arm!r} is not known; known are {', '.join(arms)}")
    return arms[arm]


def early_query(layers: int, half_layers: int, held_out: tuple[int, ...] = ()) -> Wiring:
    """A trained checkpoint's conversion: every query read ``half_layers`` back, but ``held_out``.

    Raises WiringError for an even depth or one that a converted layer cannot reach.
    """
    if half_layers < 1 or half_layers % 2 == 0:
        raise WiringError(
            f"half-layers must be odd (a query moves by whole layers less one half), "
            f"not {half_layers}"
        )
    result = Wiring(_FIRST, query=half_layers, held_out=held_out)
    reach = half_layers // 2
    short = [n for n in range(1, layers) if n not in held_out and n <= reach]
    deepest = 2 * layers - 3
    if half_layers > deepest:
        raise WiringError(
            f"{half_layers} half-layers is too deep: no layer of {layers} has more than {deepest} "
            "beneath it; read less far back"
        )
    if short:
        raise WiringError(
            f"{half_layers} half-layers is too deep: layer {short[0]} of {layers} has fewer "
            f"beneath it; hold layers 1 to {reach} out or read less far back"
        )
    return result
