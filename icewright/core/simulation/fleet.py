"""Generated fleets: the commits of their writers, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from random import Random

from icewright.core.policy import MEGABYTE
from icewright.core.simulation.scenarios import SCENARIOS
from icewright.core.simulation.writes import Layout, Source, Write
from icewright.core.table import TableRef

_DAY: Layout = (("day", "day"),)
_HOUR: Layout = (("hour", "hour"),)
_REGION: Layout = (("region", "identity"),)
_NONE: Layout = ()
_REGIONS = (
    "eu",
    "us",
    "asia",
    "africa",
    "oceania",
    "antarctica",
)  # the first has most of the commits, the last hardly any
_ROW_BYTES = 100
_BURST = timedelta(hours=1)
_BURST_FILES = 10  # times as many


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
DEFAULT_TABLES = 1000
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
