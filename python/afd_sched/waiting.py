"""Requests that wait for a slot, in the order in which they get one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from afd_sched.req import Req

_ORDER = attrgetter("order")


class WaitingQueue:
    """Sorted by ``Req.order``, which never changes: a retracted request comes back to its place."""

    def __init__(self) -> None:
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def first(self, count: int) -> list[Req]:
        """The first ``count`` requests, or all."""
        return self._reqs[:count]

    def add(self, req: Req) -> None:
        """Queues a request."""
        if not self._reqs or self._reqs[-1].order < req.order:
            self._reqs.append(req)
        else:
            insort(self._reqs, req, key=_ORDER)

    def remove(self, leaving: Sequence[Req]) -> None:
        """Takes some of the requests out; mostly they are the first."""
        if self._reqs[: len(leaving)] == leaving:
            del self._reqs[: len(leaving)]
            return
        for req in leaving:
            del self._reqs[bisect_left(self._reqs, req.order, key=_ORDER)]
