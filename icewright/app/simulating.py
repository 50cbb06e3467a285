"""Simulates policies over the same fleet, long ones in parallel processes, and draws the results as one SVG."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icewright.app import output
from icewright.app.config import Config
from icewright.app.entries import default_limits
from icewright.app.strict_yaml import read_lines
from icewright.core.errors import UsageError
from icewright.core.layering import Policy, PolicyRule
from icewright.core.policy import PRESET
from icewright.core.presets import PRESETS
from icewright.core.rewriting import PRIOR_READS
from icewright.core.simulation.fleet import DEFAULT_DAYS, SCENARIOS, fleet
from icewright.core.simulation.meter import Result, Sample
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.trace import read_trace
from icewright.core.simulation.writes import Source, Write
from icewright.core.table import TableRef
from icewright.core.words import decimal

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray

    from icewright.flow.runtime import Runtime

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
CRON, DEFAULT, CONFIG = "cron", "default", "config"
ORACLE = "oracle"  # not a policy: the least that any schedule costs
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)  # of made-up fleets, a Monday
_LONG = 20_000  # tables times days; larger simulations run each policy in its own process
_POLL_SECONDS = 0.2
Progress = Callable[[str, float], None]  # takes a policy's name and the share of its time that is simulated
_shares: SynchronizedArray[float] | None = None  # of the process that simulates for another


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


@dataclass(frozen=True)
class GeneratedFleet:
    """A fleet of generated tables, by kind, size and seed."""

    name: str
    tables: int | None  # None: as many as the fleet has by default
    seed: int
    catalog: str = "lake"

    def __str__(self) -> str:
        return f"fleet {self.name}"

    @property
    def days(self) -> int:
        """Return how many days a simulation of the fleet lasts by default."""
        return SCENARIOS[self.name].days if self.name in SCENARIOS else DEFAULT_DAYS

    def sources(self) -> Sequence[Source]:
        """Return the tables of the fleet."""
        return fleet(self.name, self.tables, self.seed, BEGIN, self.catalog)


@dataclass(frozen=True)
class Recorded:
    """A recorded trace of commits in a file."""

    path: Path

    def __str__(self) -> str:
        return self.path.name

    def sources(self) -> Sequence[Source]:
        """Return the tables of the trace in the file."""
        return read_trace(str(self.path), read_lines(self.path)).sources


def reported_reads(runtime: Runtime, tables: Iterable[TableRef]) -> dict[TableRef, float]:
    """Return the whole reads a day of the tables of which engines report any, as the value of merges counts them."""
    inbox, now = runtime.store.inbox, runtime.clock.now()
    reported = {ref: inbox.reported_reads(ref) for ref in tables}
    return {ref: reads.expected(PRIOR_READS, now) for ref, reads in reported.items() if reads is not None}


@dataclass(frozen=True)
class ReplayedFleet:
    """Commits of existing tables, read into memory."""

    writes: Mapping[TableRef, Sequence[Write]]
    reads_per_day: Mapping[TableRef, float]  # of the tables of which engines report reads

    def __str__(self) -> str:
        return ", ".join(map(str, self.writes))

    def sources(self) -> Sequence[Source]:
        """Return the tables whose commits are given."""
        return [Source(ref, partial(iter, found), self.reads_per_day.get(ref)) for ref, found in self.writes.items()]


Origin = GeneratedFleet | Recorded | ReplayedFleet


def gb_hours(amount: float) -> str:
    """Return GB-hours as text: below one with two significant digits."""
    return f"{amount:.1f}" if amount >= 1 else decimal(amount)


_MEASURES: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("GB-hours", lambda r: gb_hours(r.gb_hours)),
    ("GB-hours with readers", lambda r: gb_hours(r.total_gb_hours)),
    ("average files", lambda r: f"{r.average_files:,.0f}"),
    ("files at the end", lambda r: f"{r.final_files:,}"),
    ("average health", lambda r: "-" if r.average_health is None else f"{r.average_health:.1f}"),
    ("query cost (MB)", lambda r: f"{r.query_mb:,.0f}"),
    ("stored (average)", lambda r: output.size(r.average_stored_bytes)),
    ("files deleted", lambda r: f"{r.deleted_files:,}"),
    ("bytes deleted", lambda r: output.size(r.deleted_bytes)),
    ("runs", lambda r: f"{sum(r.runs.values()):,}"),
    ("evaluations", lambda r: f"{r.evaluations:,}"),
    ("tables that wait at the end", lambda r: f"{r.waiting:,}"),
)


def measured(results: Mapping[str, Result], price: float | None) -> list[tuple[str, ...]]:
    """Return the measures by name, each of all results; money too where a GB-hour has a price."""
    lines = [(name, *(measure(result) for result in results.values())) for name, measure in _MEASURES]
    if price is not None:
        lines[2:2] = [
            ("money", *(decimal(r.gb_hours * price) for r in results.values())),
            ("money with readers", *(decimal(r.total_gb_hours * price) for r in results.values())),
        ]
    return lines


def named_policies(names: Sequence[str], config: Config | None, sets: Mapping[str, Any]) -> dict[str, Policy | None]:
    """Return policies by name, None for cron. Knobs of the command apply to all others. Raises `UsageError`."""
    policies: dict[str, Policy | None] = {}
    for name in names:
        match name:
            case "cron":
                policies[name] = None
                continue
            case "default":
                policy = Policy()
            case "config" if config is not None:
                policy = config.policy
            case _ if name in PRESETS:
                policy = Policy((PolicyRule((), {PRESET.name: name}),))
            case _:
                choices = ", ".join((CRON, DEFAULT, CONFIG, *PRESETS, ORACLE))
                raise UsageError(f"--compare {name}: there is no such policy; there is: {choices}")
        policies[name] = replace(policy, command=sets)
    return policies


def slots(config: Config | None) -> Slots:
    """Return the limits on concurrent jobs, configured or default."""
    if config is None:
        return Slots(default_limits())
    return Slots(config.limits, {name: catalog.pool for name, catalog in config.catalogs.items()})


def simulate_all(
    origin: Origin,
    sources: Sequence[Source],
    policies: Mapping[str, Policy | None],
    span: Span,
    slots: Slots,
    progress: Progress,
) -> dict[str, Result]:
    """Return each policy's result, by its name."""
    days = (span.end - span.begin).total_seconds() / 86_400
    if len(policies) > 1 and len(sources) * days >= _LONG and (os.cpu_count() or 1) > 1:
        return _side_by_side(origin, policies, span, slots, progress)
    with _without_garbage_collection():
        return {
            name: simulate(sources, p, span, slots, on_progress=partial(progress, name)) for name, p in policies.items()
        }


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: it takes a tenth of the time, and a simulation makes no reference cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _side_by_side(
    origin: Origin, policies: Mapping[str, Policy | None], span: Span, slots: Slots, progress: Progress
) -> dict[str, Result]:
    import multiprocessing  # noqa: PLC0415 - other commands start sooner without it

    context = multiprocessing.get_context("spawn")  # progress has a thread, and a fork would copy its locks
    shares = context.Array("d", len(policies))
    with context.Pool(min(len(policies), os.cpu_count() or 1), _share, (shares,)) as pool:
        waiting = {
            name: pool.apply_async(_simulate_one, (number, origin, policy, span, slots))
            for number, (name, policy) in enumerate(policies.items())
        }
        results: dict[str, Result] = {}
        for number, (name, result) in enumerate(waiting.items()):
            while not result.ready():
                result.wait(_POLL_SECONDS)
                for index, policy_name in enumerate(waiting):
                    progress(policy_name, shares[index])
            results[name] = result.get()
            progress(name, shares[number])
    return results


def _share(shares: SynchronizedArray[float]) -> None:
    global _shares  # noqa: PLW0603 - how a pool hands its processes what cannot be sent later
    _shares = shares


def _simulate_one(number: int, origin: Origin, policy: Policy | None, span: Span, slots: Slots) -> Result:
    def progress(share: float) -> None:
        if _shares is not None:
            _shares[number] = share

    with _without_garbage_collection():
        return simulate(origin.sources(), policy, span, slots, on_progress=progress)
