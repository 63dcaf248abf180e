"""A request as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from afd_sched.messages import SamplingParams

TOKEN_BYTES = 4


class FinishReason(IntEnum):
    """Why a token was a request's last; RUNNING if it was not."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3


class RequestRefused(Exception):
    """The request can never run, or not now; the message is a sentence for the user."""


@dataclass(slots=True, eq=False)
class Req:
    """``tokens``: the prompt and what was generated before the last admission (int32 bytes);
    ``count``: how many.

    ``limit``: total tokens, prompt included, at which it ends. ``order``: requests with a smaller
    one go first; unique. ``arrival``: the step in which it came. ``slot``, numbered through all
    ranks, is -1 while it waits. ``remaining``: tokens that have not run yet of a prompt that runs.
    """

    uid: int
    tokens: bytes
    count: int
    sampling: SamplingParams
    limit: int
    order: tuple[int, int]
    arrival: int
    slot: int = -1
    remaining: int = 0

    def extend(self, answer: bytes) -> None:
        """Generated tokens become its own, since it waits again."""
        self.tokens += answer
        self.count = len(self.tokens) // TOKEN_BYTES
