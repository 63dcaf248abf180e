"""A step between its plan and its commit: what each rank owes, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

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
class Planned:
    """A step in flight: the bytes of tokens that each rank owes, whose they are (rank by rank), and
    the slots whose prompts end in it."""

    step: int
    ranks: list[int]
    sizes: list[int]
    rows: RowOrder
    cells: I64
    prompts: I64

    def without(self, rank: int, slots_per_rank: int) -> Planned:
        """The step as it goes on when a rank is lost."""
        if rank not in self.ranks:
            return self
        at = self.ranks.index(rank)
        keep = self.rows.slots // slots_per_rank != rank
        return Planned(
            self.step,
            self.ranks[:at] + self.ranks[at + 1 :],
            self.sizes[:at] + self.sizes[at + 1 :],
            self.rows.only(keep),
            self.cells[keep],
            self.prompts[self.prompts // slots_per_rank != rank],
        )

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
