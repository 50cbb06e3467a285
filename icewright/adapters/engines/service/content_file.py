"""A data or delete file as its entry describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icewright.adapters.engines.service.manifest_files import DATA
from icewright.adapters.engines.service.reachable import CONTENT_KINDS
from icewright.core import field_ids as ids
from icewright.core.integrity import FileFaultKind


@dataclass(frozen=True)
class ContentFile:
    """A data or delete file as its entry describes it; `values` are as they are stored, by field id."""

    manifest: str
    spec_id: int
    status: int
    sequence: int
    values: Mapping[int, Any]
    file_sequence: int | None = None  # of the snapshot that added the file, where the entry says it or inherits it
    snapshot_id: int | None = None  # of the snapshot that added or took out the file; None: its manifest's

    @property
    def path(self) -> str:
        """Return the full path of the file."""
        return str(self.values[ids.FILE_PATH])

    @property
    def content(self) -> int:
        """Return the spec's number for what the file holds: data, position deletes or equality deletes."""
        return int(self.values.get(ids.CONTENT) or DATA)

    @property
    def partition(self) -> tuple[Any, ...]:
        """Return the values of the partition tuple."""
        return tuple(self.values[ids.PARTITION].values())

    @property
    def partition_key(self) -> str:
        """Return spec and partition as text to compare by: NaN equals itself, and 0.0 differs from -0.0."""
        return repr((self.spec_id, self.partition))

    @property
    def format(self) -> str:
        """Return the file format in capitals."""
        return str(self.values[ids.FILE_FORMAT]).upper()

    @property
    def records(self) -> int:
        """Return the number of rows, or of positions of a deletion vector."""
        return int(self.values[ids.RECORD_COUNT])

    @property
    def is_encrypted(self) -> bool:
        """Return whether the file can be read with its key alone."""
        return self.values.get(ids.KEY_METADATA) is not None

    @property
    def bytes(self) -> int:
        """Return the length of the file."""
        return int(self.values[ids.FILE_SIZE])

    @property
    def is_vector(self) -> bool:
        """Return whether it is a deletion vector."""
        return self.format == "PUFFIN"

    @property
    def referenced(self) -> str:
        """Return the one data file that a deletion vector applies to; empty for other files."""
        return str(self.values.get(ids.REFERENCED_DATA_FILE) or "")

    @property
    def key(self) -> tuple[str, int | None]:
        """Return the path and, of a deletion vector, its offset: a file may hold several."""
        return self.path, self.values.get(ids.CONTENT_OFFSET)

    @property
    def equality_ids(self) -> Sequence[int]:
        """Return the columns by which an equality delete file deletes; empty for other files."""
        return self.values.get(ids.EQUALITY_IDS) or ()

    @property
    def first_row_id(self) -> int | None:
        """Return the id of the first row, as the entry states it; None: it follows from the manifest's."""
        return self.values.get(ids.FIRST_ROW_ID)

    @property
    def kind(self) -> str:
        """Return what the file is, in words."""
        return "deletion vectors" if self.is_vector else CONTENT_KINDS[self.content]

    def mapped(self, field_id: int) -> Mapping[int, Any]:
        """Return counts or bounds by column id; empty where there are none."""
        return {pair["key"]: pair["value"] for pair in self.values.get(field_id) or ()}


def misspelt(named: str, path: str) -> tuple[FileFaultKind, str]:
    """Return the fault of deletes that spell the path of their data file otherwise than its entry does."""
    return FileFaultKind.WRONG_POSITIONS, f"it deletes rows of {named}, which no reader takes for the data file {path}"
