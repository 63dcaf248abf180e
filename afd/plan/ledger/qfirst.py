"""Numbers of the Q-First paper: all follow from the shapes of two dense checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from afd.plan.ledger.entries import Entry

REF = "Q-First"
BF16 = 2
MIB_TOKENS = 1_000_000
LONG, SHORT = 1_000_000, 131_072


@dataclass(frozen=True)
class Dense:
    """Shapes of a dense Qwen3 checkpoint."""

    name: str
    layers: int
    hidden: int
    query_width: int
    kv_width: int
    ffn_width: int
    heads: int
    vocabulary: int = 151_936

    @property
    def ffn(self) -> int:
        return 3 * self.hidden * self.ffn_width

    @property
    def wq(self) -> int:
        return self.hidden * self.query_width

    @property
    def pair(self) -> int:
        """Bytes of Wq and Wo."""
        return 2 * self.wq * BF16

    @property
    def wkv(self) -> int:
        return 2 * self.hidden * self.kv_width

    @property
    def layer(self) -> int:
        return self.ffn + 2 * self.wq + self.wkv

    @property
    def parameters(self) -> int:
        norms = self.layers * (2 * self.hidden + 2 * 128) + self.hidden
        return self.vocabulary * self.hidden + self.layers * self.layer + norms

    @property
    def position_bytes(self) -> int:
        """Key and value of one cached position in one layer."""
        return 2 * self.kv_width * BF16


CACHE_SIDE, POOL = 100e9, 1e12
ROUND_TRIP_S = 20e-6


def co_resident_crossover(model: Dense) -> float:
    """Requests at which reading Wq and Wo locally, once for all of them, costs each as much as a
    round trip to the pool and its reading of the pair (Q-First, "When to pool the pair")."""
    return (model.pair / CACHE_SIDE) / (ROUND_TRIP_S + model.pair / POOL)


SMALL = Dense("Qwen3-0.6B", 28, 1024, 2048, 1024, 3072, 16)
LARGE = Dense("Qwen3-4B", 36, 2560, 4096, 1024, 9728, 32)


def entries() -> list[Entry]:
    """Byte counts, crossovers, residence, wire and shares of both models."""
    return _both() + _training() + _rest() + _arithmetic()


def _share(part: float, positions: int, model: Dense) -> float:
    sweep = positions * model.position_bytes
    return part / (part + sweep)


def _both() -> list[Entry]:
    published = {
        SMALL.name: (19, 4608, 3584, 0.01, 0.04, 112, 107, 8.4, 23.1, 2, 6, 224, 0.13),
        LARGE.name: (149, 36480, 28800, 0.04, 0.23, 144, 137, 41.9, 159.9, 5, 9, 504, 0.10),
    }
    out = [
        Entry("sweep bytes per cached position and layer, KB", REF, 4.1,
              SMALL.position_bytes / 1e3),
    ]  # fmt: skip
    for m in (SMALL, LARGE):
        p = published[m.name]
        pool = (m.ffn + m.wkv) * BF16
        cross = m.ffn * BF16 / m.position_bytes
        # The pool reads FFN + Wk + Wv, the cache side reads Wq + Wo besides its sweep.
        pooled = (m.ffn + m.wkv - 2 * m.wq) * BF16 / m.position_bytes
        send, back = m.hidden * BF16 / 1024, (m.hidden + 2 * m.kv_width) * BF16 / 1024
        names_and_ours = (
            ("feed-forward bytes per layer, MB", m.ffn * BF16 / 1e6),
            ("crossover, positions", cross),
            ("crossover with Wk and Wv pooled, positions", pooled),
            ("pool's share of a layer at one million", _share(pool, LONG, m)),
            ("pool's share of a layer at 128K", _share(pool, SHORT, m)),
            ("KV cache, KiB per token", m.layers * m.position_bytes / 1024),
            ("KV cache at one million, GiB", m.layers * m.position_bytes * MIB_TOKENS / 2**30),
            ("held per layer, cache side, MB", 2 * m.wq * BF16 / 1e6),
            ("held per layer, pool, MB", pool / 1e6),
            ("wire per stage, sent, KiB", send),
            ("wire per stage, received, KiB", back),
            ("wire per token, KiB", m.layers * (send + back)),
            ("Wo's share of a layer's arithmetic", m.wq / m.layer),
        )
        notes = {
            "crossover with Wk and Wv pooled, positions": "reached only when the cache side's own "
            "Wq and Wo reads are counted too",
            "pool's share of a layer at one million": "published as a whole per cent, to which "
            "ours rounds too; the share is of pool and sweep together",
            "pool's share of a layer at 128K": "published rounded to a whole per cent",
        }
        for (name, ours), value in zip(names_and_ours, p, strict=True):
            out.append(Entry(f"{m.name}: {name}", REF, value, ours, notes.get(name, "")))
    return out


def _training() -> list[Entry]:
    converted = {m.name: (m.layers - 1) * m.wq for m in (SMALL, LARGE)}
    return [
        Entry("Qwen3-0.6B: parameters, millions", REF, 596.05, SMALL.parameters / 1e6),
        Entry("Qwen3-0.6B: Wq of layers 1-27, millions", REF, 56.6, converted[SMALL.name] / 1e6),
        Entry("Qwen3-0.6B: trainable share, Wq", REF, 0.095,
              converted[SMALL.name] / SMALL.parameters),
        Entry("Qwen3-4B: trainable share, Wq", REF, 0.091,
              converted[LARGE.name] / LARGE.parameters),
        Entry("Qwen3-0.6B: trainable share, Wq + Wo", REF, 0.190,
              2 * converted[SMALL.name] / SMALL.parameters),
        Entry("Qwen3-4B: trainable share, Wq + Wo", REF, 0.182,
              2 * converted[LARGE.name] / LARGE.parameters),
        Entry("Qwen3-4B: trainable share, parallel block (gate and up)", REF, 0.446,
              LARGE.layers * 2 * LARGE.hidden * LARGE.ffn_width / LARGE.parameters),
        Entry("tokens of a run, millions", REF, 372, 11_355 * 32_768 / 1e6),
        *(Entry(f"shadow at {h} half-layers", REF, share, h / 8)
          for h, share in ((1, 0.125), (3, 0.375), (5, 0.625), (7, 0.875))),
        *(Entry(f"displacement removed at {h} half-layers", REF, share, 1 - d / untrained)
          for h, untrained, d, share in ((1, 0.0658, 0.0123, 0.81), (3, 0.1750, 0.0281, 0.84),
                                         (5, 0.3511, 0.0414, 0.88), (7, 0.4821, 0.0556, 0.88))),
    ]  # fmt: skip


def _rest() -> list[Entry]:
    small_s = SMALL.layers * 2 * SMALL.wq * BF16 / 2.3e-3
    large_s = LARGE.layers * 2 * LARGE.wq * BF16 / 15.1e-3
    extra = 2 * SMALL.wq
    beside = "the ratio to the pool's own arithmetic is 36 %; 27 % is the share of a whole layer"
    assumed = (
        "cache side 100 GB/s (as the printed 2.3 and 15.1 ms imply), a pool ten times as fast (as "
        "the paper says) and a round trip of 20 us, which it does not print: 15.6 to 22.6 us all "
        "give both published values"
    )
    return [
        Entry("round trips per token, Qwen3-0.6B", REF, 28, SMALL.layers),
        Entry("head-positions at cache length one", REF, 448, SMALL.layers * SMALL.heads),
        Entry("combine's share at 65,536 positions, one in", REF, 65_536, float(2**16)),
        Entry("pooling the pair, share of a layer's arithmetic", REF, 0.27, extra / SMALL.layer,
              beside),
        Entry("pooling the pair, more arithmetic on the pool", REF, 0.27,
              extra / (SMALL.ffn + SMALL.wkv), beside),
        Entry("batch-one projections over a batch of eight, Qwen3-0.6B, ms", REF, 0.29, 2.3 / 8),
        Entry("batch-one projections over a batch of eight, Qwen3-4B, ms", REF, 1.89, 15.1 / 8),
        Entry("Qwen3-4B over 0.6B implied bandwidth of those (same device: 1)", REF, 1.0,
              large_s / small_s),
        *(Entry(f"batch-one projections, {m.name}, ms", REF, ms,
                m.layers * m.pair / CACHE_SIDE * 1e3,
                "100 GB/s taken from the 4B figure; the paper prints no bandwidth")
          for m, ms in ((SMALL, 2.3), (LARGE, 15.1))),
        *(Entry(f"co-resident requests above which to keep the pair local, {m.name}", REF,
                published, float(round(co_resident_crossover(m))), assumed)
          for m, published in ((SMALL, 3), (LARGE, 7))),
    ]  # fmt: skip


def _arithmetic() -> list[Entry]:
    """Numbers that follow from other printed numbers."""
    return [
        Entry("resolution of 3 seeds, from their deviation of 0.0047", REF, 0.0117,
              0.0047 * 4.303 / math.sqrt(3)),
        Entry("sub-layer exchange over a read point's movement", REF, 56, 0.0623 / 0.0011),
        Entry("network-input query over a read point's movement", REF, 91, 0.1003 / 0.0011),
        Entry("family gap over the shifted arm", REF, 7, 0.0623 / 0.0090),
        Entry("share of compute-optimal (20 tokens a parameter)", REF, 0.03,
              11_355 * 32_768 / (20 * SMALL.parameters)),
        Entry("runs of 8 arms at 3 seeds", REF, 24, 8 * 3),
        Entry("GPU-hours of those runs, each 2.0 to 2.7", REF, 51, 24 * 2.125,
              "2.125 hours is inside the printed range"),
        Entry("BF16 spacing at 1.0", REF, 0.0078, 2.0**-7),
        Entry("largest exponent before single precision overflows", REF, 89,
              math.log(3.4028235e38)),
        Entry("log of a shard's Z of 8.2e36", REF, 85, math.log(8.2e36)),
        Entry("query replaced by its mean, Qwen3-0.6B, bits per byte", REF, 0.8080,
              1.8698 - 0.9022,
              "does not add up: the row's own columns differ by 0.9676; +0.8080 would need a "
              "baseline of 1.0618"),
        Entry("conversion cost over three checkpoints falls by a factor", REF, 4, 0.0746 / 0.0181),
        Entry("displacement over spread falls by", REF, 0.2, 1 - 0.519 / 0.642),
        Entry("weights a pool puts down at one million, Qwen3-0.6B", REF, 0.99,
              1 - _share((SMALL.ffn + SMALL.wkv) * BF16, LONG, SMALL)),
    ]  # fmt: skip
