"""Named fleets that show one way of writing each: the tables that users of maintenance services complain of most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from icewright.core.policy import MEGABYTE
from icewright.core.simulation.writes import Layout, Source, Write
from icewright.core.table import TableRef

_DAY: Layout = (("day", "day"),)
_MONTH: Layout = (("month", "identity"),)
_ROW_BYTES = 100
_MINUTE, _HOUR, _ONE_DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named fleet: how many tables it has by default, and the commits of each by its number, without end."""

    tables: int
    writes: Callable[[int, datetime], Iterator[Write]]

    def sources(self, name: str, tables: int, begin: datetime, catalog: str) -> Sequence[Source]:
        """Return the tables `catalog.NAME.tNNNNN` with their commits."""
        return [
            Source(TableRef(catalog, (name,), f"t{number:05d}"), partial(self.writes, number, begin))
            for number in range(tables)
        ]


def _write(at: datetime, files: int, file_mb: float, layout: Layout = (), deletes: int = 0) -> Write:
    """Return a commit into the partition of its time; with `deletes` delete files it is an upsert."""
    size = int(files * file_mb * MEGABYTE)
    values: tuple[object, ...] = ()
    if layout:
        values = (at.date(),) if layout == _DAY else (f"{at:%Y-%m}",)
    return Write(
        at=at,
        files=files,
        bytes=size,
        rows=size // _ROW_BYTES,
        layout=layout,
        values=values,
        delete_files=deletes,
        deleted_rows=size // _ROW_BYTES // 50 if deletes else 0,
    )


def _steady(
    every: timedelta, files: int, file_mb: float, layout: Layout = (), deletes: int = 0
) -> Callable[[int, datetime], Iterator[Write]]:
    """Return a writer that commits at a fixed rate; each table begins a little later than the one before."""

    def writes(number: int, begin: datetime) -> Iterator[Write]:
        at = begin + every * (number % 10) / 10
        while True:
            yield _write(at, files, file_mb, layout, deletes)
            at += every

    return writes


def _cold_beside_hot(number: int, begin: datetime) -> Iterator[Write]:
    """Yield one commit of 800 small files for the first table, and many small commits for all others."""
    if number == 0:
        yield _write(begin, 800, 12.0)
        return
    yield from _steady(10 * _MINUTE, 10, 0.2)(number, begin)


def _daily_batch(number: int, begin: datetime) -> Iterator[Write]:
    """Yield a batch each day at 05:00, after the nightly maintenance that most people schedule."""
    yield from _steady(_ONE_DAY, 20, 30.0, _DAY)(number, begin + 5 * _HOUR)


def _gdpr(_number: int, begin: datetime) -> Iterator[Write]:
    """Yield 30 days of settled data, then erasures of a few rows in five of its partitions every six hours."""
    days = [begin - timedelta(days=n) for n in range(40, 10, -1)]
    for day in days:
        yield _write(day, 10, 400.0, _DAY)
    at = begin + 9 * _HOUR
    while True:
        for number in range(5):
            day = days[6 * number]
            yield Write(
                at=at + number * _MINUTE, layout=_DAY, values=(day.date(),), delete_files=1, deleted_rows=20,
                operation="delete",
            )  # fmt: skip
        at += 6 * _HOUR


def _idle(number: int, begin: datetime) -> Iterator[Write]:
    """Yield the commits of a table that nobody has written to for a month."""
    for n in range(3):
        yield _write(begin - timedelta(days=30 + number % 30 - n), 2, 40.0)


def _streams(number: int, begin: datetime) -> Iterator[Write]:
    """Yield the commits of the three kinds of streams in turn."""
    names = ("monthly-trickle", "daily-stream", "minute-stream")
    yield from SCENARIOS[names[number % len(names)]].writes(number, begin)


SCENARIOS: Mapping[str, Scenario] = {
    "monthly-trickle": Scenario(1, _steady(10 * _MINUTE, 1, 3.0, _MONTH)),
    "hourly-200mb": Scenario(1, _steady(_HOUR, 1, 200.0, _MONTH)),
    "daily-stream": Scenario(1, _steady(timedelta(seconds=10), 1, 1.0, _DAY)),
    "minute-stream": Scenario(1, _steady(_MINUTE, 1, 4.0, _DAY)),
    "cdc": Scenario(2, _steady(5 * _MINUTE, 2, 8.0, deletes=1)),
    "unpartitioned": Scenario(2, _steady(15 * _MINUTE, 2, 2.0)),
    "cold-beside-hot": Scenario(7, _cold_beside_hot),
    "daily-batch": Scenario(5, _daily_batch),
    "gdpr": Scenario(2, _gdpr),
    "idle-5000": Scenario(5000, _idle),
    "streams": Scenario(3, _streams),
}
