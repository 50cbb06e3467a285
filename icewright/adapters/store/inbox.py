"""Events that other systems push: received ids, the tables they name, scans by day, evaluations that become due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, assert_never

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.schema import CATALOGS, RECEIVED, SCAN_FILTERS, SCANS, SNAPSHOT_READS, TABLES, Moment
from icewright.adapters.store.statements import (
    NAME,
    NAMED,
    chunks,
    lock_rows,
    name_columns,
    namespace_of,
    of_table,
    ref_of,
)
from icewright.core.events.directory import folder_contains
from icewright.core.events.model import (
    CommitReported,
    Event,
    Message,
    MetadataChanged,
    Name,
    ScanReported,
    TableTouched,
)
from icewright.core.heat import REMEMBERED, ReportedReads, queries_per_day
from icewright.core.paths import directory_key, key, split
from icewright.core.readers import REMEMBERED as READS_REMEMBERED
from icewright.core.table import TableRef
from icewright.ports import EventInbox, Receipt

_WITH_ID = (TABLES.c.id, *NAME)
_PLACE = [*_WITH_ID, *(TABLES.c[n] for n in ("location", "write_paths", "metadata_location", "evaluated_location"))]
# everything after the last slash is cut off
_METADATA_FOLDER = sa.func.rtrim(TABLES.c.metadata_location, sa.func.replace(TABLES.c.metadata_location, "/", ""))
_FIRST_DAY = sa.select(sa.func.min(SCANS.c.day)).where(SCANS.c.table_id == TABLES.c.id).scalar_subquery()
_REPORTED_READS = sa.select(TABLES.c.queries_per_day, _FIRST_DAY.label("since")).where(*NAMED)
_CHUNK = 2000  # parameters of one statement
_SCHEMES = ("s3", "s3a", "s3n")
_MAX_DEPTH = 32  # folders above a file that are considered
_ID_LIFETIME = timedelta(days=1)  # how long ids of messages are remembered
_LISTING_COOLDOWN = timedelta(seconds=10)  # events do not make a catalog due more often
_MOST_READS = 1000  # snapshots of a table whose reads are kept, those that were read last
_MOST_FILTERS = 100  # of a table and day, those that queries had most often
_NO_QUERIES = 0.01  # queries per day below this are zero
_COLUMN_LIMITS = {"queries": 2**31 - 1, "files": 2**62, "bytes": 2**62}  # limits of the columns
_SUMS = ("queries", "planning_ms", "duration_ms", "files", "bytes")


def by_name(connection: sa.Connection, names: Iterable[Name]) -> Mapping[Name, Sequence[Any]]:
    """Return the rows of tables by the name that was sent: exactly, else with dots anywhere, else in any case.

    Engines write `a.b.c` whether a dot is part of a name or stands between two, and Trino writes all in lower case.
    """
    unique = sorted(set(names))
    rows = _exact(connection, unique)
    missing: dict[str, list[Name]] = {}
    for name in unique:
        if name not in rows:
            missing.setdefault(name[0], []).append(name)
    for catalog, of_catalog in missing.items():
        rows |= _alike(connection, catalog, of_catalog)
    return rows


def _exact(connection: sa.Connection, names: Sequence[Name]) -> dict[Name, Sequence[Any]]:
    refs = [name_columns(TableRef(name[0], name[1:-1], name[-1])) for name in names]
    rows: dict[Name, Sequence[Any]] = {}
    for chunk in chunks([tuple(ref.values()) for ref in refs], _CHUNK):
        same_name = sa.tuple_(*NAME).in_(chunk)
        for row in connection.execute(sa.select(*_WITH_ID).where(~TABLES.c.dropped, same_name)):
            rows[(row.catalog, *namespace_of(row.namespace), row.name)] = [row]
    return rows


def _alike(connection: sa.Connection, catalog: str, names: Sequence[Name]) -> dict[Name, Sequence[Any]]:
    """Return tables whose names read the same with dots between all parts, else in another case."""
    dotted: dict[str, list[Any]] = {}
    folded: dict[str, list[Any]] = {}
    for row in _with_names(connection, catalog, {end for name in names for end in _possible_names(name[1:])}):
        full = ".".join((*namespace_of(row.namespace), row.name))
        dotted.setdefault(full, []).append(row)
        folded.setdefault(full.casefold(), []).append(row)
    full_names = {name: ".".join(name[1:]) for name in names}
    return {name: dotted.get(full) or folded.get(full.casefold(), []) for name, full in full_names.items()}


def _possible_names(parts: Name) -> Iterator[str]:
    """Yield the possible names of the table itself: the last part, the last two joined by a dot, and so on."""
    return (".".join(parts[i:]) for i in range(1, len(parts)))


def _with_names(connection: sa.Connection, catalog: str, ends: set[str]) -> Iterator[Any]:
    for chunk in chunks(sorted(ends), _CHUNK):
        alike = TABLES.c.name.in_(chunk) | sa.func.lower(TABLES.c.name).in_([end.lower() for end in chunk])
        query = sa.select(*_WITH_ID).where(TABLES.c.catalog == catalog, ~TABLES.c.dropped, alike).order_by(TABLES.c.id)
        yield from connection.execute(query)


def by_location(connection: sa.Connection, locations: Iterable[str]) -> Mapping[str, Sequence[Any]]:
    """Return the rows of tables whose folders hold a metadata file: of folders within one another, the innermost."""
    above = {location: _folders(location) for location in sorted(set(locations))}
    usual = {location: folders[1:2] for location, folders in above.items() if folders[0].endswith("/metadata")}
    rows = _nearest(connection, usual, [TABLES.c.location])
    rest = {location: folders for location, folders in above.items() if not rows.get(location)}
    return {**rows, **_nearest(connection, rest, [TABLES.c.location, _METADATA_FOLDER])}


def _nearest(
    connection: sa.Connection, above: Mapping[str, Sequence[str]], columns: Sequence[sa.ColumnElement[str]]
) -> dict[str, Sequence[Any]]:
    """Return the tables of the nearest of these folders that belongs to a table."""
    places = {spelled for folders in above.values() for folder in folders for spelled in _spellings(folder)}
    rows: dict[int, Any] = {}
    for chunk in chunks(sorted(places), _CHUNK):
        near = sa.or_(*(column.in_(chunk) for column in columns))
        rows |= {row.id: row for row in connection.execute(sa.select(*_PLACE).where(~TABLES.c.dropped, near))}
    by_folder: dict[str, dict[int, tuple[Any, str]]] = {}
    for row in rows.values():
        for folder in (row.location, *(row.write_paths or ()), row.metadata_location.rpartition("/")[0]):
            if folder:
                by_folder.setdefault(directory_key(folder), {})[row.id] = (row, folder)
    return {location: _innermost(by_folder, folders, location) for location, folders in above.items()}


def _innermost(
    by_folder: Mapping[str, Mapping[int, tuple[Any, str]]], folders: Sequence[str], location: str
) -> Sequence[Any]:
    for folder in folders:  # nearest first
        candidates = by_folder.get(directory_key(folder), {}).values()
        if rows := [row for row, spelled in candidates if folder_contains(spelled, location)]:
            return rows
    return []


def _folders(location: str) -> list[str]:
    """Return the folders above a file, nearest first, without the one that is the bucket."""
    place = split(location)
    parts = [part for part in place.path.split("/") if part][:-1]
    prefix = f"{place.scheme}://{place.authority}" if place.scheme else ""
    return ["/".join((prefix, *parts[:n])) for n in range(len(parts), 0, -1)][:_MAX_DEPTH] or [prefix]


def _spellings(folder: str) -> Iterator[str]:
    """Yield a folder as writers may spell it: s3a:// for s3://, file:/ for file:///, with a slash at its end."""
    place = split(folder)
    roots = [f"{place.scheme}://{place.authority}" if place.scheme else ""]
    if place.scheme in _SCHEMES:
        roots = [f"{scheme}://{place.authority}" for scheme in _SCHEMES]
    elif place.scheme in ("", "file"):
        roots = ["", "file:", "file://"]
    for root in roots:
        yield f"{root}{place.path.rstrip('/')}"
        yield f"{root}{place.path.rstrip('/')}/"


