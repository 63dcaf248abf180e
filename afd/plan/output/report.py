"""A static HTML report: tables and charts in one file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from afd.plan.output.plots import Chart, html_parts

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#0f172a;max-width:1080px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h3{font-size:1rem}
h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #e2e8f0}
table{border-collapse:collapse;font-size:13px;width:100%;margin:.6rem 0}
th,td{padding:.25rem .5rem;text-align:left;border-bottom:1px solid #e2e8f0;vertical-align:top}
th.n{text-align:right}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.verdict{background:#eff6ff;border-left:4px solid #2563eb;padding:.7rem 1rem;font-weight:600}
.scroll{overflow-x:auto}
"""


def table_html(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An escaped table; numbers aligned right."""
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    head = "".join(
        f"<th{' class=n' if n else ''}>{html.escape(h)}</th>"
        for h, n in zip(header, right, strict=True)
    )
    body = "".join("<tr>" + "".join(_td(v) for v in row) + "</tr>" for row in rows)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class=scroll><table>{inner}</table></div>"


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) and not isinstance(value, bool)


def _td(value: Any) -> str:
    if value is None:
        return "<td class=n>–</td>"
    if isinstance(value, float):
        return (
            f"<td class=n>{value:.4g}</td>" if abs(value) < 1e4 else f"<td class=n>{value:.0f}</td>"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td class=n>{value}</td>"
    return f"<td>{html.escape(str(value))}</td>"


def page(
    title: str, verdicts: Sequence[str], sections: Sequence[tuple[str, str, Sequence[Chart]]]
) -> str:
    """The whole page; a section is (heading, html, charts)."""
    charts = [chart for _, _, group in sections for chart in group]
    drawn = iter(html_parts(charts))
    parts = []
    for heading, body, group in sections:
        pictures = "".join(next(drawn) for _ in group)
        parts.append(f"<section><h2>{html.escape(heading)}</h2>{body}{pictures}</section>")
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        + "".join(f"<p class=verdict>{html.escape(said)}</p>" for said in verdicts)
        + "".join(parts)
        + "</body></html>"
    )
