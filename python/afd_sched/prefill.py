"""Which prompts advance in a step, and by how much: chunked prefill under a token budget."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class Chunks:
    """One rank's prompt tokens of one step: ``pairs`` slot, tokens, slot, tokens, … with the slots
    numbered within the rank; ``done``: slots whose prompt ends in this step."""

    tokens: int = 0
    pairs: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


@dataclass(slots=True, order=True)
class _Prompt:
    uid: int
    slot: int
    remaining: int


class PrefillManager:
    """Prompts that have not run to their end, by rank; slots are numbered through all ranks."""

    def __init__(self, budget_tokens: int, slots_per_rank: int) -> None:
        self._budget = budget_tokens
        self._slots = slots_per_rank
        self._prompts: dict[int, list[_Prompt]] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def add(self, slot: int, uid: int, remaining: int) -> None:
        """A prompt with ``remaining`` tokens to run."""
        insort(self._prompts.setdefault(slot // self._slots, []), _Prompt(uid, slot, remaining))

    def discard(self, slot: int) -> None:
        """The slot runs no more of its prompt, if it has one."""
        rank = slot // self._slots
        self._keep(rank, [p for p in self._prompts.get(rank, ()) if p.slot != slot])

    def _keep(self, rank: int, prompts: list[_Prompt]) -> None:
        if prompts:
            self._prompts[rank] = prompts
        else:
            self._prompts.pop(rank, None)

    def deal(self, sitting_out: set[int]) -> dict[int, Chunks]:
        """One step's chunks, earliest request first within each rank."""
        dealt: dict[int, Chunks] = {}
        for rank in [r for r in self._prompts if r not in sitting_out]:
            chunks = dealt[rank] = Chunks()
            for prompt in self._prompts[rank]:
                count = min(prompt.remaining, self._budget - chunks.tokens)
                if count == 0:
                    break
                chunks.tokens += count
                chunks.pairs += (prompt.slot - rank * self._slots, count)
                prompt.remaining -= count
                if prompt.remaining == 0:
                    chunks.done.append(prompt.slot)
            if chunks.done:
                self._keep(rank, self._prompts[rank][len(chunks.done) :])
        return dealt
