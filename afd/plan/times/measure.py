"""Times one layer of a model on this CPU with the engine's own kernels: the measurements file.

Weights and caches are random: times do not depend on their values. Every kernel runs on one rank's
threads while the other cores idle, over as many layers as keep the data out of the caches.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afd import _megamoe as ops
from afd.plan.errors import DoesNotFitError, PlanError
from afd.plan.model_spec import ModelSpec

# (term, batch, context or 0, expert ranks or 0, µs)
Sample = tuple[str, float, float, int, float]
OUT_OF_CACHE_BYTES = 96e6
PAGE = 16
BF16, FP32 = ops.WeightType.BF16, ops.WeightType.FP32
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sizes:
    """What to time: requests, context lengths, numbers of expert ranks; threads of one rank."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    expert_parallel: tuple[int, ...]
    threads: int
    memory_bytes: float
    least_seconds: float = 0.05


def measure(model: ModelSpec, sizes: Sizes) -> Iterator[Sample]:
    """Every size's time, as it is done; raises where one does not fit or has no CPU kernel."""
    if model.latent_kv_elements:
        raise PlanError(
            f"{model.name}: its compressed attention has no CPU kernel to time; "
            "give --measurements of another engine"
        )
    timed = _Layer(model, sizes)
    for context in sizes.contexts:
        for batch in sizes.batches:
            yield "attention", batch, context, 0, timed.attention(batch, context)
    yield from (("dense", batch, 0, 0, us) for batch, us in timed.dense())
    yield from (("head", batch, 0, 0, us) for batch, us in timed.head())
    for ranks in sizes.expert_parallel:
        yield from (("experts", batch, 0, ranks, us) for batch, us in timed.experts(ranks))


