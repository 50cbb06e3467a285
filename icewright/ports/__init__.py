"""The interfaces between the flow and the adapters. The meaning of each call and error is part of the port."""

from icewright.ports.access import AccessStore, AuditLog, IdempotencyKeys
from icewright.ports.alerts import OPEN_ALERTS, AlertQuery, AlertStore, Notifier, PendingDelivery, QueueBacklog
from icewright.ports.archive import Archive, Batch, OldHistory
from icewright.ports.coordination import Breakers, CatalogSchedule, FleetPauses, Leases, LimitSettings, ProcessRegistry
from icewright.ports.engine import (
    Adoptable,
    CopyRequest,
    Engine,
    Intent,
    MeasureRequest,
    Probe,
    RepairRequest,
    StepRequest,
    Unfinished,
)
from icewright.ports.events import ActivityLog, CommitReports, EventInbox, NewReports, Receipt
from icewright.ports.jobs import JOB_LEASE, JobQueue, PlanningState, RunHistory
from icewright.ports.lake import (
    AddSnapshot,
    AvroFile,
    Catalog,
    Change,
    Clock,
    Dataset,
    DeleteReport,
    FileStat,
    ListsDatasets,
    Pointer,
    Registering,
    RemoveSnapshots,
    Replying,
    RestoreSnapshots,
    Restoring,
    SetRefs,
    SetStatistics,
    SizeLimit,
    Storage,
    TableFiles,
    VendedCredentials,
    ignore,
)
from icewright.ports.ledger import DeletionLedger
from icewright.ports.measures import Distribution, MeasureReader, Measures, QueueMeasure
from icewright.ports.rows import (
    MANUAL,
    WAITING,
    CatalogRow,
    CatalogSettings,
    FleetPause,
    JobRow,
    LeaseStatus,
    LedgerState,
    ProcessRow,
    Registration,
    Removal,
    RunRow,
    SnapshotPin,
    StoredLimits,
    TableRow,
    Trigger,
    WaitingDeletions,
)
from icewright.ports.store import Store
from icewright.ports.tables import Registrations, SnapshotPins, TableState
from icewright.ports.vacuum import Branched, Head, LiveTable, Merging, Survey, Vacuum, VacuumOf
from icewright.ports.views import PolicyRules, Views
