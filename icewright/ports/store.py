"""The state store: all ports that keep state, over one database."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Protocol

from icewright.ports.access import AccessStore, AuditLog, IdempotencyKeys
from icewright.ports.alerts import AlertStore
from icewright.ports.coordination import Breakers, CatalogSchedule, FleetPauses, Leases, ProcessRegistry
from icewright.ports.events import ActivityLog, EventInbox
from icewright.ports.jobs import JobQueue, PlanningState, RunHistory
from icewright.ports.ledger import DeletionLedger
from icewright.ports.measures import MeasureReader
from icewright.ports.tables import Registrations, SnapshotPins, TableState
from icewright.ports.views import PolicyRules, Views


class Store(Protocol):
    """The parts of the state store, each a port of its own. Functions that need one part take that part.

    A call of a part is a transaction of its own, but for reads in `reading_together`. All raise `StoreUnavailable`.
    Methods that claim work for this process (`claim*`, `enqueue`, `dequeue`, `acquire`) raise `SchemaMismatch` when the
    store has the schema of another version of this program; heartbeats and results of work that was claimed before are
    recorded.
    """

    def reading_together(self) -> AbstractContextManager[None]:
        """Let all reads of this thread share one transaction until the block ends.

        The block neither writes to the store, which raises `RuntimeError`, nor waits for anything else.
        """
        ...

    def change_token(self) -> Hashable | None:
        """Return a value that changes with every commit of any process; None where no cheap one exists."""
        ...

    @property
    def tables(self) -> TableState:
        """Tables: listings, evaluations and when each is evaluated next."""
        ...

    @property
    def pins(self) -> SnapshotPins:
        """Snapshots that readers and running rewrites need."""
        ...

    @property
    def registrations(self) -> Registrations:
        """Registrations of every table and place that any catalog ever named."""
        ...

    @property
    def ledger(self) -> DeletionLedger:
        """Files that jobs plan to delete, and their states."""
        ...

    @property
    def jobs(self) -> JobQueue:
        """Jobs, queued, running and ended."""
        ...

    @property
    def planning(self) -> PlanningState:
        """The input of the planner, and the work that it left waiting."""
        ...

    @property
    def runs(self) -> RunHistory:
        """The operations that jobs ran."""
        ...

    @property
    def catalogs(self) -> CatalogSchedule:
        """The schedule of catalog listings."""
        ...

    @property
    def leases(self) -> Leases:
        """Named leases, each of one process at a time."""
        ...

    @property
    def breakers(self) -> Breakers:
        """Circuit breakers of catalogs, storage places and pools."""
        ...

    @property
    def fleet(self) -> FleetPauses:
        """The pause of the whole fleet."""
        ...

    @property
    def processes(self) -> ProcessRegistry:
        """Services and workers that are alive."""
        ...

    @property
    def inbox(self) -> EventInbox:
        """Events that other systems push."""
        ...

    @property
    def activity(self) -> ActivityLog:
        """The log of what happened, for people."""
        ...

    @property
    def alerts(self) -> AlertStore:
        """Alerts and their deliveries to channels."""
        ...

    @property
    def measures(self) -> MeasureReader:
        """Aggregates of everything, for metrics."""
        ...

    @property
    def views(self) -> Views:
        """Lists for people, page by page."""
        ...

    @property
    def rules(self) -> PolicyRules:
        """Policy rules, with all their versions."""
        ...

    @property
    def access(self) -> AccessStore:
        """API tokens and sessions of users."""
        ...

    @property
    def audit(self) -> AuditLog:
        """The audit log of changes and refusals."""
        ...

    @property
    def requests(self) -> IdempotencyKeys:
        """Requests with an Idempotency-Key, each carried out once."""
        ...
