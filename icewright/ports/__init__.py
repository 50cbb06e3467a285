"""What the flow needs from the world. The meaning of each call, and of each error, is part of the port."""

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
    JobRow,
    Ledger,
    LedgerState,
    PinRow,
    RunRow,
    Store,
    StoreReader,
    TableRow,
    Trigger,
)

__all__ = [
    "AddSnapshot",
    "Assignment",
    "AvroFile",
    "Catalog",
    "Change",
    "Clock",
    "DeleteReport",
    "Engine",
    "Files",
    "JobRow",
    "Ledger",
    "LedgerState",
    "PinRow",
    "Pointer",
    "RemoveSnapshots",
    "RunRow",
    "Storage",
    "Store",
    "StoreReader",
    "TableRow",
    "Trigger",
    "Unfinished",
]
