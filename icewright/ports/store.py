"""The state store: all ports that keep state, over one database."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Protocol

from icewright.ports.access import AccessStore, AuditLog, IdempotencyKeys
from icewright.ports.alerts import AlertStore
from icewright.ports.coordination import Breakers, CatalogSchedule, FleetPauses, Leases, LimitSettings, ProcessRegistry
from icewright.ports.events import ActivityLog, EventInbox
from icewright.ports.jobs import JobQueue, PlanningState, RunHistory
from icewright.ports.ledger import DeletionLedger
from icewright.ports.measures import MeasureReader
from icewright.ports.tables import Registrations, SnapshotPins, TableState
from icewright.ports.views import PolicyRules, Views


class Store(Protocol):
    """The parts of the state store, each a port of its own. Functions that need one part take that part.

    A call of a part is a transaction of its own, but in `reading_together` and `writing_together`. All raise
    `StoreUnavailable`. Methods that claim work for this process (`claim*`, `enqueue`, `dequeue`, `acquire`) raise
    `SchemaMismatch` when the store has the schema of another version of this program; heartbeats and results of work
    that was claimed before are recorded.
    """

    tables: TableState  # listings of tables, their evaluations and when each is evaluated next
    pins: SnapshotPins  # snapshots that readers and running rewrites need
    registrations: Registrations  # every table and place that any catalog ever named
    ledger: DeletionLedger  # files that jobs plan to delete, and their states
    jobs: JobQueue  # jobs, queued, running and ended
    planning: PlanningState  # the input of the planner, and the work that it left waiting
    runs: RunHistory  # the operations that jobs ran
    catalogs: CatalogSchedule  # the schedule of catalog listings
    leases: Leases  # named leases, each of one process at a time
    breakers: Breakers  # circuit breakers of catalogs, storage places and pools
    fleet: FleetPauses  # the pause of the whole fleet
    limits: LimitSettings  # limits in the place of the configuration's
    processes: ProcessRegistry  # services and workers that are alive
    inbox: EventInbox  # events that other systems push
    activity: ActivityLog  # the log of what happened, for people
    alerts: AlertStore  # alerts and their deliveries to channels
    measures: MeasureReader  # aggregates of everything, for metrics
    views: Views  # lists for people, page by page
    rules: PolicyRules  # policy rules, with all their versions
    access: AccessStore  # API tokens and sessions of users
    audit: AuditLog  # the audit log of changes and refusals
    requests: IdempotencyKeys  # requests with an Idempotency-Key, each carried out once

    def reading_together(self) -> AbstractContextManager[None]:
        """Let all reads of this thread share one transaction until the block ends.

        The block neither writes to the store, which raises `RuntimeError`, nor waits for anything else.
        """

    def writing_together(self) -> AbstractContextManager[None]:
        """Let all calls of this thread share one transaction until the block ends: all that it wrote stays, or nothing.

        The block waits for nothing else, as others wait for its locks. An error of the database ends it, and is raised
        as `StoreUnavailable` behind it. It may be repeated where each of its calls may.
        """

    def change_token(self) -> Hashable | None:
        """Return a value that changes with every commit of any process; None where no cheap one exists."""
