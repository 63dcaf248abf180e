"""A step between its plan and its commit: what each rank owes, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afd_sched.decode import RowOrder
from afd_sched.ints import unpack_int32
from afd_sched.req import TOKEN_BYTES

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class StepOrderError(Exception):
    """plan or commit was called out of order, or with other ranks' results."""


class RunFailed(Exception):
    """The run cannot go on; ``rank`` is the culprit's number, -1 if there is none."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class BadResult(RunFailed):
    """A rank returned what its plan cannot give."""


class StepsExhausted(RunFailed):
    """The next step's number is one that the data plane cannot tell from another run's."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Whose tokens a step returns, rank by rank, and the cells of the history where they go."""

    order: RowOrder
    cells: I64


_NOBODY = np.zeros(0, np.int64)
UNKNOWN_ROWS: Final = Rows(RowOrder(_NOBODY, _NOBODY), _NOBODY)


@dataclass(slots=True)
class Planned:
    """A step in flight: the bytes of tokens that each rank owes, and the slots whose prompts end in
    it. ``samples`` [all slots]: 1 for those that return a token, None if all resident ones do.
    ``rows`` are worked out once the plans are on their way."""

    step: int
    ranks: list[int]
    sizes: list[int]
    prompts: I64
    samples: I32 | None
    rows: Rows = UNKNOWN_ROWS

    def without(self, rank: int, slots_per_rank: int) -> None:
        """The step goes on when a rank is lost; its rows must be known."""
        if rank not in self.ranks:
            return
        at = self.ranks.index(rank)
        del self.ranks[at], self.sizes[at]
        keep = self.rows.order.slots // slots_per_rank != rank
        self.rows = Rows(self.rows.order.only(keep), self.rows.cells[keep])
        self.prompts = self.prompts[self.prompts // slots_per_rank != rank]

    def collect(self, results: dict[int, bytes]) -> I32:
        """The ranks' tokens end to end, in the order of ``rows``; raises StepOrderError if they
        are not of the ranks that the step runs on, BadResult if a rank's are too few or many."""
        if results.keys() != set(self.ranks):
            raise StepOrderError(
                f"step {self.step} ran on ranks {self.ranks}, results came from {sorted(results)}"
            )
        columns = [results[rank] for rank in self.ranks]
        sizes = list(map(len, columns))
        if sizes != self.sizes:
            at = next(i for i, size in enumerate(self.sizes) if sizes[i] != size)
            raise BadResult(
                self.ranks[at],
                f"step {self.step}: rank {self.ranks[at]} returned {sizes[at] / TOKEN_BYTES:g} "
                f"tokens, {self.sizes[at] // TOKEN_BYTES} were planned",
            )
        return unpack_int32(b"".join(columns))
