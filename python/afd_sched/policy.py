"""In which order waiting requests are tried, so that none of them starves.

A request's place is fixed when it arrives: the step of its arrival, less ``PRIORITY_STEPS`` steps
for each level of its priority. So within a priority the first come is first served, and a request
waits at most that many steps per level longer than it would without priorities.

``lpm`` (longest prefix match) tries those first of whose prompts the cache knows most; one that
has waited for ``PATIENCE_STEPS`` steps goes before them, in its place.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from afd_sched.req import Req, RequestRefused
from afd_sched.residents import Residents
from afd_sched.waiting import WaitingQueue

PRIORITY_STEPS: Final = 256
PRIORITY_BOUND: Final = 100
PATIENCE_STEPS: Final = 64
_LPM_WINDOW = 128


class SchedulePolicy(Enum):
    """Names follow SGLang."""

    FCFS = "fcfs"
    LPM = "lpm"


def place(uid: int, priority: int, enabled: bool, now: int) -> tuple[int, int]:
    """``Req.order`` of a request that arrives in step ``now``; raises RequestRefused."""
    if priority and not enabled:
        raise RequestRefused(
            f"the request has priority {priority}, but the engine was started without "
            "--enable-priority-scheduling; send it without a priority"
        )
    if abs(priority) > PRIORITY_BOUND:
        raise RequestRefused(
            f"a priority must be from -{PRIORITY_BOUND} to {PRIORITY_BOUND}, not {priority}"
        )
    return now - priority * PRIORITY_STEPS, uid


def in_order(
    policy: SchedulePolicy, queue: WaitingQueue, residents: Residents, now: int
) -> list[Req]:
    """The requests to try in step ``now``, at most as many as there are free slots."""
    slots = residents.table.all_free
    if policy is SchedulePolicy.FCFS:
        return queue.first(slots)
    window = queue.first(_LPM_WINDOW)
    patient = [req for req in window if now - req.arrival < PATIENCE_STEPS]
    first = [req for req in window if now - req.arrival >= PATIENCE_STEPS]
    known = {req.uid: residents.known_tokens(req.tokens) for req in patient}
    # The sort is stable: equals stay in their places.
    return (first + sorted(patient, key=lambda req: -known[req.uid]))[:slots]
