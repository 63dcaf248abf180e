"""A request as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from afd_sched.messages import SamplingParams


class FinishReason(IntEnum):
    """Why a token was a request's last; RUNNING if it was not."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3


class RequestRefused(Exception):
    """The request can never run; the message is a sentence for the user."""


@dataclass(slots=True)
class Req:
    """``tokens``: the prompt and what was generated before the last admission (int32).

    ``limit``: total tokens, prompt included, at which it ends. ``slot``, numbered through all
    ranks, is -1 while it waits.
    """

    uid: int
    tokens: NDArray[np.int32]
    sampling: SamplingParams
    limit: int
    slot: int = -1
