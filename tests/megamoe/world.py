"""A whole launch in one process: every rank a thread, the memory a real memfd."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import (
    AttentionSide,
    Domain,
    Experts,
    FfnSide,
    Layout,
    Pool,
    ReturnMode,
    ScaleFormat,
    Wire,
)
from tests.megamoe.weights import F32, Weights

if TYPE_CHECKING:
    from tests.megamoe.reference import Expected

DEADLINE_MS = 30_000


@dataclass(frozen=True)
class Shape:
    """Layout's arguments, the expert width, and how many experts lie on every FFN rank."""

    attention_ranks: int
    ffn_ranks: int
    lanes: int
    max_tokens: int
    hidden: int
    top_k: int
    experts: int
    moe_layers: int
    wire: Wire
    width: int
    scale_format: ScaleFormat = ScaleFormat.FP32_PER_128
    return_mode: ReturnMode = ReturnMode.SLOT
    replicated: int = 0

    def layout(self) -> Layout:
        """The extension's layout of this shape."""
        arguments = {k: v for k, v in vars(self).items() if k not in ("width", "replicated")}
        return Layout(**arguments)

    def owners(self) -> NDArray[np.int32]:
        """[attention_ranks, experts]: dealt to FFN ranks in turn, uneven where they do not divide;
        the first ``replicated`` are served by every FFN rank, each to other attention ranks."""
        owner = np.arange(self.experts, dtype=np.int32) % self.ffn_ranks
        table = np.tile(owner, (self.attention_ranks, 1))
        shift = np.arange(self.attention_ranks, dtype=np.int32)[:, None]
        table[:, : self.replicated] = (table[:, : self.replicated] + shift) % self.ffn_ranks
        return table

    def expected(
        self, weights: Weights, layer: int, attention_rank: int, routed: Routed
    ) -> Expected:
        """The reference's output of one layer."""
        from tests.megamoe.reference import moe

        reduced = self.return_mode is ReturnMode.REDUCED
        return moe(
            weights,
            layer,
            routed.x[layer],
            routed.ids[layer],
            routed.weights[layer],
            self.wire,
            self.scale_format,
            self.owners()[attention_rank] if reduced else None,
        )

    def held(self, ffn_rank: int) -> list[int]:
        """The experts that some attention rank is sent to this FFN rank for."""
        return np.flatnonzero((self.owners() == ffn_rank).any(axis=0)).tolist()

    @classmethod
    def random(cls, rng: np.random.Generator, **fixed: object) -> Shape:
        """Sizes that divide nothing, unless ``fixed``."""
        ffn_ranks = int(rng.integers(1, 4))
        experts = int(rng.integers(8, 41))
        drawn: dict[str, object] = {
            "attention_ranks": int(rng.integers(1, 6)),
            "ffn_ranks": ffn_ranks,
            "lanes": int(rng.integers(1, 5)),
            "max_tokens": int(rng.integers(1, 25)),
            "hidden": int(rng.integers(64, 577)),
            "top_k": min(int(np.exp(rng.uniform(0, np.log(33)))), experts),
            "experts": experts,
            "moe_layers": int(rng.integers(1, 4)),
            "wire": [Wire.FP8, Wire.BF16, Wire.FP32][int(rng.integers(3))],
            "width": int(rng.integers(48, 193)),
            "scale_format": list(ScaleFormat.__members__.values())[int(rng.integers(3))],
            "return_mode": [ReturnMode.SLOT, ReturnMode.REDUCED][int(rng.integers(2))],
            "replicated": int(rng.integers(3)),
        }
        return cls(**{**drawn, **fixed})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Routed:
    """One lane's tokens and where they go, for every layer."""

    x: F32  # [layers, n, hidden]
    ids: NDArray[np.int32]  # [layers, n, top_k]
    weights: F32  # [layers, n, top_k]

    @classmethod
    def random(cls, rng: np.random.Generator, shape: Shape, tokens: int) -> Routed:
        """Distinct experts per token, some slots unused."""
        n = (shape.moe_layers, tokens)
        order = rng.random((*n, shape.experts)).argsort(axis=2)
        ids = order[..., : shape.top_k].astype(np.int32)
        ids[rng.random(ids.shape) < 0.15] = -1
        scale = np.exp(rng.uniform(-3, 3, (*n, 1)))
        x = (rng.standard_normal((*n, shape.hidden)) * scale).astype(np.float32)
        return cls(x, ids, rng.random((*n, shape.top_k), np.float32))


Step = dict[int, list[Routed]]  # participating attention rank -> its lanes
Outputs = dict[int, list[F32]]  # the same, [layers, n, hidden] each


def random_step(rng: np.random.Generator, shape: Shape) -> Step:
    """Some ranks, some lanes, unequal token counts, now and then none."""
    ranks = [a for a in range(shape.attention_ranks) if rng.random() < 0.8] or [0]
    lanes = int(rng.integers(1, shape.lanes + 1))
    return {
        a: [
            Routed.random(rng, shape, int(rng.integers(0, shape.max_tokens + 1)))
            for _ in range(lanes)
        ]
        for a in ranks
    }