class _Layer:
    def __init__(self, model: ModelSpec, sizes: Sizes) -> None:
        self._model, self._sizes = model, sizes
        self._pool = ops.Pool(sizes.threads)
        self._random = np.random.default_rng(0)

    def _rows(self, count: int, width: int) -> Floats:
        return self._random.standard_normal((count, width), dtype=np.float32)

    def _copies(self, what: str, bytes_each: float) -> int:
        """Layers to hold at once, so that no time is that of a cached layer."""
        if bytes_each > self._sizes.memory_bytes:
            raise DoesNotFitError(f"timing {what}", bytes_each, self._sizes.memory_bytes)
        wanted = min(self._model.layers, math.ceil(OUT_OF_CACHE_BYTES / bytes_each))
        return max(1, min(wanted, int(self._sizes.memory_bytes // bytes_each)))

    def _us(self, copies: int, run: Callable[[int], object]) -> float:
        """Median µs of ``run(copy)``, the copies in turn."""
        run(0)
        times: list[float] = []
        begun = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begun < self._sizes.least_seconds:
            start = time.perf_counter()
            run(len(times) % copies)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6

    def _matrix(self, rows: int, columns: int, exact: bool = False) -> ops.Matrix:
        matrix = ops.Matrix(rows, columns, FP32 if exact else BF16)
        block = self._rows(min(rows, 1024), columns)
        for first in range(0, rows, len(block)):
            matrix.load(first, block[: rows - first])
        return matrix

    def attention(self, batch: int, context: int) -> float:
        """Decode attention of ``batch`` requests, each over ``context`` cached positions."""
        model = self._model
        pages = -(-context // PAGE)
        width = model.kv_heads * model.head_dim
        needed = 2.0 * 2 * batch * pages * PAGE * width
        copies = self._copies(f"attention of {batch} x {context} tokens", needed)
        cache = ops.KvCache(copies, batch * pages, PAGE, model.kv_heads, model.head_dim, BF16)
        filled = self._rows(pages * PAGE, width)
        for copy in range(copies):
            for slot in range(batch):
                first = slot * pages * PAGE
                places = np.arange(first, first + pages * PAGE, dtype=np.int64)
                cache.store(copy, filled, filled, places)
        table = np.arange(batch * pages, dtype=np.int32).reshape(batch, pages)
        queries = self._rows(batch, model.query_heads * model.head_dim)
        out = np.empty_like(queries)
        lse = np.empty((batch, model.query_heads), np.float32)
        slots = np.arange(batch, dtype=np.int32)
        lengths = np.full(batch, context, np.int32)
        scale = model.head_dim**-0.5
        return self._us(
            copies,
            lambda copy: ops.paged_attention(
                self._pool, cache, copy, queries, slots, lengths, table, scale, out, lse
            ),
        )

    def dense(self) -> Iterator[tuple[int, float]]:
        """Norms, QKV, rotation, KV write, output projection and router, by batch."""
        model = self._model
        hidden, q_width = model.hidden, model.query_heads * model.head_dim
        kv_width = model.kv_heads * model.head_dim
        copies = self._copies("the projections", 2.0 * model.attention_weight_elements)
        layers = [
            (self._matrix(q_width + 2 * kv_width, hidden), self._matrix(hidden, q_width),
             self._matrix(model.experts, hidden, exact=True))
            for _ in range(copies)
        ]  # fmt: skip
        norm = np.ones(hidden, np.float32)
        angles = self._rows(2, model.head_dim // 2)
        most = max(self._sizes.batches)
        cache = ops.KvCache(1, -(-most // PAGE), PAGE, model.kv_heads, model.head_dim, BF16)
        for batch in self._sizes.batches:
            yield batch, self._us(copies, self._dense_run(batch, layers, norm, angles, cache))

    def _dense_run(
        self,
        batch: int,
        layers: list[tuple[ops.Matrix, ops.Matrix, ops.Matrix]],
        norm: Floats,
        angles: Floats,
        cache: ops.KvCache,
    ) -> Callable[[int], None]:
        model = self._model
        q_width, kv_width = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
        residual, delta = self._rows(batch, model.hidden), self._rows(batch, model.hidden)
        normed, qkv = np.empty_like(delta), self._rows(batch, q_width + 2 * kv_width)
        attended, logits = self._rows(batch, q_width), self._rows(batch, model.experts)
        ids = np.zeros((batch, model.experts_per_token), np.int32)
        weights = np.zeros((batch, model.experts_per_token), np.float32)
        positions, places = np.zeros(batch, np.int32), np.arange(batch, dtype=np.int64)
        q, k, v = np.split(qkv, [q_width, q_width + kv_width], axis=1)

        def run(copy: int) -> None:
            into, output, router = layers[copy]
            ops.add_rms_norm(residual, delta, norm, 1e-6, normed)
            ops.linear(self._pool, normed, into, qkv)
            ops.rope(q, positions, angles, angles, model.head_dim)
            ops.rope(k, positions, angles, angles, model.head_dim)
            cache.store(0, k, v, places)
            ops.linear(self._pool, attended, output, delta)
            ops.add_rms_norm(residual, delta, norm, 1e-6, normed)
            ops.linear(self._pool, normed, router, logits)
            ops.route_softmax(logits, True, ids, weights)

        return run

    def head(self) -> Iterator[tuple[int, float]]:
        """Vocabulary projection and greedy sampling, once a step, by batch."""
        model = self._model
        self._copies("the output projection", 2.0 * model.vocabulary * model.hidden)
        matrix = self._matrix(model.vocabulary, model.hidden)
        for batch in self._sizes.batches:
            yield batch, self._us(1, self._head_run(batch, matrix))

    def _head_run(self, batch: int, matrix: ops.Matrix) -> Callable[[int], None]:
        rows = self._rows(batch, self._model.hidden)
        logits = self._rows(batch, self._model.vocabulary)
        greedy, off = np.zeros(batch, np.float32), np.zeros(batch, np.int32)
        share, seeds = np.ones(batch, np.float32), np.zeros(batch, np.uint64)
        places, tokens = np.zeros(batch, np.int64), np.zeros(batch, np.int32)

        def run(_: int) -> None:
            ops.linear(self._pool, rows, matrix, logits)
            ops.sample(logits, greedy, off, share, seeds, places, tokens)

        return run

    def experts(self, ranks: int) -> Iterator[tuple[int, float]]:
        """One rank's experts for ``batch`` tokens of each of ``ranks`` ranks, routed evenly."""
        model = self._model
        if model.experts % ranks:
            raise PlanError(f"{model.experts} experts do not divide over {ranks} ranks")
        held = model.experts // ranks
        copies = self._copies(
            f"the experts of one rank of {ranks}",
            2.0 * held * 3 * model.hidden * model.expert_width,
        )
        experts = ops.Experts(moe_layers=copies, expert_ids=list(range(held)), hidden=model.hidden,
                              width=model.expert_width, dtype=BF16)  # fmt: skip
        up = self._rows(model.expert_width, model.hidden)
        down = self._rows(model.hidden, model.expert_width)
        for copy in range(copies):
            for expert in range(held):
                experts.load(copy, expert, up, up, down)
        for batch in self._sizes.batches:
            yield batch, self._us(copies, self._experts_run(batch * ranks, held, experts))

    def _experts_run(self, tokens: int, held: int, experts: ops.Experts) -> Callable[[int], None]:
        model = self._model
        order = self._random.random((tokens, model.experts)).argsort(axis=1)
        chosen = order[:, : model.experts_per_token].astype(np.int32)
        chosen[chosen >= held] = -1
        ids = np.ascontiguousarray(chosen[(chosen >= 0).any(axis=1)])
        rows = self._rows(len(ids), model.hidden)
        weights = np.full(ids.shape, 1 / model.experts_per_token, np.float32)
        out = np.empty_like(rows)

        def run(copy: int) -> None:
            experts.forward(self._pool, copy, rows, ids, weights, out)

        return run
