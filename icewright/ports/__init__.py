"""What the flow needs from the world. The meaning of each call, and of each error, is part of the port."""

from icewright.ports.alerts import (
    AlertReader,
    AlertStore,
    Notifier,
    Telling,
    Waiting,
)
from icewright.ports.engine import (
    Assignment,
    Engine,
    Unfinished,
)
from icewright.ports.events import (
    CommitReports,
    Events,
    NewReports,
    Receipt,
)
from icewright.ports.lake import (
    AddSnapshot,
    AvroFile,
    Catalog,
    Change,
    Clock,
    DeleteReport,
    Files,
    Pointer,
    RemoveSnapshots,
    Storage,
)
from icewright.ports.measures import (
    Distribution,
    MeasureReader,
    Measures,
    QueueMeasure,
)
from icewright.ports.rows import (
    Beat,
    CatalogRow,
    JobRow,
    LedgerState,
    PinRow,
    ProcessRow,
    RunRow,
    TableRow,
    Trigger,
)
from icewright.ports.store import (
    Ledger,
    Store,
    StoreReader,
)

__all__ = [
    "AddSnapshot",
    "AlertReader",
    "AlertStore",
    "Assignment",
    "AvroFile",
    "Beat",
    "Catalog",
    "CatalogRow",
    "Change",
    "Clock",
    "CommitReports",
    "DeleteReport",
    "Distribution",
    "Engine",
    "Events",
    "Files",
    "JobRow",
    "Ledger",
    "LedgerState",
    "MeasureReader",
    "Measures",
    "NewReports",
    "Notifier",
    "PinRow",
    "Pointer",
    "ProcessRow",
    "QueueMeasure",
    "Receipt",
    "RemoveSnapshots",
    "RunRow",
    "Storage",
    "Store",
    "StoreReader",
    "TableRow",
    "Telling",
    "Trigger",
    "Unfinished",
    "Waiting",
]