@dataclass
class SqlInbox(EventInbox):
    """The EventInbox port on a database."""

    db: Database

    def receive(self, messages: Sequence[Message], now: datetime, *, ask: bool = True) -> Receipt:
        with self.db.begin() as connection:
            connection.execute(sa.delete(RECEIVED).where(RECEIVED.c.at <= now - _ID_LIFETIME))
            new = _record_new(connection, messages, now)
            resolved = _ResolvedEvents(connection, [event for message in new for event in message.events])
            rows = resolved.touched | {row.id: row for row, _ in resolved.scans}
            lock_rows(connection, rows)
            _schedule_evaluations(connection, resolved.touched, now)
            _add_scans(connection, resolved.scans, now)
            _record_reads(connection, resolved.scans, now)
            _add_filters(connection, resolved.scans, now)
            _schedule_listings(connection, resolved.asked | (resolved.moved if ask else set()), now)
        refs = tuple(sorted(ref_of(row) for row in rows.values()))
        return Receipt(len(new), len(messages) - len(new), refs, tuple(dict.fromkeys(resolved.unknown)))

    def filters(self, ref: TableRef, now: datetime) -> Mapping[str, float]:
        days: dict[str, dict[date, int]] = {}
        columns = (SCAN_FILTERS.c.filter, SCAN_FILTERS.c.day, SCAN_FILTERS.c.queries)
        query = sa.select(*columns).join(TABLES).where(*of_table(ref), SCAN_FILTERS.c.day >= (now - REMEMBERED).date())
        with self.db.reading() as connection:
            for template, day, queries in connection.execute(query):
                days.setdefault(template, {})[day] = queries
        return {template: queries_per_day(by_day, now) for template, by_day in days.items()}

    def reported_reads(self, ref: TableRef) -> ReportedReads | None:
        row = next(iter(self.db.rows(_REPORTED_READS, name_columns(ref))), None)
        return ReportedReads(row.queries_per_day, row.since) if row and row.queries_per_day else None

    def decay_query_rates(self, now: datetime) -> None:
        with self.db.begin() as connection:
            read_lately = sa.select(TABLES.c.id).where(TABLES.c.queries_per_day > 0).order_by(TABLES.c.id)
            _update_query_rates(connection, connection.execute(read_lately).scalars().all(), now)


