"""Requests that wait for a slot, in the order in which they get one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from afd_sched.req import Req

_ORDER = attrgetter("order")


class WaitingQueue:
    """Sorted by ``Req.order``, which never changes: a retracted request comes back to its place."""

    def __init__(self) -> None:
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def add(self, req: Req) -> None:
        """Queues a request."""
        if not self._reqs or self._reqs[-1].order < req.order:
            self._reqs.append(req)
        else:
            insort(self._reqs, req, key=_ORDER)

    def remove(self, req: Req) -> None:
        """Takes a request out."""
        del self._reqs[bisect_left(self._reqs, req.order, key=_ORDER)]

    def take(self, count: int) -> None:
        """Takes the first ``count`` requests out."""
        del self._reqs[:count]
