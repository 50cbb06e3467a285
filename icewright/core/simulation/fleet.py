"""Generated fleets: the commits of their writers, drawn from a seed; named fleets show one way of writing each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from random import Random

from icewright.core.policy import MEGABYTE
from icewright.core.simulation.writes import Layout, Source, Write
from icewright.core.table import TableRef

_DAY: Layout = (("day", "day"),)
_MONTH: Layout = (("month", "identity"),)
_ROW_BYTES = 100
_MINUTE, _ONE_HOUR, _ONE_DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_HOUR: Layout = (("hour", "hour"),)
_REGION: Layout = (("region", "identity"),)
_NONE: Layout = ()
_REGIONS = ("eu", "us", "asia", "africa", "oceania", "antarctica")  # the first has most of the commits
_BURST = timedelta(hours=1)
_BURST_FILES = 10  # times as many
DEFAULT_TABLES = 1000
DEFAULT_DAYS = 7
_LONG_DAYS = 25


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named fleet: how many tables it has by default, and the commits of each by its number, without end."""

    tables: int
    writes: Callable[[int, datetime], Iterator[Write]]
    days: int = DEFAULT_DAYS  # that a simulation lasts by default; a week does not show what merges of a month save

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
    yield from _steady(_ONE_DAY, 20, 30.0, _DAY)(number, begin + 5 * _ONE_HOUR)


def _gdpr(_number: int, begin: datetime) -> Iterator[Write]:
    """Yield 30 days of settled data, then erasures of a few rows in five of its partitions every six hours."""
    days = [begin - timedelta(days=n) for n in range(40, 10, -1)]
    for day in days:
        yield _write(day, 10, 400.0, _DAY)
    at = begin + 9 * _ONE_HOUR
    while True:
        for number in range(5):
            day = days[6 * number]
            yield Write(
                at=at + number * _MINUTE, layout=_DAY, values=(day.date(),), delete_files=1, deleted_rows=20,
                operation="delete",
            )  # fmt: skip
        at += 6 * _ONE_HOUR


def _idle(number: int, begin: datetime) -> Iterator[Write]:
    """Yield the commits of a table that nobody writes to any more; every tenth was left with a load of small files."""
    for n in range(3):
        yield _write(begin - timedelta(days=30 + number % 30 - n), 2, 40.0)
    if number % 10 == 0:
        yield _write(begin, 100, 4.0)


def _streams(number: int, begin: datetime) -> Iterator[Write]:
    """Yield the commits of the three kinds of streams in turn."""
    names = ("monthly-trickle", "daily-stream", "minute-stream")
    yield from SCENARIOS[names[number % len(names)]].writes(number, begin)


