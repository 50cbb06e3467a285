"""What loops of many processes share: whose turn a catalog is, leases on what one alone does, who is alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, inserting
from icewright.adapters.store.schema import BREAKERS, CATALOGS, LEASES, PROCESSES, TABLES, Moment
from icewright.adapters.store.statements import add_totals
from icewright.core.breakers import Breaker
from icewright.core.tally import of_catalog_failure
from icewright.ports import CatalogRow, ProcessRow


@dataclass
class SqlCatalogs:
    """The CatalogSchedule port on a database."""

    db: Database

    def list(self) -> Sequence[CatalogRow]:
        """Return every catalog that was ever asked."""
        columns = [CATALOGS.c[name] for name in CatalogRow.__dataclass_fields__]
        with self.db.reading() as connection:
            return [CatalogRow(*row) for row in connection.execute(sa.select(*columns).order_by(CATALOGS.c.name))]

    def claim(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        """Return those of the catalogs whose turn it is, for this process until then."""
        with self.db.begin() as connection:
            new = [{"name": name, "detect_at": now, "failures": 0} for name in names]
            insert = inserting(connection, CATALOGS).on_conflict_do_nothing(index_elements=["name"])
            if new:
                connection.execute(insert, new)
            free = CATALOGS.c.detecting_until.is_(None) | (CATALOGS.c.detecting_until <= now)
            mine = CATALOGS.c.name.in_(names) & (CATALOGS.c.detect_at <= now) & free
            claimed = sa.update(CATALOGS).where(mine).values(detecting_by=holder, detecting_until=until)
            columns = [CATALOGS.c[name] for name in CatalogRow.__dataclass_fields__]
            return [CatalogRow(*row) for row in connection.execute(claimed.returning(*columns))]

    def record_read(self, name: str, began: datetime, now: datetime, detect_at: datetime) -> None:
        """The catalog answered; when it is asked next: at once, if somebody has asked for it since this one began."""
        meant = CATALOGS.c.detect_at
        soon = sa.case(((meant > began) & (meant < detect_at), meant), else_=sa.literal(detect_at, Moment()))
        read = {"detected_at": now, "failures": 0, "error": None}
        with self.db.begin() as connection:
            self._asked(connection, name, {**read, "detect_at": detect_at}, {**read, "detect_at": soon})

    def record_failure(self, name: str, error: str, detect_at: datetime) -> None:
        """The catalog could not be read; when it is tried again."""
        failed = {"error": error, "detect_at": detect_at, "failures": 1}
        with self.db.begin() as connection:
            self._asked(connection, name, failed, {**failed, "failures": CATALOGS.c.failures + 1})
            add_totals(connection, of_catalog_failure(name))

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        """Somebody says that something moved there."""
        with self.db.begin() as connection:
            # an answer that is on its way may be too early
            later = (CATALOGS.c.detect_at > now) | (CATALOGS.c.detecting_until > now)
            connection.execute(sa.update(CATALOGS).where(CATALOGS.c.name.in_(names), later).values(detect_at=now))

    def record_policy_applied(self, name: str, fingerprint: str, now: datetime) -> None:
        """The catalog's tables were held against this policy."""
        with self.db.begin() as connection:
            insert = inserting(connection, CATALOGS).values(name=name, detect_at=now, failures=0, policy=fingerprint)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"policy": fingerprint}))

    def record_cutoff_applied(self, name: str, instant: str, now: datetime) -> None:
        """Vacuum has acted on this instant."""
        with self.db.begin() as connection:
            insert = inserting(connection, CATALOGS).values(name=name, detect_at=now, failures=0, vacuumed=instant)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"vacuumed": instant}))

    def commit_reports_read_up_to(self, catalog: str) -> int | None:
        """Return the snapshot up to which commit reports were read."""
        with self.db.begin() as connection:
            query = sa.select(CATALOGS.c.reported).where(CATALOGS.c.name == catalog)
            snapshot_id: int | None = connection.execute(query).scalar()
            return snapshot_id

    def record_commit_reports_read(self, catalog: str, snapshot_id: int | None, now: datetime) -> None:
        """Commit reports were read up to this snapshot."""
        with self.db.begin() as connection:
            new = {"name": catalog, "detect_at": now, "failures": 0, "reported": snapshot_id}
            insert = inserting(connection, CATALOGS).values(**new)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"reported": snapshot_id}))

    @staticmethod
    def _asked(connection: sa.Connection, name: str, first: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        free = {"detecting_by": None, "detecting_until": None, **change}
        insert = inserting(connection, CATALOGS).values(name=name, **first)
        connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=free))


