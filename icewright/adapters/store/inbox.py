"""Events that others push: ids that came, scans by day, tables that are looked at soon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, assert_never

import sqlalchemy as sa

from icewright.adapters.store.database import Database, inserting
from icewright.adapters.store.schema import CATALOGS, RECEIVED, SCANS, TABLES, Moment
from icewright.adapters.store.statements import (
    chunks,
    ref_of,
)
from icewright.adapters.store.table_names import by_location, by_name
from icewright.core.events.model import CommitReported, Event, Message, MetadataChanged, ScanReported, TableTouched
from icewright.core.heat import REMEMBERED, queries_per_day
from icewright.core.paths import key
from icewright.ports import Receipt

KEPT = timedelta(days=1)  # how long an id is known

_ASKED = timedelta(seconds=10)  # events ask a catalog no more often than this

_COLD = 0.01  # queries per day that are none

_MOST = {"queries": 2**31 - 1, "files": 2**62, "bytes": 2**62}  # what the columns hold


@dataclass
class SqlInbox:
    """The EventInbox port on a database."""

    db: Database

    def receive(self, messages: Sequence[Message], now: datetime, *, ask: bool = True) -> Receipt:
        """Do what the new ones of the messages say."""
        with self.db.begin() as connection:
            connection.execute(sa.delete(RECEIVED).where(RECEIVED.c.at <= now - KEPT))
            fresh = _fresh(connection, messages, now)
            found = _Found(connection, [event for message in fresh for event in message.events])
            rows = found.touched | {row.id: row for row, _ in found.scans}
            _lock(connection, sorted(rows))
            _touch(connection, found.touched, now)
            _count(connection, found.scans, now)
            _ask(connection, found.asked | (found.moved if ask else set()), now)
        refs = tuple(sorted(ref_of(row) for row in rows.values()))
        return Receipt(len(fresh), len(messages) - len(fresh), refs, tuple(dict.fromkeys(found.unknown)))

    def decay_query_rates(self, now: datetime) -> None:
        """Average anew over all tables that were read of late."""
        with self.db.begin() as connection:
            warm = sa.select(TABLES.c.id).where(TABLES.c.queries_per_day > 0).order_by(TABLES.c.id)
            _average(connection, connection.execute(warm).scalars().all(), now)


class _Found:
    """What events mean in this store."""

    def __init__(self, connection: sa.Connection, events: Sequence[Event]) -> None:
        self.touched: dict[int, Any] = {}
        self.scans: list[tuple[Any, ScanReported]] = []
        self.moved: set[str] = set()  # catalogs of tables that are known
        self.asked: set[str] = set()  # catalogs of tables that are not
        self.unknown: list[str] = []
        names = [name for event in events for name in _names(event)]
        self._named = by_name(connection, names)
        self._located = by_location(connection, [e.location for e in events if isinstance(e, MetadataChanged)])
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case TableTouched() | CommitReported():
                for name in _names(event):
                    self._touch(self._named[name], ".".join(name), (name[0],))
            case MetadataChanged(location, catalogs):
                rows = self._located[location]
                stale = [row for row in rows if key(row.evaluated_location or "") != key(location)]
                if stale or not rows:
                    self._touch(stale, location, catalogs)
            case ScanReported(table=table):
                rows = self._named[table]
                self.scans += [(row, event) for row in rows]
                self.unknown += [] if rows else [".".join(table)]
                self.asked |= set() if rows else {table[0]}
            case _:
                assert_never(event)

    def _touch(self, rows: Sequence[Any], said: str, catalogs: Iterable[str]) -> None:
        self.touched |= {row.id: row for row in rows}
        self.moved |= {row.catalog for row in rows}
        if not rows:
            self.unknown.append(said)
            self.asked |= set(catalogs)


def _names(event: Event) -> tuple[tuple[str, ...], ...]:
    match event:
        case TableTouched(names):
            return names
        case ScanReported(table=table) | CommitReported(table=table):
            return (table,)
        case MetadataChanged():
            return ()
    assert_never(event)


def _fresh(connection: sa.Connection, messages: Sequence[Message], now: datetime) -> list[Message]:
    """Return the messages whose ids did not come before."""
    by_id = {message.id: message for message in reversed(messages)}
    fresh: set[str] = set()
    for chunk in chunks(sorted(by_id)):
        insert = inserting(connection, RECEIVED).values([{"id": message_id, "at": now} for message_id in chunk])
        added = insert.on_conflict_do_nothing(index_elements=["id"]).returning(RECEIVED.c.id)
        fresh |= set(connection.execute(added).scalars())
    return [message for message in by_id.values() if message.id in fresh]


def _lock(connection: sa.Connection, rows: Sequence[int]) -> None:
    """Hold the tables' rows, in one order everywhere, so that two requests never wait for each other."""
    for chunk in chunks(rows):
        mine = sa.select(TABLES.c.id).where(TABLES.c.id.in_(chunk)).order_by(TABLES.c.id)
        connection.execute(mine.with_for_update(key_share=True))


