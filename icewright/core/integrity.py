"""The result of checking that every file of a table exists and is what its entry says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from icewright.core.table import MAIN, TableMetadata, TableRef, columns


class CheckLevel(StrEnum):
    """How deep a check looks; each level includes those before it."""

    EXISTS = "exists"  # every file is there, with its length, by a listing
    ENTRIES = "entries"  # manifest lists, manifests and the metadata file agree with one another
    FOOTERS = "footers"  # footers of data and delete files, and deletion vectors, agree with their entries
    ROWS = "rows"  # all rows of data and delete files can be read, and agree with their entries

    @property
    def depth(self) -> int:
        """Return the level as a number, which grows with its depth."""
        return list(CheckLevel).index(self)

    def includes(self, other: CheckLevel) -> bool:
        """Return whether a check of this level does what the other does."""
        return self.depth >= other.depth


class FileFaultKind(StrEnum):
    """What is wrong with a file that the table needs, or with what its entry says of it."""

    MISSING = "missing"
    WRONG_LENGTH = "wrong_length"
    UNREADABLE = "unreadable"
    WRONG_COUNT = "wrong_count"
    WRONG_SEQUENCE = "wrong_sequence"
    WRONG_PARTITION = "wrong_partition"
    WRONG_CONTENT = "wrong_content"
    WRONG_ROW_IDS = "wrong_row_ids"
    WRONG_FIELDS = "wrong_fields"
    DUPLICATE = "duplicate"
    WRONG_BOUNDS = "wrong_bounds"
    WRONG_OFFSETS = "wrong_offsets"
    WRONG_VECTOR = "wrong_vector"
    WRONG_POSITIONS = "wrong_positions"
    WRONG_SNAPSHOT = "wrong_snapshot"
    WRONG_ORDER = "wrong_order"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that snapshots need and cannot use, or that they read wrongly by what its entry says."""

    kind: FileFaultKind
    file: str  # what the file is: a manifest list, a manifest, data, deletes, statistics
    path: str
    detail: str
    snapshot_ids: tuple[int, ...]  # of the snapshots that the fault concerns; none: it breaks no read of them

    def __str__(self) -> str:
        """Return the fault as a line for people."""
        ids = ", ".join(map(str, self.snapshot_ids))
        return f"{self.kind} {self.file} {self.path}: {self.detail}" + (f"; snapshots {ids}" if ids else "")


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """The files of all snapshots of a table that were checked, and their faults."""

    ref: TableRef
    metadata_location: str
    level: CheckLevel
    snapshots: int
    files: int
    faults: tuple[FileFault, ...]
    read: int = 0  # data and delete files whose footers or rows were read
    bytes_read: int = 0  # of these files, as far as the level reads rows
    unread: Mapping[str, str] = field(default_factory=dict)  # why files were not read as deep as the level asks


def metadata_faults(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[FileFault]:
    """Yield where a metadata file contradicts itself; `document` is its JSON. Most of this breaks no snapshot yet."""
    present = metadata.by_id

    def found(kind: FileFaultKind, detail: str, *snapshot_ids: int) -> FileFault:
        return FileFault(kind, "metadata", metadata.metadata_location, detail, snapshot_ids)

    for ref in metadata.refs:
        current = metadata.current_snapshot_id
        if ref.snapshot_id not in present:
            detail = f"{ref.kind} {ref.name} is of snapshot {ref.snapshot_id}, which is gone"
            yield found(FileFaultKind.WRONG_SNAPSHOT, detail)
        elif ref.name == MAIN and ref.snapshot_id != current:
            detail = f"main is of snapshot {ref.snapshot_id}, and the current one is {current}"
            yield found(FileFaultKind.WRONG_SNAPSHOT, detail, ref.snapshot_id)
    for file in (*metadata.statistics, *metadata.partition_statistics):
        if file.snapshot_id not in present:
            detail = f"{file.path} is of snapshot {file.snapshot_id}, which is gone"
            yield found(FileFaultKind.WRONG_SNAPSHOT, detail)
    schemas = {int(schema["schema-id"]): schema for schema in document.get("schemas") or ()}
    for snapshot in metadata.snapshots:
        if schemas and snapshot.schema_id is not None and snapshot.schema_id not in schemas:
            detail = f"snapshot {snapshot.snapshot_id} is of schema {snapshot.schema_id}, which is gone"
            yield found(FileFaultKind.WRONG_FIELDS, detail, snapshot.snapshot_id)
        parent = present.get(snapshot.parent_id or 0)
        if parent is not None and parent.sequence_number > snapshot.sequence_number:
            detail = f"snapshot {snapshot.snapshot_id} has a lower sequence number than its parent {parent.snapshot_id}"
            yield found(FileFaultKind.WRONG_SEQUENCE, detail, snapshot.snapshot_id)
    highest = max((number for schema in schemas.values() for number, _, _ in columns(schema)), default=0)
    if highest > document.get("last-column-id", highest):
        detail = f"column {highest} is beyond the last id {document['last-column-id']}: a new one would get its values"
        yield found(FileFaultKind.WRONG_FIELDS, detail)
