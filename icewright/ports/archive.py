"""Old history on its way out of the store: planned in batches, written to Iceberg tables, then pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

# What is archived, children before their parents, and the column that says when it was.
SOURCES: Mapping[str, str] = {
    "deletions": "planned_at",
    "runs": "finished",
    "jobs": "finished",
    "events": "at",
    "alerts": "resolved_at",
}
BATCH = "batch"  # the column of each archive table that says by which batch a row came
BATCH_ID = "icewright.archive-batch"  # in the summary of the snapshot that a batch made


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one source. Which, is written down before the first of them is copied, and never changes."""

    batch_id: str  # later batches sort after earlier ones
    source: str
    rows: int
    planned: datetime
    written: bool  # whether the archive is known to have it


class OldHistory(Protocol):
    """The store's side. A job goes when all that it left has gone; what the store still works with stays."""

    def waiting(self, before: datetime) -> Mapping[str, int]:
        """How many rows of each source would go."""
        ...

    def unfinished(self) -> Sequence[Batch]:
        """Batches that were planned and not pruned, the oldest first."""
        ...

    def plan(self, source: str, before: datetime, now: datetime) -> Batch | None:
        """Write down the next batch, of bounded size; None when nothing is left that is old enough.

        Raises `LeaseLost` when the source has an unfinished batch already: another process is at it.
        """
        ...

    def rows(self, batch: Batch) -> pa.Table:
        """The batch's rows: `batch`, `table_name` and the columns of the source."""
        ...

    def written(self, batch: Batch) -> None:
        """Write down that the archive has the batch."""
        ...

    def prune(self, batch: Batch) -> None:
        """Delete the rows of a written batch; one that was pruned already stays as it is."""
        ...


class Archive(Protocol):
    """The side of the Iceberg tables."""

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Add the rows in one commit, unless the table has the batch already. Returns when the table has it.

        That the batch is missing and that it is added is one compare-and-set: whoever else writes the same batch at
        the same time, it is there once. Raises `CommitConflict` when somebody else committed, and
        `CommitStateUnknown` when the reply was lost: then calling again settles it. Raises `CatalogUnavailable`,
        `StorageUnavailable`, and `InvariantViolated` when the table has a part of the batch.
        """
        ...

    def close(self) -> None:
        """Close the catalog's connections; the archive is not used afterwards."""
        ...
