"""Claims of catalogs, leases of loops and heartbeats of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.schema import BREAKERS, CATALOGS, FLEET_PAUSE, LEASES, LIMITS, PROCESSES, TABLES, Moment
from icewright.adapters.store.statements import add_totals, columns_of, lock_tables, values_of
from icewright.adapters.store.tables import record_deaths
from icewright.core.breakers import CLOCK_WENT_BACK, Breaker
from icewright.core.tally import of_catalog_failure
from icewright.ports import (
    Breakers,
    CatalogRow,
    CatalogSchedule,
    CatalogSettings,
    FleetPause,
    FleetPauses,
    Leases,
    LimitSettings,
    ProcessRegistry,
    ProcessRow,
    StoredLimits,
)


@dataclass
class SqlCatalogs(CatalogSchedule):
    """The CatalogSchedule port on a database."""

    db: Database

    def list(self) -> Sequence[CatalogRow]:
        query = sa.select(*columns_of(CATALOGS, CatalogRow)).order_by(CATALOGS.c.name)
        return [_catalog_row(row) for row in self.db.rows(query)]

    def claim(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        with self.db.claiming() as connection:
            rows = [{"name": name, "detect_at": now, "failures": 0} for name in names]
            insert = dialect_insert(connection, CATALOGS).on_conflict_do_nothing(index_elements=["name"])
            if rows:
                connection.execute(insert, rows)
            ends = CATALOGS.c.detecting_until
            free = ends.is_(None) | (ends <= now) | (ends > until + CLOCK_WENT_BACK)
            due = (CATALOGS.c.detect_at <= now) | (CATALOGS.c.detected_at > now + CLOCK_WENT_BACK)
            due &= CATALOGS.c.name.in_(names) & free
            claim = sa.update(CATALOGS).where(due).values(detecting_by=holder, detecting_until=until)
            rows_claimed = connection.execute(claim.returning(*columns_of(CATALOGS, CatalogRow)))
            return [_catalog_row(row) for row in rows_claimed]

    def record_read(self, name: str, began: datetime, now: datetime, detect_at: datetime) -> None:
        requested = CATALOGS.c.detect_at
        next_listing = sa.case(
            ((requested > began) & (requested < detect_at), requested), else_=sa.literal(detect_at, Moment())
        )
        values = {"detected_at": now, "failures": 0, "error": None}
        with self.db.begin() as connection:
            self._end_claim(connection, name, {**values, "detect_at": detect_at}, {**values, "detect_at": next_listing})

    def record_failure(self, name: str, error: str, detect_at: datetime) -> None:
        failed = {"error": error, "detect_at": detect_at, "failures": 1}
        with self.db.begin() as connection:
            self._end_claim(connection, name, failed, {**failed, "failures": CATALOGS.c.failures + 1})
            add_totals(connection, of_catalog_failure(name))

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        with self.db.begin() as connection:
            # a listing that is under way may have missed the change
            not_due = (CATALOGS.c.detect_at > now) | (CATALOGS.c.detecting_until > now)
            connection.execute(sa.update(CATALOGS).where(CATALOGS.c.name.in_(names), not_due).values(detect_at=now))

    def record_policy_applied(self, name: str, fingerprint: str, now: datetime) -> None:
        self._record(name, now, policy=fingerprint)

    def record_settings(self, name: str, settings: CatalogSettings | None, now: datetime) -> None:
        self._record(name, now, settings=None if settings is None else asdict(settings))

    def record_cutoff_applied(self, name: str, instant: str, now: datetime) -> None:
        self._record(name, now, vacuumed=instant)

    def record_vacuumed(self, name: str, now: datetime) -> None:
        self._record(name, now, vacuumed_at=now)

    def _record(self, name: str, now: datetime, **values: object) -> None:
        """Set columns of a catalog, also of one that nobody has listed yet."""
        with self.db.begin() as connection:
            insert = dialect_insert(connection, CATALOGS).values(name=name, detect_at=now, failures=0, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))

    def commit_reports_read_up_to(self, catalog: str) -> int | None:
        with self.db.begin() as connection:
            query = sa.select(CATALOGS.c.reported).where(CATALOGS.c.name == catalog)
            snapshot_id: int | None = connection.execute(query).scalar()
            return snapshot_id

    def record_commit_reports_read(self, catalog: str, snapshot_id: int | None, now: datetime) -> None:
        self._record(catalog, now, reported=snapshot_id)

    @staticmethod
    def _end_claim(connection: sa.Connection, name: str, values: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        update = {"detecting_by": None, "detecting_until": None, **change}
        insert = dialect_insert(connection, CATALOGS).values(name=name, **values)
        connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=update))


def _catalog_row(row: Any) -> CatalogRow:  # noqa: ANN401 - a result row
    catalog = CatalogRow(*row)
    return catalog if catalog.settings is None else replace(catalog, settings=CatalogSettings(**row.settings))


@dataclass
class SqlLeases(Leases):
    """The Leases port on a database."""

    db: Database

    def acquire(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        with self.db.claiming() as connection:
            values = {"name": name, "holder": holder, "until": until}
            insert = dialect_insert(connection, LEASES).values(**values)
            free = (LEASES.c.holder == holder) | (LEASES.c.until <= now)
            upsert = insert.on_conflict_do_update(
                index_elements=["name"], set_={"holder": holder, "until": until}, where=free
            )
            if connection.execute(upsert.returning(LEASES.c.name)).scalar() is not None:
                return holder
            before = (LEASES.c.name == name) & (LEASES.c.until > until)  # the clock was set back; who lives renews it
            connection.execute(sa.update(LEASES).where(before).values(until=until))
            current = connection.execute(sa.select(LEASES.c.holder).where(LEASES.c.name == name)).scalar()
            return current or ""

    def release(self, name: str, holder: str) -> None:
        self.db.write(sa.delete(LEASES).where(LEASES.c.name == name, LEASES.c.holder == holder))


def _has_come(at: sa.Column[Any], now: datetime) -> sa.ColumnElement[bool]:
    """Return whether a time is over, or was written before the clock was set back."""
    return (at <= now) | (at > now + CLOCK_WENT_BACK)


@dataclass
class SqlBreakers(Breakers):
    """The Breakers port on a database."""

    db: Database

    def list(self) -> Sequence[Breaker]:
        query = sa.select(*columns_of(BREAKERS, Breaker)).order_by(BREAKERS.c.resource)
        return [Breaker(*row) for row in self.db.rows(query)]

    def record(self, breaker: Breaker, last: Breaker | None) -> bool:
        values = values_of(breaker)
        with self.db.begin() as connection:
            if last is None:
                insert = dialect_insert(connection, BREAKERS).values(**values)
                insert = insert.on_conflict_do_nothing(index_elements=["resource"])
                return connection.execute(insert.returning(BREAKERS.c.resource)).first() is not None
            changing = ("resource", "failures", "retry_at", "probe_until")  # one of them with each failure and probe
            unchanged = (BREAKERS.c[name].is_not_distinct_from(getattr(last, name)) for name in changing)
            return connection.execute(sa.update(BREAKERS).where(*unchanged).values(**values)).rowcount == 1

    def claim_probe(self, resource: str, now: datetime, until: datetime) -> bool:
        free = BREAKERS.c.probe_until.is_(None) | _has_come(BREAKERS.c.probe_until, now)
        due = (BREAKERS.c.resource == resource) & _has_come(BREAKERS.c.retry_at, now)
        claim = sa.update(BREAKERS).where(due, free)
        with self.db.claiming() as connection:
            return connection.execute(claim.values(probe_until=until)).rowcount == 1

    def close(self, resource: str) -> bool:
        return self.db.write(sa.delete(BREAKERS).where(BREAKERS.c.resource == resource)) == 1


@dataclass
class SqlFleetPauses(FleetPauses):
    """The FleetPauses port on a database."""

    db: Database

    def get(self) -> FleetPause | None:
        with self.db.reading() as connection:
            row = connection.execute(sa.select(*columns_of(FLEET_PAUSE, FleetPause))).one_or_none()
        return None if row is None else FleetPause(*row)

    def begin(self, pause: FleetPause) -> None:
        values = values_of(pause)
        with self.db.begin() as connection:
            insert = dialect_insert(connection, FLEET_PAUSE).values(id=1, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=values))

    def end(self) -> bool:
        return self.db.write(sa.delete(FLEET_PAUSE)) == 1


@dataclass
class SqlLimits(LimitSettings):
    """The LimitSettings port on a database."""

    db: Database

    def get(self) -> StoredLimits | None:
        rows = self.db.rows(sa.select(*columns_of(LIMITS, StoredLimits)))
        return next((StoredLimits(*row) for row in rows), None)

    def put(self, settings: Mapping[str, Any], author: str, now: datetime, expected: int) -> int | None:
        values = {"settings": dict(settings), "author": author, "at": now, "version": expected + 1}
        with self.db.begin() as connection:
            insert = dialect_insert(connection, LIMITS).values(id=1, **values)
            upsert = insert.on_conflict_do_update(
                index_elements=["id"], set_=values, where=LIMITS.c.version == expected
            )
            version: int | None = connection.execute(upsert.returning(LIMITS.c.version)).scalar()
            return version


@dataclass
class SqlProcesses(ProcessRegistry):
    """The ProcessRegistry port on a database."""

    db: Database

    def list(self) -> Sequence[ProcessRow]:
        query = sa.select(*columns_of(PROCESSES, ProcessRow)).order_by(PROCESSES.c.started)
        return [ProcessRow(*row) for row in self.db.rows(query)]

    def record_heartbeat(self, row: ProcessRow) -> bool:
        values = values_of(row, "drain_since")
        with self.db.begin() as connection:
            insert = dialect_insert(connection, PROCESSES).values(**values)
            changed = {name: value for name, value in values.items() if name not in ("holder", "started")}
            upsert = insert.on_conflict_do_update(index_elements=["holder"], set_=changed)
            return connection.execute(upsert.returning(PROCESSES.c.drain_since)).scalar() is not None

    def request_drain(self, holder: str, now: datetime) -> bool:
        request = sa.update(PROCESSES).where(PROCESSES.c.holder == holder)
        first = sa.func.coalesce(PROCESSES.c.drain_since, sa.literal(now, Moment()))
        return self.db.write(request.values(drain_since=first)) == 1

    def release_claims(self, dead: Callable[[str], bool], now: datetime) -> None:
        with self.db.begin() as connection:
            ahead = PROCESSES.c.heartbeat > now + CLOCK_WENT_BACK
            connection.execute(sa.update(PROCESSES).where(ahead).values(heartbeat=now))
            if ended := _dead_holders(connection, CATALOGS.c.detecting_by, dead):
                catalogs = sa.update(CATALOGS).where(CATALOGS.c.detecting_by.in_(ended))
                connection.execute(catalogs.values(detecting_by=None, detecting_until=None))
            if ended := _dead_holders(connection, TABLES.c.evaluating_by, dead):
                record_deaths(connection, ended, now)

    def deregister(self, holders: Sequence[str]) -> None:
        with self.db.begin() as connection:
            claimed = TABLES.c.evaluating_by.in_(holders)
            lock_tables(connection, claimed)
            tables = sa.update(TABLES).where(claimed)
            connection.execute(tables.values(evaluating_by=None, evaluating_until=None))
            connection.execute(sa.delete(PROCESSES).where(PROCESSES.c.holder.in_(holders)))


def _dead_holders(connection: sa.Connection, holder: sa.Column[Any], dead: Callable[[str], bool]) -> Sequence[str]:
    """Return the dead processes among those that the column names."""
    holders = connection.execute(sa.select(holder).where(holder.is_not(None)).distinct()).scalars()
    return [process for process in holders if dead(process)]