class _ResolvedEvents:
    """The tables and catalogs of this store that events mean."""

    def __init__(self, connection: sa.Connection, events: Sequence[Event]) -> None:
        self.touched: dict[int, Any] = {}
        self.scans: list[tuple[Any, ScanReported]] = []
        self.moved: set[str] = set()  # catalogs of known tables
        self.asked: set[str] = set()  # catalogs of unknown tables
        self.unknown: list[str] = []
        names = [name for event in events for name in _names(event)]
        self._named = by_name(connection, names)
        self._located = by_location(connection, [e.location for e in events if isinstance(e, MetadataChanged)])
        for event in events:
            self._resolve(event)

    def _resolve(self, event: Event) -> None:
        """Note the tables, scans and catalogs that an event means."""
        match event:
            case TableTouched() | CommitReported():
                for name in _names(event):
                    self._touch(self._named[name], ".".join(name), (name[0],))
            case MetadataChanged(location, catalogs):
                rows = self._located[location]
                outdated = [row for row in rows if key(row.evaluated_location or "") != key(location)]
                if outdated or not rows:
                    self._touch(outdated, location, catalogs)
            case ScanReported(table=table):
                rows = self._named[table]
                self.scans += [(row, event) for row in rows]
                self.unknown += [] if rows else [".".join(table)]
                self.asked |= set() if rows else {table[0]}
            case _:
                assert_never(event)

    def _touch(self, rows: Sequence[Any], name: str, catalogs: Iterable[str]) -> None:
        """Note that these tables changed; without any, that the name is unknown, and which catalogs may have it."""
        self.touched |= {row.id: row for row in rows}
        self.moved |= {row.catalog for row in rows}
        if not rows:
            self.unknown.append(name)
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


