"""What the flow needs from the world. The meaning of each call, and of each error, is part of the port."""

from icewright.ports.archive import (
    Archive,
    Batch,
    OldHistory,
)
from icewright.ports.engine import (
    Assignment,
    Engine,
    Unfinished,
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
from icewright.ports.store import (
    Beat,
    CatalogRow,
    JobRow,
    Ledger,
    LedgerState,
    PinRow,
    ProcessRow,
    RunRow,
    Store,
    StoreReader,
    TableRow,
    Trigger,
)

__all__ = [
    "AddSnapshot",
    "Archive",
    "Assignment",
    "AvroFile",
    "Batch",
    "Beat",
    "Catalog",
    "CatalogRow",
    "Change",
    "Clock",
    "DeleteReport",
    "Engine",
    "Files",
    "JobRow",
    "Ledger",
    "LedgerState",
    "OldHistory",
    "PinRow",
    "Pointer",
    "ProcessRow",
    "RemoveSnapshots",
    "RunRow",
    "Storage",
    "Store",
    "StoreReader",
    "TableRow",
    "Trigger",
    "Unfinished",
]
