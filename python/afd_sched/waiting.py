"""Requests that wait for a slot, in the order in which they get one."""

from __future__ import annotations

from bisect import bisect_left, insort
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

    def remove(self, req: Req) -> None:
        """Takes a request out."""
        if self._reqs[0] is req:
            del self._reqs[0]
        else:
            del self._reqs[bisect_left(self._reqs, req.order, key=_ORDER)]
