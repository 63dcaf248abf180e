"""How far each rank's clock is from the coordinator's, by pings over the links.

    sent ──► clock (the rank's) ──► received         offset = clock − (sent + received) / 2

The best of a few rounds counts; its error is at most half its round trip. Ranks of one machine
share CLOCK_MONOTONIC, so an offset within that error is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from afd_sched.messages import Pong


@dataclass(frozen=True, slots=True)
class Offset:
    """A rank's clock less the coordinator's, and the round trip that it was seen in (ns)."""

    offset_ns: int
    round_trip_ns: int

    @property
    def shift_ns(self) -> int:
        """What to take from the rank's times; 0 where the offset may well be none."""
        # Halves are rounded down, here and in offset_ns.
        error_ns = self.round_trip_ns // 2 + 1
        return self.offset_ns if abs(self.offset_ns) > error_ns else 0


class Clocks:
    """The best offset of each rank so far."""

    def __init__(self) -> None:
        self.offsets: dict[int, Offset] = {}

    def pong(self, message: Pong, received_ns: int) -> None:
        """Takes in an answer."""
        round_trip = received_ns - message.sent_ns
        if round_trip < 0:
            return
        best = self.offsets.get(message.rank)
        if best is None or round_trip < best.round_trip_ns:
            middle = (message.sent_ns + received_ns) // 2
            self.offsets[message.rank] = Offset(message.clock_ns - middle, round_trip)