def _touch(connection: sa.Connection, rows: Iterable[int], now: datetime) -> None:
    """Evaluate these tables now, or when their cooldown is over; what was to come earlier stays."""
    resting = TABLES.c.rest_until > now
    look = sa.case((resting, TABLES.c.rest_until), else_=sa.literal(now, Moment()))
    reading = TABLES.c.evaluating_until > now  # what was asked for before is on its way, and may be too early for this
    earlier = sa.case((reading, look), (TABLES.c.evaluate_at <= look, TABLES.c.evaluate_at), else_=look)
    for chunk in chunks(sorted(rows)):
        connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(chunk)).values(evaluate_at=earlier))


def _count(connection: sa.Connection, scans: Sequence[tuple[Any, ScanReported]], now: datetime) -> None:
    """Add scans to the sums of their days."""
    sums: dict[tuple[int, date], dict[str, float]] = {}
    for row, scan in scans:
        day = sums.setdefault((row.id, scan.at.date()), dict.fromkeys(_SUMS, 0))
        for name, amount in (("queries", 1), *((n, getattr(scan, n)) for n in _SUMS[1:])):
            day[name] += amount
    for chunk in chunks(sorted(sums)):
        insert = inserting(connection, SCANS).values([{"table_id": t, "day": d, **sums[t, d]} for t, d in chunk])
        added = {name: _added(SCANS.c[name], insert.excluded[name], _MOST.get(name)) for name in _SUMS}
        connection.execute(insert.on_conflict_do_update(index_elements=["table_id", "day"], set_=added))
    _average(connection, sorted({table for table, _ in sums}), now)


_SUMS = ("queries", "planning_ms", "duration_ms", "files", "bytes")


def _added(column: sa.ColumnElement[Any], more: sa.ColumnElement[Any], most: int | None) -> sa.ColumnElement[Any]:
    """Return the sum, or the most that the column holds."""
    return column + more if most is None else sa.case((column > most - more, most), else_=column + more)


def _average(connection: sa.Connection, tables: Sequence[int], now: datetime) -> None:
    """Write down the tables' queries per day as of now."""
    since = (now - REMEMBERED).date()
    for chunk in chunks(tables):
        days: dict[int, dict[date, int]] = {table: {} for table in chunk}
        query = sa.select(SCANS.c.table_id, SCANS.c.day, SCANS.c.queries)
        for table, day, queries in connection.execute(query.where(SCANS.c.table_id.in_(chunk), SCANS.c.day >= since)):
            days[table][day] = queries
        heat = {table: queries_per_day(known, now) for table, known in days.items()}
        update = sa.update(TABLES).where(TABLES.c.id == sa.bindparam("row"))
        values = [{"row": table, "heat": warm if warm >= _COLD else 0.0} for table, warm in heat.items()]
        connection.execute(update.values(queries_per_day=sa.bindparam("heat")), values)


def _ask(connection: sa.Connection, catalogs: Iterable[str], now: datetime) -> None:
    """Ask catalogs soon, unless they were asked just now, or fail and are being tried less and less often."""
    columns = [CATALOGS.c[name] for name in ("detect_at", "detected_at", "detecting_until", "failures")]
    for name in sorted(catalogs):
        mine = CATALOGS.c.name == name
        row = connection.execute(sa.select(*columns).where(mine).with_for_update()).first()
        if row is None or row.failures:
            continue
        asking = row.detecting_until is not None and row.detecting_until > now  # it may be past what moved just now
        last = now if asking else row.detected_at
        at = now if last is None else max(now, last + _ASKED)
        if asking or row.detect_at > at:
            connection.execute(sa.update(CATALOGS).where(mine).values(detect_at=at))