def _record_new(connection: sa.Connection, messages: Sequence[Message], now: datetime) -> list[Message]:
    """Record the ids of messages, and return the messages whose ids are new."""
    by_id = {message.id: message for message in reversed(messages)}
    new: set[str] = set()
    for chunk in chunks(sorted(by_id)):
        insert = dialect_insert(connection, RECEIVED).values([{"id": message_id, "at": now} for message_id in chunk])
        insert_new = insert.on_conflict_do_nothing(index_elements=["id"]).returning(RECEIVED.c.id)
        new |= set(connection.execute(insert_new).scalars())
    return [message for message in by_id.values() if message.id in new]


def _schedule_evaluations(connection: sa.Connection, rows: Iterable[int], now: datetime) -> None:
    """Evaluate these tables now, or when their cooldown ends; an earlier evaluation stays."""
    resting = TABLES.c.rest_until > now
    earliest = sa.case((resting, TABLES.c.rest_until), else_=sa.literal(now, Moment()))
    evaluating = TABLES.c.evaluating_until > now  # the evaluation under way may have missed this change
    earlier = sa.case((evaluating, earliest), (TABLES.c.evaluate_at <= earliest, TABLES.c.evaluate_at), else_=earliest)
    for chunk in chunks(sorted(rows)):
        connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(chunk)).values(evaluate_at=earlier))


def _add_scans(connection: sa.Connection, scans: Sequence[tuple[Any, ScanReported]], now: datetime) -> None:
    """Add scans to the sums of their days, and forget days of long ago."""
    sums: dict[tuple[int, date], dict[str, float]] = {}
    for row, scan in scans:
        day = sums.setdefault((row.id, scan.at.date()), dict.fromkeys(_SUMS, 0))
        for name, amount in (("queries", 1), *((n, getattr(scan, n)) for n in _SUMS[1:])):
            day[name] += amount
    for chunk in chunks(sorted(sums)):
        insert = dialect_insert(connection, SCANS).values([{"table_id": t, "day": d, **sums[t, d]} for t, d in chunk])
        added = {name: _capped_sum(SCANS.c[name], insert.excluded[name], _COLUMN_LIMITS.get(name)) for name in _SUMS}
        connection.execute(insert.on_conflict_do_update(index_elements=["table_id", "day"], set_=added))
    tables = sorted({table for table, _ in sums})
    for ids in chunks(tables):
        outdated = SCANS.c.table_id.in_(ids) & (SCANS.c.day < (now - REMEMBERED).date())
        connection.execute(sa.delete(SCANS).where(outdated))
    _update_query_rates(connection, tables, now)


def _record_reads(connection: sa.Connection, scans: Sequence[tuple[Any, ScanReported]], now: datetime) -> None:
    """Record when the snapshots that the scans name were last read, and forget reads of long ago."""
    last: dict[tuple[int, int], datetime] = {}
    for row, scan in scans:
        if scan.snapshot_id is not None:
            of_snapshot = (row.id, scan.snapshot_id)
            last[of_snapshot] = max(scan.at, last.get(of_snapshot, scan.at))
    table_id, at = SNAPSHOT_READS.c.table_id, SNAPSHOT_READS.c.at
    for chunk in chunks(sorted(last)):
        values = [{"table_id": t, "snapshot_id": s, "at": last[t, s]} for t, s in chunk]
        insert = dialect_insert(connection, SNAPSHOT_READS).values(values)
        later = sa.case((at > insert.excluded.at, at), else_=insert.excluded.at)
        connection.execute(insert.on_conflict_do_update(index_elements=["table_id", "snapshot_id"], set_={"at": later}))
    for table in sorted({table for table, _ in last}):
        of_table = table_id == table
        kept = sa.select(at).where(of_table).order_by(at.desc()).offset(_MOST_READS - 1).limit(1).scalar_subquery()
        outdated = (at < now - READS_REMEMBERED) | (at < kept)
        connection.execute(sa.delete(SNAPSHOT_READS).where(of_table, outdated))


