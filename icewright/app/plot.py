"""Simulation results as one self-contained SVG: a panel for each measure, a line for each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from icewright.core.simulation.meter import Result, Sample

_COLUMNS, _WIDTH, _HEIGHT = 2, 460, 210  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 34, 36
_HEADER, _MARGIN = 64, 8  # above and below all panels
_TICKS = 5
_LINES = (  # a colour on light, on dark, and dashes, which distinguish the lines without colour
    ("#c2410c", "#fb923c", "6 3"),
    ("#1d4ed8", "#60a5fa", ""),
    ("#047857", "#34d399", "2 2"),
    ("#7e22ce", "#c084fc", "8 2 2 2"),
    ("#a16207", "#facc15", "4 1"),
    ("#be185d", "#f472b6", "1 3"),
)
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937 } .title { font-size: 15px; font-weight: 600 }
.name { font-weight: 600 } .unit { fill: #6b7280 }
.back { fill: #ffffff } .grid { stroke: #e5e7eb } .axis { stroke: #9ca3af }
path { fill: none; stroke-width: 1.6; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .unit { fill: #9ca3af }
.back { fill: #111827 } .grid { stroke: #1f2937 } .axis { stroke: #6b7280 } }
"""


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    value: Callable[[Sample], float | None]
    highest: float | None = None  # of the axis, where it does not follow the values


_PANELS = (
    _Panel("Live files", "data and delete files", lambda s: s.files),
    _Panel("Health", "mean of the tables, 0 to 100", lambda s: s.health, 100),
    _Panel("Query cost", "MB of scan work, mean of the tables", lambda s: s.query_mb),
    _Panel("Spent", "GB-hours since the beginning", lambda s: s.gb_hours),
    _Panel("Deleted", "files since the beginning", lambda s: s.deleted_files),
    _Panel("Stored", "GB, with what old snapshots hold", lambda s: s.stored_bytes / 1024**3),
)


def svg(title: str, results: Mapping[str, Result]) -> str:
    """Draw the results as one SVG picture with a title."""
    width, height = _COLUMNS * _WIDTH, _HEADER + math.ceil(len(_PANELS) / _COLUMNS) * _HEIGHT + _MARGIN
    size = f'viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}{''.join(_colours())}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
    ]
    parts += _legend(list(results))
    for number, panel in enumerate(_PANELS):
        x, y = number % _COLUMNS * _WIDTH, _HEADER + number // _COLUMNS * _HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_panel(panel, results), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _colours() -> Iterator[str]:
    for number, (light, dark, dashes) in enumerate(_LINES):
        yield f".l{number} {{ stroke: {light}; stroke-dasharray: {dashes or 'none'} }}\n"
        yield f"@media (prefers-color-scheme: dark) {{ .l{number} {{ stroke: {dark} }} }}\n"


def _legend(names: Sequence[str]) -> Iterator[str]:
    x = 16
    for number, name in enumerate(names):
        yield f'<path class="l{number % len(_LINES)}" d="M{x},47h26"/>'
        yield f'<text x="{x + 32}" y="51">{escape(name)}</text>'
        x += 52 + 7 * len(name)


def _panel(panel: _Panel, results: Mapping[str, Result]) -> Iterator[str]:
    lines = {
        name: [(s.hours / 24, v) for s in result.series if (v := panel.value(s)) is not None]
        for name, result in results.items()
    }
    points = [point for line in lines.values() for point in line]
    longest = max((x for x, _ in points), default=0) or 1
    ticks = _ticks(panel.highest or max((y for _, y in points), default=0) or 1)
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    yield f'<text x="{_LEFT}" y="20"><tspan class="name">{escape(panel.title)}</tspan>'
    yield f'<tspan class="unit" dx="8">{escape(panel.unit)}</tspan></text>'

    def place(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + wide * x / longest, 1), round(_TOP + high * (1 - y / ticks[-1]), 1)

    for tick in ticks:
        _, y = place(0, tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{y}" y2="{y}"/>'
        yield f'<text class="unit" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(tick)}</text>'
    for tick in (t for t in _ticks(longest) if t <= longest):
        x, y = place(tick, 0)
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{y}" y2="{y + 4}"/>'
        yield f'<text class="unit" x="{x}" y="{y + 17}" text-anchor="middle">{tick:g}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{_TOP + high}" y2="{_TOP + high}"/>'
    yield f'<text class="unit" x="{_LEFT + wide}" y="{_HEIGHT - 3}" text-anchor="end">days</text>'
    for number, (name, line) in enumerate(lines.items()):
        drawn = "L".join("{},{}".format(*place(x, y)) for x, y in line)
        if drawn:
            yield f'<path class="l{number % len(_LINES)}" d="M{drawn}"><title>{escape(name)}</title></path>'


def _ticks(highest: float) -> list[float]:
    """Return round numbers from 0 to at least the highest value."""
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * (1 - 1e-9))
    return [round(step * n, 10) for n in range(math.ceil(highest / step - 1e-9) + 1)]


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 10 or (value >= size and value % size == 0):
            return f"{value / size:g}{letter}"
    return f"{value:g}"
