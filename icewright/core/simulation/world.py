"""The virtual clock of a simulation: events in order of time, the tables, and the meter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from icewright.core.effective import Knobs
from icewright.core.health import health_parts, overall
from icewright.core.operations import expire_snapshots
from icewright.core.simulation.meter import Meter, Reading
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.writes import Source, Write
from icewright.core.verdicts import thresholds

_WATCHED = 250  # tables whose health is measured; of more, as many spread evenly
_SAMPLES = 168
_YARDSTICK = Knobs()  # health by the built-in defaults, so that policies compare
_SIZES = thresholds(_YARDSTICK)

Prepare = Callable[[SimulatedTable, datetime], None]  # a table that was written before the begin
Progress = Callable[[float], None]  # the share of the time that has passed


class Maintainer(Protocol):
    """A maintenance system that works on the simulated tables."""

    @property
    def waiting(self) -> int:
        """Return the number of tables with due work that has not begun."""

    def begin(self) -> None:
        """Schedule the system's first event."""

    def written(self, number: int) -> None:
        """Note that a writer committed to the table of this number."""


class World:
    """The simulated tables and the events to come, in order of time."""

    def __init__(self, sources: Sequence[Source], begin: datetime, end: datetime, prepare: Prepare) -> None:
        self.now = self.started = begin
        self.end = end
        self.meter = Meter(begin, len(sources))
        self.tables = [SimulatedTable(source.ref, source.reads_per_day) for source in sources]
        self._events: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = count()
        self._readings = [Reading()] * len(sources)
        self._health: dict[int, tuple[int, datetime, int | None]] = {}  # by table: version, until when, health
        self._heard: Callable[[int], None] = lambda _: None
        for number, source in enumerate(sources):
            self._load(number, source.writes(), prepare)

    def at(self, when: datetime, action: Callable[[], None]) -> None:
        """Schedule an action; actions of one moment run in the order in which they were scheduled."""
        heappush(self._events, (when, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action so many seconds from now; one beyond the end of the simulation never runs."""
        if seconds < (self.end - self.now).total_seconds():
            self.at(self.now + timedelta(seconds=seconds), action)

    def changed(self, number: int) -> None:
        """Update the meter after a table has changed."""
        reading = Reading.of(self.tables[number])
        self.meter.changed(self._readings[number], reading)
        self._readings[number] = reading

    def run(self, maintainer: Maintainer, on_progress: Progress) -> None:
        """Run all events until the end."""
        self._heard = maintainer.written
        length = self.end - self.started
        step = max(length / _SAMPLES, timedelta(minutes=1))

        def sample() -> None:
            self.meter.sample(self._measured())
            on_progress((self.now - self.started) / length)
            self.at(self.now + step, sample)

        self.at(self.started, sample)
        maintainer.begin()
        while self._events and self._events[0][0] < self.end:
            when, _, action = heappop(self._events)
            self._pass_to(when)
            action()
        self._pass_to(self.end)
        self.meter.waiting = maintainer.waiting
        self.meter.sample(self._measured())
        on_progress(1.0)

    def _pass_to(self, when: datetime) -> None:
        if when > self.now:
            self.meter.pass_to(when)
            self.now = when

    def _load(self, number: int, writes: Iterator[Write], prepare: Prepare) -> None:
        """Apply the writes before the begin, and schedule the first one after it."""
        table = self.tables[number]
        for write in writes:
            if write.at >= self.started:
                self._wait(number, write, writes)
                break
            table.write(write)
        if table.snapshots:
            prepare(table, self.started)
        self.changed(number)

    def _wait(self, number: int, write: Write, writes: Iterator[Write]) -> None:
        if write.at < self.end:
            self.at(write.at, partial(self._written, number, write, writes))

    def _written(self, number: int, write: Write, writes: Iterator[Write]) -> None:
        self.tables[number].write(write)
        self.changed(number)
        self._heard(number)
        if (following := next(writes, None)) is not None:
            self._wait(number, following, writes)

    def _measured(self) -> float | None:
        """Return the mean health of a sample of the tables, by the built-in defaults."""
        step = max(1, len(self.tables) // _WATCHED)
        scores = [score for n in range(0, len(self.tables), step) if (score := self._health_of(n)) is not None]
        return sum(scores) / len(scores) if scores else None

    def _health_of(self, number: int) -> int | None:
        table = self.tables[number]
        known = self._health.get(number)
        if known is None or known[0] != table.version or self.now >= known[1]:
            facts = table.facts(_SIZES)
            expiry = expire_snapshots.expiry(facts.metadata, facts.holds, _YARDSTICK, self.now)
            health = overall(health_parts(facts, _YARDSTICK, expiry, None, self.now))
            known = self._health[number] = table.version, expiry.next_expiry or self.end, health
        return known[2]
