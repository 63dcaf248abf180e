"""Pictures of a diagnosis: costs, layers, spectra, positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from afd.qfirst.diagnose import Diagnosis
from afd.qfirst.output import COLORS, figure


def draw(d: Diagnosis, path: Path) -> None:
    """Four charts, written to ``path``."""
    drawn, (costs, layers, ranks, positions) = figure(4)
    _costs(costs, d)
    _layers(layers, d)
    _ranks(ranks, d)
    _positions(positions, d)
    for axis in (costs, layers, ranks, positions):
        axis.spines[["top", "right"]].set_visible(False)
    drawn.savefig(path, dpi=110)


def _costs(axis: Any, d: Diagnosis) -> None:
    ordered = sorted(d.costs, key=lambda c: c.bits_per_byte)
    bars = axis.barh([c.name for c in ordered], [c.bits_per_byte for c in ordered],
                     color=COLORS[0])  # fmt: skip
    axis.bar_label(bars, fmt="%+.3f", padding=3, fontsize=8)
    axis.set_title(f"Cost over the unchanged model's {d.baseline:.3f} bits per byte", fontsize=11)
    axis.set_xlabel("bits per byte")
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.1)


def _layers(axis: Any, d: Diagnosis) -> None:
    queries = d.queries.layers
    x = [q.layer for q in queries]
    for name, y, color in (
        ("displacement / spread", [q.displacement / q.spread for q in queries], COLORS[0]),
        ("displacement / norm", [q.displacement / q.norm for q in queries], COLORS[1]),
        ("common share", [q.common_share for q in queries], COLORS[2]),
    ):
        axis.plot(x, y, marker="o", markersize=3, label=name, color=color)
    axis.set_title("What an early read moves of each layer's query", fontsize=11)
    axis.set_xlabel("layer")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)


def _ranks(axis: Any, d: Diagnosis) -> None:
    for projection, color in zip(("q_proj", "k_proj", "v_proj"), COLORS, strict=False):
        here = [s for s in d.spectra if s.projection == projection]
        axis.plot([s.layer for s in here], [s.stable_rank for s in here], marker="o",
                  markersize=3, label=f"W_{projection[0]}", color=color)  # fmt: skip
    axis.set_title("Stable rank", fontsize=11)
    axis.set_xlabel("layer")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)


def _positions(axis: Any, d: Diagnosis) -> None:
    labels = [f"{p.first} to {p.last - 1}" for p in d.positions]
    bars = axis.bar(labels, [100 * p.share for p in d.positions], color=COLORS[0])
    axis.bar_label(bars, fmt="%.1f", fontsize=8)
    axis.set_title("The early query's cost over the loss, by position", fontsize=11)
    axis.set_ylabel("per cent")
    axis.set_xlabel("position")
