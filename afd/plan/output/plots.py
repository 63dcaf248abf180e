"""Pictures: PNG and SVG by matplotlib, HTML by plotly; both are extras."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afd.plan.errors import ExtraMissingError, PlanError

COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#475569")


@dataclass(frozen=True)
class Series:
    """One line or one set of bars."""

    name: str
    x: tuple[Any, ...]
    y: tuple[float, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """What to draw, free of any library. ``kind``: line, bar or stack (bars on one another)."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: str = "line"


def colored(chart: Chart) -> list[tuple[Series, str]]:
    """Every series with its colour; a dashed line shares that of the line before it."""
    out: list[tuple[Series, str]] = []
    solid = -1
    for series in chart.series:
        solid += not series.dashed
        out.append((series, COLORS[max(0, solid) % len(COLORS)]))
    return out


def save(charts: Sequence[Chart], path: Path) -> None:
    """Writes the charts, by the file's suffix."""
    if not charts:
        raise PlanError(f"--plot {path}: there is nothing to draw")
    suffix = path.suffix.lower()
    if suffix in (".png", ".svg"):
        _matplotlib(charts, path)
    elif suffix == ".html":
        path.write_text(html_page(charts), encoding="utf-8")
    else:
        raise PlanError(f"--plot {path}: the suffix must be .png, .svg or .html")


def _matplotlib(charts: Sequence[Chart], path: Path) -> None:
    if find_spec("matplotlib") is None:
        raise ExtraMissingError("matplotlib", "a PNG or SVG plot")
    figure_module = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(10, 4.6 * len(charts)), layout="constrained")
    axes = figure.subplots(len(charts), 1, squeeze=False)
    for chart, axis in zip(charts, axes[:, 0], strict=True):
        _draw(axis, chart)
    figure.savefig(path, dpi=110)


def _draw(axis: Any, chart: Chart) -> None:
    axis.set_title(chart.title, fontsize=11)
    axis.set_xlabel(chart.x_label)
    axis.set_ylabel(chart.y_label)
    axis.grid(axis="y", color="#e2e8f0")
    axis.set_axisbelow(True)
    bottoms: dict[Any, float] = {}
    for i, (series, color) in enumerate(colored(chart)):
        if chart.kind == "line":
            axis.plot(series.x, series.y, color=color, label=series.name, linewidth=1.8,
                      marker=None if series.dashed else "o", markersize=4,
                      linestyle="--" if series.dashed else "-")  # fmt: skip
        elif chart.kind == "stack":
            base = [bottoms.get(x, 0.0) for x in series.x]
            axis.bar(series.x, series.y, bottom=base, color=color, label=series.name, width=0.6)
            bottoms.update({x: b + y for x, b, y in zip(series.x, base, series.y, strict=True)})
        else:
            width = 0.8 / len(chart.series)
            places = [k + (i - (len(chart.series) - 1) / 2) * width for k in range(len(series.x))]
            axis.bar(places, series.y, width=width, color=color, label=series.name)
            many = len(series.x) > 8
            axis.set_xticks(range(len(series.x)), series.x, rotation=90 if many else 0, fontsize=7)
    axis.set_ylim(bottom=0, top=axis.get_ylim()[1] * 1.08)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def html_page(charts: Sequence[Chart], include_script: bool = True) -> str:
    """One self-contained page of interactive charts."""
    if find_spec("plotly") is None:
        raise ExtraMissingError("plotly", "an HTML plot")
    return "\n".join(html_parts(charts, include_script))


def html_parts(charts: Sequence[Chart], include_script: bool = True) -> list[str]:
    """A fragment per chart; the first one carries plotly's script."""
    objects = importlib.import_module("plotly.graph_objects")
    parts = []
    for k, chart in enumerate(charts):
        figure = objects.Figure()
        for series, color in colored(chart):
            if chart.kind == "line":
                dash = "dash" if series.dashed else "solid"
                figure.add_scatter(
                    x=series.x, y=series.y, name=series.name,
                    mode="lines" if series.dashed else "lines+markers",
                    line={"color": color, "dash": dash},
                )  # fmt: skip
            else:
                figure.add_bar(x=series.x, y=series.y, name=series.name, marker_color=color)
        figure.update_layout(
            title=chart.title, template="plotly_white", height=420,
            barmode="stack" if chart.kind == "stack" else "group",
            margin={"l": 60, "r": 20, "t": 50, "b": 50},
        )  # fmt: skip
        figure.update_xaxes(title=chart.x_label, type="category" if chart.kind != "line" else None)
        figure.update_yaxes(title=chart.y_label, rangemode="tozero")
        script = include_script and k == 0
        parts.append(figure.to_html(full_html=False, include_plotlyjs=script))
    return parts
