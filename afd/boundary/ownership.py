"""Which FFN rank owns which expert."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def balanced_owners(experts: int, ffn_ranks: int) -> NDArray[np.int32]:
    """owner[expert], contiguous blocks whose sizes differ by at most one.

    Needs 1 <= ffn_ranks <= experts; any remainder goes to the first ranks.
    """
    sizes = np.full(ffn_ranks, experts // ffn_ranks)
    sizes[: experts % ffn_ranks] += 1
    return np.repeat(np.arange(ffn_ranks, dtype=np.int32), sizes)


def owned_by(owners: NDArray[np.int32], ffn_rank: int) -> list[int]:
    """The experts of one FFN rank, ascending."""
    return [int(e) for e in np.flatnonzero(owners == ffn_rank)]
