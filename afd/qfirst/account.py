"""The paper's accounting beside ours, for its two models; ours alone for any other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afd.qfirst import counts as count
from afd.qfirst.config import DecoderConfig, read_config
from afd.qfirst.errors import QFirstError

# What the paper takes these contexts to be is told by its own figures.
LONG, SHORT = 1_000_000, 131_072

KNOWN = {
    "qwen3-0.6b": DecoderConfig(
        vocab=151_936, hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, ffn=3072,
        qk_norm=True, max_positions=40_960, rope_theta=1e6,
    ),
    "qwen3-4b": DecoderConfig(
        vocab=151_936, hidden=2560, layers=36, heads=32, kv_heads=8, head_dim=128, ffn=9728,
        qk_norm=True, max_positions=40_960, rope_theta=1e6,
    ),
}  # fmt: skip

_ROUNDED = "published as a whole per cent; of pool and sweep one after another"
_POOLED = "only with the cache side's own W_q and W_o counted on the other side"
_LAYER = "a share of the whole layer's arithmetic; of the pool's own it is the next row"
_FORWARD = "the paper prints it for Qwen3-0.6B without saying of what"


@dataclass(frozen=True)
class Figure:
    """One number. ``published`` is None where the paper prints none; its digits are its precision.

    ``note`` says what the number counts where the paper leaves that open.
    """

    name: str
    published: str | None
    ours: float
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Relative, ours against published."""
        return None if self.published is None else self.ours / float(self.published) - 1

    @property
    def agrees(self) -> bool | None:
        """Whether ours, rounded as published, is what was published."""
        if self.published is None:
            return None
        digits = len(self.published.partition(".")[2])
        return round(self.ours, digits) == float(self.published)

    def as_row(self) -> dict[str, Any]:
        """For --json; ``note`` is '' where there is nothing to say."""
        published = None if self.published is None else float(self.published)
        return {
            "name": self.name, "published": published, "ours": self.ours,
            "difference": self.difference, "agrees": self.agrees, "note": self.note,
        }  # fmt: skip


def resolve(model: str) -> tuple[str, DecoderConfig]:
    """A known name, a checkpoint folder or a config.json → (name, shape)."""
    if model.lower() in KNOWN:
        return model.lower(), KNOWN[model.lower()]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise QFirstError(
            f"model {model!r} is neither {' nor '.join(KNOWN)} nor a folder with a config.json"
        )
    return path.parent.name, read_config(path)[0]


def figures(name: str, config: DecoderConfig) -> list[Figure]:
    """Every figure of the account; published values for the paper's own models."""
    published = _PUBLISHED.get(name, {})
    unknown = set(published) - {row[0] for row in _rows(config)}
    if unknown:
        raise QFirstError(f"published figures without a formula: {', '.join(sorted(unknown))}")
    return [Figure(row[0], published.get(row[0]), *row[1:]) for row in _rows(config)]


def _rows(c: DecoderConfig) -> list[tuple[str, float, str]]:
    query, all_weights = count.query_elements(c), count.parameters(c)
    pair = 2 * query
    pool_elements = count.ffn_elements(c) + count.key_value_elements(c)
    sent, received = count.sent_bytes(c), count.received_bytes(c)
    wire = sent + received
    converted = (c.layers - 1) * query
    gate_and_up = 2 * c.layers * c.hidden * c.ffn
    per_token = count.token_cache_bytes(c)
    return [
        ("feed-forward, MB a layer", count.ffn_elements(c) * count.BF16_BYTES / 1e6, ""),
        ("sweep, KB a cached position and layer", count.position_bytes(c) / 1e3, ""),
        ("crossover, positions", count.crossover(c), ""),
        ("crossover with W_k and W_v pooled, positions", count.crossover_pooled(c), _POOLED),
        ("share of time holding the pool at 1M, %", 100 * count.pool_share(c, LONG), _ROUNDED),
        ("share of time holding the pool at 128K, %", 100 * count.pool_share(c, SHORT), _ROUNDED),
        ("KV cache, KiB a token", per_token / 1024, ""),
        ("KV cache at 1M, GiB", per_token * LONG / 2**30, ""),
        ("held by the cache side, MB a layer", count.cache_side_bytes(c) / 1e6, ""),
        ("held by the pool, MB a layer", count.pool_bytes(c) / 1e6, ""),
        ("wire sent, KiB a stage", sent / 1024, ""),
        ("wire received, KiB a stage", received / 1024, ""),
        ("wire, KiB a token", c.layers * wire / 1024, ""),
        ("round trips a token", float(c.layers), ""),
        ("wire with the pair pooled, times as much", count.paired_wire_bytes(c) / wire, ""),
        ("W_o, % of a layer's arithmetic", 100 * count.output_share(c), ""),
        ("pair pooled, % of a layer's arithmetic", 100 * pair / count.layer_elements(c), _LAYER),
        ("pair pooled, % of the pool's arithmetic", 100 * pair / pool_elements, _FORWARD),
        ("parameters, millions", all_weights / 1e6, ""),
        ("W_q but layer 0's, millions", converted / 1e6, ""),
        ("W_q but layer 0's, % of the model", 100 * converted / all_weights, ""),
        ("W_q and W_o but layer 0's, % of the model", 200 * converted / all_weights, ""),
        ("gate and up (parallel block), % of the model", 100 * gate_and_up / all_weights, ""),
        ("head-positions at one cache length", float(c.layers * c.heads), ""),
    ]  # fmt: skip


_PUBLISHED = {
    "qwen3-0.6b": {
        "feed-forward, MB a layer": "19",
        "sweep, KB a cached position and layer": "4.1",
        "crossover, positions": "4608",
        "crossover with W_k and W_v pooled, positions": "3584",
        "share of time holding the pool at 1M, %": "1",
        "share of time holding the pool at 128K, %": "4",
        "KV cache, KiB a token": "112",
        "KV cache at 1M, GiB": "107",
        "held by the cache side, MB a layer": "8.4",
        "held by the pool, MB a layer": "23.1",
        "wire sent, KiB a stage": "2",
        "wire received, KiB a stage": "6",
        "wire, KiB a token": "224",
        "round trips a token": "28",
        "wire with the pair pooled, times as much": "2",
        "W_o, % of a layer's arithmetic": "13",
        "pair pooled, % of a layer's arithmetic": "27",
        "parameters, millions": "596.05",
        "W_q but layer 0's, millions": "56.6",
        "W_q but layer 0's, % of the model": "9.5",
        "W_q and W_o but layer 0's, % of the model": "19.0",
        "head-positions at one cache length": "448",
    },
    "qwen3-4b": {
        "feed-forward, MB a layer": "149",
        "sweep, KB a cached position and layer": "4.1",
        "crossover, positions": "36480",
        "crossover with W_k and W_v pooled, positions": "28800",
        "share of time holding the pool at 1M, %": "4",
        "share of time holding the pool at 128K, %": "23",
        "KV cache, KiB a token": "144",
        "KV cache at 1M, GiB": "137",
        "held by the cache side, MB a layer": "41.9",
        "held by the pool, MB a layer": "159.9",
        "wire sent, KiB a stage": "5",
        "wire received, KiB a stage": "9",
        "wire, KiB a token": "504",
        "W_o, % of a layer's arithmetic": "10",
        "W_q but layer 0's, % of the model": "9.1",
        "W_q and W_o but layer 0's, % of the model": "18.2",
        "gate and up (parallel block), % of the model": "44.6",
    },
}