def _add_filters(connection: sa.Connection, scans: Sequence[tuple[Any, ScanReported]], now: datetime) -> None:
    """Count the filters of scans by day, and forget those of long ago and the rarest of many."""
    counts = Counter((row.id, scan.at.date(), scan.filter) for row, scan in scans if scan.filter)
    day, queries, same = SCAN_FILTERS.c.day, SCAN_FILTERS.c.queries, ["table_id", "day", "filter"]
    for chunk in chunks(sorted(counts)):
        values = [dict(zip(same, key, strict=True), queries=counts[key]) for key in chunk]
        insert = dialect_insert(connection, SCAN_FILTERS).values(values)
        added = _capped_sum(queries, insert.excluded.queries, _COLUMN_LIMITS["queries"])
        connection.execute(insert.on_conflict_do_update(index_elements=same, set_={"queries": added}))
    for table, of_day in sorted({(table, of_day) for table, of_day, _ in counts}):
        this, this_day = SCAN_FILTERS.c.table_id == table, day == of_day
        order = (queries.desc(), SCAN_FILTERS.c.filter)
        frequent = sa.select(SCAN_FILTERS.c.filter).where(this, this_day).order_by(*order).limit(_MOST_FILTERS)
        rare = this_day & SCAN_FILTERS.c.filter.not_in(connection.execute(frequent).scalars().all())
        connection.execute(sa.delete(SCAN_FILTERS).where(this, (day < (now - REMEMBERED).date()) | rare))


def _capped_sum(
    column: sa.ColumnElement[Any], added: sa.ColumnElement[Any], limit: int | None
) -> sa.ColumnElement[Any]:
    """Return the sum, or the limit of the column."""
    return column + added if limit is None else sa.case((column > limit - added, limit), else_=column + added)


def _update_query_rates(connection: sa.Connection, tables: Sequence[int], now: datetime) -> None:
    """Store the tables' queries per day as of now."""
    since = (now - REMEMBERED).date()
    for chunk in chunks(tables):
        days: dict[int, dict[date, int]] = {table: {} for table in chunk}
        query = sa.select(SCANS.c.table_id, SCANS.c.day, SCANS.c.queries)
        for table, day, queries in connection.execute(query.where(SCANS.c.table_id.in_(chunk), SCANS.c.day >= since)):
            days[table][day] = queries
        rates = {table: queries_per_day(by_day, now) for table, by_day in days.items()}
        update = sa.update(TABLES).where(TABLES.c.id == sa.bindparam("row"))
        values = [{"row": table, "heat": rate if rate >= _NO_QUERIES else 0.0} for table, rate in rates.items()]
        connection.execute(update.values(queries_per_day=sa.bindparam("heat")), values)


def _schedule_listings(connection: sa.Connection, catalogs: Iterable[str], now: datetime) -> None:
    """List catalogs soon, unless they were listed just now or are failing."""
    columns = [CATALOGS.c[name] for name in ("detect_at", "detected_at", "detecting_until", "failures")]
    for name in sorted(catalogs):
        this_catalog = CATALOGS.c.name == name
        row = connection.execute(sa.select(*columns).where(this_catalog).with_for_update()).first()
        if row is None or row.failures:
            continue
        # the listing under way may have missed this change
        listing = row.detecting_until is not None and row.detecting_until > now
        last = now if listing else row.detected_at
        earliest = now if last is None else max(now, last + _LISTING_COOLDOWN)
        if listing or row.detect_at > earliest:
            connection.execute(sa.update(CATALOGS).where(this_catalog).values(detect_at=earliest))
