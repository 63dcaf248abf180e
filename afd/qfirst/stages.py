"""A stack as the calls that a cache side makes to a pool: one a feed-forward, none in between."""

from __future__ import annotations

from dataclasses import dataclass

from afd.qfirst.errors import WiringError
from afd.qfirst.wiring import Order, Wiring


@dataclass(frozen=True)
class Stage:
    """One call: the feed-forward it runs, and the attention whose key and value it returns.

    The stream's states around it: ``state`` is u, ``state + 1`` (or the same, without a
    feed-forward) is z. ``query``, ``key`` and ``value`` index the states those read.
    """

    ffn: int | None
    attention: int
    state: int
    query: int
    key: int
    value: int

    @property
    def query_is_early(self) -> bool:
        """Whether the sweep may start when the call is sent, rather than when it is answered."""
        return self.query <= self.state


@dataclass(frozen=True)
class Program:
    """The calls of one token, and the feed-forward that is left over at the end, if one is."""

    stages: tuple[Stage, ...]
    tail: int | None

    def calls(self) -> int:
        """Round trips a token."""
        return len(self.stages) + (self.tail is not None)


def program(wiring: Wiring, layers: int) -> Program:
    """The calls of one token.

    Feed-forward-first blocks are one call each. An attention-first stack is its other bracketing
    (Section 8): one call for the first key and value alone, one per feed-forward with the next
    layer's attention, and the last feed-forward by itself.

    Raises WiringError for a key or value that the pool, which sees only u and z, could not read.
    """
    ffn_first = wiring.order is Order.FFN_FIRST
    made, state = [], 0
    for attention in range(layers):
        ffn = attention if ffn_first else attention - 1
        query, key, value = wiring.states(attention)
        if min(key, value) < state:
            raise WiringError(
                f"layer {attention}'s key or value is read before the call that computes it; a "
                "pool without state can read it from the call's input or output only"
            )
        made.append(Stage(ffn if ffn >= 0 else None, attention, state, query, key, value))
        state += 1 + (ffn >= 0)
    return Program(tuple(made), None if ffn_first else layers - 1)