def make_experts(shape: Shape, weights: Weights, ids: list[int]) -> Experts:
    """The given experts of every layer, loaded."""
    experts = Experts(
        moe_layers=shape.moe_layers,
        expert_ids=ids,
        hidden=shape.hidden,
        width=shape.width,
        dtype=weights.type,
    )
    for layer in range(shape.moe_layers):
        for e in ids:
            if weights.has(layer, e):
                weights.load(experts, layer, e)
    return experts


@dataclass
class World:
    """Both sides of every rank, opened over one memfd. Between a combine and the next dispatch
    nobody may look at a lane, so its buffers are poisoned there."""

    shape: Shape
    fd: int
    layout: Layout
    domain: Domain
    attention: list[AttentionSide]
    ffn: list[FfnSide]
    delay: Callable[[], None] = field(default=lambda: None)

    def attend(self, rank: int, first_step: int, steps: list[Step]) -> list[list[F32] | None]:
        """What an attention worker does: lanes pipelined over layers."""
        return [
            self._attend_step(rank, first_step + i, step[rank]) if rank in step else None
            for i, step in enumerate(steps)
        ]

    def _attend_step(self, rank: int, step: int, lanes: list[Routed]) -> list[F32]:
        side, layers = self.attention[rank], self.shape.moe_layers
        outputs = [np.full(lane.x.shape, np.nan, np.float32) for lane in lanes]
        for layer in range(layers + 1):
            for index, lane in enumerate(lanes):
                self.delay()
                if layer > 0:
                    side.combine(step, layer - 1, index, outputs[index][layer - 1])
                    poison_lane(self.shape, self.fd, self.layout, rank, index)
                self.delay()
                if layer < layers:
                    side.dispatch(
                        step, layer, index, lane.x[layer], lane.ids[layer], lane.weights[layer]
                    )
        return outputs

    def serve(self, rank: int, first_step: int, steps: list[Step]) -> None:
        """What an FFN worker does."""
        for i, step in enumerate(steps):
            self.delay()
            lanes = len(next(iter(step.values())))
            self.ffn[rank].serve(first_step + i, lanes, np.array(sorted(step), np.int32))

    def run(self, steps: list[Step], first_step: int = 0) -> list[Outputs]:
        """Every rank walks the steps back to back; raises what any rank raised."""
        ranks = len(self.attention) + len(self.ffn)
        with ThreadPoolExecutor(ranks) as threads:
            served = [
                threads.submit(self.serve, f, first_step, steps) for f in range(len(self.ffn))
            ]
            attended = [
                threads.submit(self.attend, a, first_step, steps)
                for a in range(len(self.attention))
            ]
            results = [future.result() for future in attended]
            for future in served:
                future.result()
        return [
            {a: out for a, outs in enumerate(results) if (out := outs[i]) is not None}
            for i in range(len(steps))
        ]


def regions(layout: Layout) -> dict[str, tuple[int, int]]:
    """Layout.describe as name -> (offset, bytes or count)."""
    found = re.findall(r"^(\S+) \+(\d+) (\d+)", layout.describe(), re.MULTILINE)
    return {name: (int(offset), int(size)) for name, offset, size in found}


def lane_offset(shape: Shape, layout: Layout, rank: int, lane: int) -> int:
    """Where a lane's regions start in the memory."""
    first = regions(layout)["segments"][0]
    lane_bytes = layout.segment_bytes // shape.lanes
    return first + rank * layout.segment_bytes + lane * lane_bytes


def poison_lane(shape: Shape, fd: int, layout: Layout, rank: int, lane: int) -> None:
    """Fills a lane's payload with ones: NaN as a row, scale or weight, -1 as an id or count."""
    start = lane_offset(shape, layout, rank, lane)
    for name in ("count", "rows", "scales", "ids", "weights", "out"):
        offset, size = regions(layout)[f"lane.{name}"]
        os.pwrite(fd, b"\xff" * size, start + offset)


@contextmanager
def memory(layout: Layout) -> Iterator[int]:
    """A memfd of the layout's size."""
    fd = os.memfd_create("afd-test")
    try:
        os.ftruncate(fd, layout.total_bytes)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_world(
    shape: Shape,
    weights: Weights,
    threads: int = 1,
    deadline_ms: int = DEADLINE_MS,
    generation: int = 0,
) -> Iterator[World]:
    """A launch with poisoned buffers."""
    layout, owners = shape.layout(), shape.owners()
    with memory(layout) as fd:
        domain = Domain(fd, layout, create=True, generation=generation)
        for rank in range(shape.attention_ranks):
            for lane in range(shape.lanes):
                poison_lane(shape, fd, layout, rank, lane)
        attention = [
            AttentionSide(Domain(fd, layout, generation=generation), a, deadline_ms, owners)
            for a in range(shape.attention_ranks)
        ]
        ffn = [
            FfnSide(
                Domain(fd, layout, generation=generation),
                f,
                owners,
                make_experts(shape, weights, shape.held(f)),
                Pool(threads),
                deadline_ms,
            )
            for f in range(shape.ffn_ranks)
        ]
        yield World(shape, fd, layout, domain, attention, ffn)


def random_delays(seed: int) -> Callable[[], None]:
    """Up to a millisecond, often nothing."""
    rng = np.random.default_rng(seed)

    def delay() -> None:
        if rng.random() < 0.3:
            time.sleep(rng.random() * 1e-3)

    return delay
