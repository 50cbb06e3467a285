"""The result of checking that every file of a table exists and has the length that its entry says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from icewright.core.table import TableRef


class FileFaultKind(StrEnum):
    """What is wrong with a file that the table needs."""

    MISSING = "missing"
    WRONG_LENGTH = "wrong_length"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that snapshots need and cannot use."""

    kind: FileFaultKind
    file: str  # what the file is: a manifest list, a manifest, data, deletes, statistics
    path: str
    detail: str
    snapshot_ids: tuple[int, ...]  # of the snapshots that cannot be read whole without the file


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """The files of all snapshots of a table that were checked, and their faults."""

    ref: TableRef
    metadata_location: str
    snapshots: int
    files: int
    faults: tuple[FileFault, ...]
