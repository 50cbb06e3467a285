"""The state store on one SQL database, SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from pathlib import Path

import sqlalchemy as sa

from icewright.adapters.store.access import SqlAccess, SqlAudit, SqlRequests, SqlRules
from icewright.adapters.store.alerts import SqlAlerts
from icewright.adapters.store.coordination import (
    SqlBreakers,
    SqlCatalogs,
    SqlFleetPauses,
    SqlLeases,
    SqlLimits,
    SqlProcesses,
)
from icewright.adapters.store.database import Database
from icewright.adapters.store.history import SqlActivity, SqlRuns
from icewright.adapters.store.inbox import SqlInbox
from icewright.adapters.store.jobs import SqlJobs
from icewright.adapters.store.ledger import SqlLedger
from icewright.adapters.store.measures import SqlMeasures
from icewright.adapters.store.pins import SqlPins
from icewright.adapters.store.planning import SqlPlanning
from icewright.adapters.store.registrations import SqlRegistrations
from icewright.adapters.store.tables import SqlTables
from icewright.adapters.store.views import SqlViews
from icewright.ports import Store


class SqlStore(Store):
    """The Store port: each part on the same database. `exports` is the folder of exported ledgers."""

    def __init__(self, engine: sa.Engine, exports: Path | None = None) -> None:
        self.db = db = Database(engine)
        self.tables = SqlTables(db)
        self.pins = SqlPins(db)
        self.registrations = SqlRegistrations(db)
        self.ledger = SqlLedger(db, exports)
        self.jobs = SqlJobs(db)
        self.planning = SqlPlanning(db)
        self.runs = SqlRuns(db)
        self.catalogs = SqlCatalogs(db)
        self.leases = SqlLeases(db)
        self.breakers = SqlBreakers(db)
        self.fleet = SqlFleetPauses(db)
        self.limits = SqlLimits(db)
        self.processes = SqlProcesses(db)
        self.inbox = SqlInbox(db)
        self.activity = SqlActivity(db)
        self.alerts = SqlAlerts(db)
        self.measures = SqlMeasures(db)
        self.views = SqlViews(db)
        self.rules = SqlRules(db)
        self.access = SqlAccess(db)
        self.audit = SqlAudit(db)
        self.requests = SqlRequests(db)

    @property
    def engine(self) -> sa.Engine:
        """Return the SQLAlchemy engine of the database."""
        return self.db.engine

    def reading_together(self) -> AbstractContextManager[None]:
        return self.db.reading_together()

    def writing_together(self) -> AbstractContextManager[None]:
        return self.db.writing_together()

    def change_token(self) -> Hashable | None:
        return self.db.change_token()
