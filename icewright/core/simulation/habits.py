"""A simulated day by the default policy, of one writer alone or of readers alone: what habits and shapes cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial

from icewright.core.layering import Policy
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.trace import ROW_BYTES, values_at
from icewright.core.simulation.writes import Layout, Source, Write
from icewright.core.table import TableRef

_TABLE = TableRef("lake", ("ns",), "habit")
_BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
_DAY = timedelta(days=1)
_QUIET = timedelta(days=30)  # since the last write to a table that only readers mind
_ANY: Layout = (("key", "identity"),)
_DRAWN = 1000  # partitions that are simulated
_STEP = 60.0  # seconds; commits within it come together, as the simulated service looks once an hour


@dataclass(frozen=True, slots=True)
class Habit:
    """How a writer commits: how often, and the files and bytes of a commit."""

    every: float  # seconds
    files: float
    bytes: float


@dataclass(frozen=True, slots=True)
class DayCost:
    """The average files and the cost of a day of a habit or of a layout."""

    average_files: float
    gb_hours: float  # of maintenance and of readers


def habit_cost(habit: Habit, layout: Layout) -> DayCost:
    """Return what a day costs. Habits that two digits do not tell apart count as one."""
    return _day(*(float(f"{number:.1e}") for number in (habit.every, habit.files, habit.bytes)), layout)


@lru_cache(maxsize=256)  # a table that is looked at each minute has the same habits each time
def _day(every: float, files: float, size: float, layout: Layout) -> DayCost:
    source = Source(_TABLE, partial(_writes, Habit(max(1.0, every), max(1.0, files), max(1.0, size)), layout))
    return _simulated(source)


@lru_cache(maxsize=256)
def shape_cost(partitions: int, files: int, size: int) -> DayCost:
    """Return what a day costs of a table that nobody writes to, by partitions, files and bytes of equal shares."""
    drawn = min(partitions, _DRAWN)  # each costs the same
    writes = [
        Write(_BEGIN - _QUIET, max(1, files // partitions), size // partitions, layout=_ANY, values=(number,))
        for number in range(drawn)
    ]
    result = _simulated(Source(_TABLE, partial(iter, writes)))
    return DayCost(result.average_files * partitions / drawn, result.gb_hours * partitions / drawn)


def _simulated(source: Source) -> DayCost:
    result = simulate([source], Policy(), Span(_BEGIN, _BEGIN + _DAY), Slots())
    return DayCost(result.average_files, result.total_gb_hours)


def _writes(habit: Habit, layout: Layout) -> Iterator[Write]:
    """Yield the commits of the day; those of one step come together."""
    step, at, files = max(habit.every, _STEP), _BEGIN, 0.0
    share = step / habit.every
    while at < _BEGIN + _DAY:
        files += habit.files * share
        size = int(habit.bytes * share)
        yield Write(at, int(files), size, size // ROW_BYTES, layout, values_at(layout, at))
        files -= int(files)
        at += timedelta(seconds=step)