SCENARIOS: Mapping[str, Scenario] = {
    "monthly-trickle": Scenario(1, _steady(10 * _MINUTE, 1, 3.0, _MONTH), _LONG_DAYS),
    "hourly-200mb": Scenario(1, _steady(_ONE_HOUR, 1, 200.0, _MONTH), _LONG_DAYS),
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


@dataclass(frozen=True, slots=True)
class TableKind:
    """The write pattern of one kind of table."""

    every: timedelta  # between two commits, give or take a fifth
    files: tuple[int, int]  # of a commit, from and to
    file_mb: float  # the middle one; tables differ
    layouts: Mapping[Layout, float]
    history: timedelta  # how long before the begin the first commit was
    late: float = 0.0  # share of the commits that go to a partition of the days before
    burst: float = 0.0  # share of the commits that begin an hour of many files
    upserts: float = 0.0  # share of the tables whose commits delete rows too
    failures: float = 0.003  # share of the attempts that fail and leave their files
    keeps: timedelta | None = None  # partitions by the hour that are older are deleted whole


KINDS: Mapping[str, TableKind] = {
    "streaming": TableKind(
        timedelta(minutes=15),
        (2, 6),
        1.0,
        {_DAY: 0.5, _HOUR: 0.4, _NONE: 0.1},
        timedelta(days=3),
        late=0.02,
        burst=0.003,
        keeps=timedelta(days=3),
    ),
    "hourly": TableKind(
        timedelta(hours=1),
        (2, 8),
        2.0,
        {_DAY: 0.7, _REGION: 0.15, _NONE: 0.15},
        timedelta(days=3),
        late=0.05,
        burst=0.01,
        upserts=0.2,
    ),
    "daily": TableKind(
        timedelta(days=1), (4, 20), 4.0, {_DAY: 0.6, _NONE: 0.4}, timedelta(days=10), late=0.05, upserts=0.2
    ),
    "dormant": TableKind(timedelta(days=20), (1, 8), 4.0, {_NONE: 0.6, _DAY: 0.4}, timedelta(days=120)),
}
FLEETS: Mapping[str, Mapping[str, float]] = {
    "mixed": {"streaming": 0.01, "hourly": 0.04, "daily": 0.25, "dormant": 0.7},
    **{name: {name: 1.0} for name in KINDS},
}
FLEET_NAMES = (*FLEETS, *SCENARIOS)


def fleet(name: str, tables: int | None, seed: int, begin: datetime, catalog: str = "lake") -> Sequence[Source]:
    """Return so many tables of a fleet, named `catalog.kind.table`; the same seed gives the same tables."""
    if name in SCENARIOS:
        return SCENARIOS[name].sources(name, tables or SCENARIOS[name].tables, begin, catalog)
    tables = tables or DEFAULT_TABLES
    shares = list(accumulate(FLEETS[name].values()))
    made = []
    for number in range(tables):
        place = (number + 0.5) / tables * shares[-1]
        kind = next(kind for kind, upto in zip(FLEETS[name], shares, strict=True) if place <= upto)
        ref = TableRef(catalog, (kind,), f"t{number:05d}")
        made.append(Source(ref, partial(_writes, KINDS[kind], f"{seed}:{number}", begin)))
    return made


def _writes(kind: TableKind, seed: str, begin: datetime) -> Iterator[Write]:
    """Yield the commits of one table, without end."""
    draw = Random(seed)  # noqa: S311 - no secret
    (layout,) = draw.choices(list(kind.layouts), list(kind.layouts.values()))
    file_bytes = kind.file_mb * MEGABYTE * draw.lognormvariate(0, 0.6)
    upserts = draw.random() < kind.upserts
    at = begin - kind.history + kind.every * draw.random()
    burst_until = at
    while True:
        if draw.random() < kind.burst:
            burst_until = at + _BURST
        files = draw.randint(*kind.files) * (_BURST_FILES if at < burst_until else 1)
        size = int(files * file_bytes * draw.uniform(0.6, 1.4))
        rows = size // _ROW_BYTES
        yield Write(
            at=at,
            files=files,
            bytes=size,
            rows=rows,
            layout=layout,
            values=_values(layout, at, draw, kind.late),
            delete_files=1 if upserts else 0,
            deleted_rows=rows // 50 if upserts else 0,
            orphans=files if draw.random() < kind.failures else 0,
        )
        later = at + kind.every * draw.uniform(0.8, 1.2)
        if layout == _HOUR and kind.keeps is not None:
            yield from _dropped(at, later, kind.keeps, begin - kind.history)
        at = later


def _dropped(at: datetime, later: datetime, keeps: timedelta, first: datetime) -> Iterator[Write]:
    """Yield the hours that grow too old between two commits, each deleted by a commit."""
    for hour in range(_hour(at - keeps), _hour(later - keeps)):
        if hour >= _hour(first):
            yield Write(at=later, layout=_HOUR, values=(hour,), operation="delete")


def _hour(at: datetime) -> int:
    return int(at.timestamp() // 3600)


def _values(layout: Layout, at: datetime, draw: Random, late: float) -> tuple[object, ...]:
    """Return the partition that a commit of this time goes to."""
    if layout == _REGION:
        return (draw.choices(_REGIONS, [2.0**-n for n in range(len(_REGIONS))])[0],)
    if draw.random() < late:
        at -= timedelta(days=draw.randint(1, 2))
    if layout == _DAY:
        return (at.date(),)
    return (_hour(at),) if layout == _HOUR else ()
