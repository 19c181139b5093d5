"""Draws the packages of `compare.py` side by side, as an SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

SECTION = "Beside other packages"
# Packages in the order of the legend, each with a colour for light and dark.
COLOURS = {
    "hvd_keras": ("#0b6bcb", "#5aa9ff"),
    "MPI": ("#6f42c1", "#b694f6"),
    "torch": ("#c4500c", "#ff9a5c"),
    "TensorFlow": ("#8a6d00", "#e0b93a"),
    "Horovod": ("#a3195b", "#ff7ab8"),
}
_WIDTH = 760
_LEFT, _RIGHT, _TOP, _ROW = 210, 24, 84, 34
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; }
.card { fill: #ffffff; stroke: #d0d7de; }
.grid { stroke: #d0d7de; }
"""
DARK_STYLE = """
text { fill: #e6edf3; }
.small { fill: #9da7b1; }
.card { fill: #161b22; stroke: #3d444d; }
.grid { stroke: #3d444d; }
"""

# Case -> package -> the medians of the runs, in ms.
Rows = dict[str, dict[str, list[float]]]


def rows_of(lines: Iterable[dict[str, Any]]) -> Rows:
    """Returns the figures of the newest runs in which packages took turns.

    Args:
        lines: Those of RESULTS.jsonl. A run is all lines with the same day,
            command and note; runs of one package are left out.
    """
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in lines:
        if line.get("section") == SECTION:
            key = tuple(str(line.get(k)) for k in ("day", "command", "note"))
            runs.setdefault(key, []).append(line)
    compared = {
        key: run
        for key, run in runs.items()
        if len({line["way"] for line in run}) > 1
    }
    newest = max((day for day, *_ in compared), default="")
    rows: Rows = {}
    for (day, *_), run in compared.items():
        for line in run if day == newest else ():
            ways = rows.setdefault(line["case"], {})
            ways.setdefault(line["way"], []).extend(line["runs"])
    return rows


def _ticks(values: Sequence[float]) -> list[float]:
    first = math.floor(math.log10(min(values)))
    last = math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, last + 1)]


def _label(milliseconds: float) -> str:
    if milliseconds < 1:
        return f"{milliseconds * 1e3:g} us"
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / 1e3:g} s"


def draw(rows: Rows, title: str, note: str) -> str:
    """Returns an SVG: a row a case, a dot a run, on a logarithmic axis.

    It has a background of its own, so it can be read on any page. It becomes
    dark where the reader prefers that.
    """
    values = [v for ways in rows.values() for vs in ways.values() for v in vs]
    ticks = _ticks(values)
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def x_of(milliseconds: float) -> float:
        share = (math.log10(milliseconds) - low) / (high - low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    bottom = _TOP + _ROW * len(rows)
    height = bottom + 62
    used = [
        name for name in COLOURS if any(name in row for row in rows.values())
    ]
    light, dark = (
        "".join(f".{name} {{ fill: {COLOURS[name][i]}; }}\n" for name in used)
        for i in (0, 1)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}{light}@media (prefers-color-scheme: dark) {{"
        f"{DARK_STYLE}{dark}}}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" '
        f'height="{height - 1}" rx="6"/>',
        f'<text class="title" x="20" y="28">{html.escape(title)}</text>',
    ]
    for i, name in enumerate(used):
        left = 26 + 120 * i
        parts.append(f'<circle class="{name}" cx="{left}" cy="52" r="6"/>')
        parts.append(f'<text x="{left + 12}" y="57">{name}</text>')
    for tick in ticks:
        x = x_of(tick)
        parts.append(
            f'<path class="grid" d="M{x} {_TOP - 8}V{bottom}"/>'
            f'<text class="small" x="{x}" y="{bottom + 18}" '
            f'text-anchor="middle">{_label(tick)}</text>'
        )
    for i, (case, ways) in enumerate(rows.items()):
        y = _TOP + _ROW * i + _ROW // 2 - 4
        parts.append(f'<text x="20" y="{y + 4}">{html.escape(case)}</text>')
        for name in reversed(used):  # the first one is drawn on top
            for value in ways.get(name, []):
                parts.append(
                    f'<circle class="{name}" cx="{x_of(value)}" cy="{y}" '
                    f'r="6"><title>{name}: {value:g} ms</title></circle>'
                )
    parts.append(
        f'<text class="small" x="20" y="{height - 16}">'
        f"{html.escape(note)}</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