@dataclass
class SqlLeases:
    """The Leases port on a database."""

    db: Database

    def acquire(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        """Take or renew a lease; says who holds it now."""
        with self.db.begin() as connection:
            values = {"name": name, "holder": holder, "until": until}
            insert = inserting(connection, LEASES).values(**values)
            free = (LEASES.c.holder == holder) | (LEASES.c.until <= now)
            taken = insert.on_conflict_do_update(
                index_elements=["name"], set_={"holder": holder, "until": until}, where=free
            )
            if connection.execute(taken.returning(LEASES.c.name)).scalar() is not None:
                return holder
            other = connection.execute(sa.select(LEASES.c.holder).where(LEASES.c.name == name)).scalar()
            return other or ""

    def release(self, name: str, holder: str) -> None:
        """Release a lease that the holder has; another's is left alone."""
        with self.db.begin() as connection:
            connection.execute(sa.delete(LEASES).where(LEASES.c.name == name, LEASES.c.holder == holder))


@dataclass
class SqlBreakers:
    """The Breakers port on a database."""

    db: Database

    def list(self) -> Sequence[Breaker]:
        """Return the breakers of all resources that have failed since their last success."""
        columns = [BREAKERS.c[name] for name in Breaker.__dataclass_fields__]
        with self.db.reading() as connection:
            return [Breaker(*row) for row in connection.execute(sa.select(*columns).order_by(BREAKERS.c.resource))]

    def record(self, breaker: Breaker) -> None:
        """Insert or replace the breaker of a resource."""
        values = {name: getattr(breaker, name) for name in Breaker.__dataclass_fields__}
        with self.db.begin() as connection:
            insert = inserting(connection, BREAKERS).values(**values)
            connection.execute(insert.on_conflict_do_update(index_elements=["resource"], set_=values))

    def claim_probe(self, resource: str, now: datetime, until: datetime) -> bool:
        """Claim the one probe of a resource whose `retry_at` has come."""
        free = BREAKERS.c.probe_until.is_(None) | (BREAKERS.c.probe_until <= now)
        claimed = sa.update(BREAKERS).where(BREAKERS.c.resource == resource, BREAKERS.c.retry_at <= now, free)
        with self.db.begin() as connection:
            return connection.execute(claimed.values(probe_until=until)).rowcount == 1

    def close(self, resource: str) -> bool:
        """Remove the breaker of a resource, as it answers."""
        with self.db.begin() as connection:
            return connection.execute(sa.delete(BREAKERS).where(BREAKERS.c.resource == resource)).rowcount == 1


@dataclass
class SqlProcesses:
    """The ProcessRegistry port on a database."""

    db: Database

    def list(self) -> Sequence[ProcessRow]:
        """Return every process that has not said that it is gone, the silent ones too."""
        columns = [PROCESSES.c[name] for name in ProcessRow.__dataclass_fields__]
        with self.db.reading() as connection:
            return [ProcessRow(*row) for row in connection.execute(sa.select(*columns).order_by(PROCESSES.c.started))]

    def record_heartbeat(self, row: ProcessRow) -> None:
        """This process is there, and what it says of itself."""
        values = {name: getattr(row, name) for name in ProcessRow.__dataclass_fields__}
        with self.db.begin() as connection:
            insert = inserting(connection, PROCESSES).values(**values)
            changed = {name: value for name, value in values.items() if name not in ("holder", "started")}
            connection.execute(insert.on_conflict_do_update(index_elements=["holder"], set_=changed))

    def release_claims(self, dead: Callable[[str], bool]) -> None:
        """What ended processes were about to read is anybody's again."""
        with self.db.begin() as connection:
            for table, by, until in (
                (CATALOGS, CATALOGS.c.detecting_by, CATALOGS.c.detecting_until),
                (TABLES, TABLES.c.evaluating_by, TABLES.c.evaluating_until),
            ):
                holders = connection.execute(sa.select(by).where(by.is_not(None)).distinct()).scalars().all()
                gone = [holder for holder in holders if dead(holder)]
                if gone:
                    connection.execute(sa.update(table).where(by.in_(gone)).values({by: None, until: None}))

    def deregister(self, holders: Sequence[str]) -> None:
        """These processes are there no more."""
        with self.db.begin() as connection:
            connection.execute(sa.delete(PROCESSES).where(PROCESSES.c.holder.in_(holders)))
