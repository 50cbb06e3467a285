"""Old history on its way out of the store: planned in batches, written to Iceberg tables, then pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

# Tables that are archived, children before their parents, and their columns of time.
SOURCES: Mapping[str, str] = {
    "deletions": "planned_at",
    "runs": "finished",
    "jobs": "finished",
    "events": "at",
    "alerts": "resolved_at",
}
BATCH = "batch"  # column of each archive table: the batch of the row
BATCH_ID = "icewright.archive-batch"  # key in the summary of the snapshot that appended a batch


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one source. Their keys are recorded before the first is copied, and never change."""

    batch_id: str  # later batches sort after earlier ones
    source: str
    rows: int
    planned: datetime
    written: bool  # whether the archive is known to have the batch


class OldHistory(Protocol):
    """Old history in the store. A job is archived once all rows that refer to it are."""

    def waiting(self, before: datetime) -> Mapping[str, int]:
        """Return how many rows of each source are old enough."""

    def unfinished(self) -> Sequence[Batch]:
        """Return batches that were planned and not pruned, oldest first."""

    def plan(self, source: str, before: datetime, now: datetime) -> Batch | None:
        """Record the next batch, of bounded size; None when nothing old enough is left.

        Raises `LeaseLost` when the source has an unfinished batch already: another process archives it.
        """

    def rows(self, batch: Batch) -> pa.Table:
        """Return the rows of a batch: `batch`, `table_name` and the columns of the source."""

    def written(self, batch: Batch) -> None:
        """Record that the archive has the batch. May be repeated."""

    def prune(self, batch: Batch) -> None:
        """Delete the rows of a written batch. May be repeated."""


class Archive(Protocol):
    """The Iceberg tables that old history is moved to."""

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Append the rows in one commit, unless the table has the batch already. Returns when it has it.

        The check and the append are one compare-and-set: with several writers of one batch, the table has the batch
        once. Raises `CommitConflict` after another writer's commit, and `CommitStateUnknown` when the reply was lost:
        then calling again settles it. Raises `CatalogUnavailable`, `StorageUnavailable`, and `InvariantViolated` when
        the table has a part of the batch.
        """

    def close(self) -> None:
        """Close the catalog's connections; the archive is not used afterwards."""
