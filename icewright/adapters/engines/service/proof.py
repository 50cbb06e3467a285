"""The proof of a table's deletions, by the table, its readers and neighbours as they are right before each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import Proved
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.listing import unreferenced_metadata_beside
from icewright.adapters.engines.service.replied import require_as_written
from icewright.adapters.engines.service.successors import require_no_successor
from icewright.core.errors import Refused, TableReplaced
from icewright.core.runs import FileAction
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata
from icewright.core.vacuum import gc_enabled
from icewright.ports import Catalog, Clock

Holds = Callable[[TableMetadata], Sequence[SnapshotHold]]


@dataclass
class TableProof:
    """Proves planned deletions of one table, in an ordinary run and when an interrupted one is finished later."""

    catalog: Catalog
    guard: DeletionGuard
    clock: Clock
    base: TableMetadata  # as it was when the files were planned, or read first
    planned: Sequence[FileAction]  # the files of all batches
    holds: Holds
    since: datetime  # when the run that planned the files began
    scanned: bool  # the files come from a listing of the table's places: perhaps no snapshot ever named them
    finishing: bool = False  # the run that planned the files is over
    outside: bool = True  # whether files outside of all tables' places may be deleted, as the plan decided
    compared: sets.ComparedManifests | None = None  # none of which names one of the files
    _at: TableMetadata | None = None  # up to which `_free` was proved
    _manifests: pl.DataFrame | None = None  # of `_at`
    _compared: pl.DataFrame | None = None  # `path` and `length` of all manifests that were compared so far
    _free: pl.DataFrame | None = None  # the planned files that no metadata so far reaches

    def __post_init__(self) -> None:
        """Begin with the manifests that the caller has compared."""
        if self.compared is not None:
            self._compared = self.compared.manifests.select("path", "length")

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Return which of the planned files may be deleted. Raises `Refused` if none may, and errors of reading."""
        current = self.catalog.load(self.base.ref)
        self._same_table(current)
        if not gc_enabled(current.properties):
            raise Refused(f"{current.ref}: gc.enabled is false now: nothing is deleted", "gc_disabled")
        with self.guard.registry.reading_together():
            self._require_unpinned(current)
            recorded = self.guard.recorded(current)
        if current != self._at:
            require_as_written(self.catalog, current)
        surroundings = self.guard.around(current, recorded=recorded)
        files = self.guard.registry.files
        manifests = self._manifests
        if manifests is None or current != self._at:
            self._manifests = manifests = self._listed(current.snapshots)
        former = surroundings.former_versions, surroundings.metadata_folders
        unreferenced = unreferenced_metadata_beside(files, current, *former, manifests=manifests["path"])
        require_no_successor(
            current, unreferenced, files.read, lambda: self.catalog.load(current.ref), self.clock, surroundings.adopted
        )
        roots = self.guard.roots(surroundings)[0] if self.scanned else None
        free = self._unreached(current, manifests)
        free = free.filter(pl.col("path").is_in([file.path for file in planned]))
        judgement = self.guard.judge(surroundings, free, own=roots, outside=self.outside and not self.scanned)
        return Proved.of(judgement, planned, "the table reaches it")

    def _unreached(self, current: TableMetadata, manifests: pl.DataFrame) -> pl.DataFrame:
        """Return the planned files that the table does not reach. A manifest never changes: each is compared once."""
        files, unreached = self.guard.registry.files, self._free
        if unreached is None:
            unreached = pl.DataFrame({"path": [file.path for file in self.planned]}, schema={"path": pl.String})
        if current != self._at:  # a server may keep the name of the file
            chunks = sets.reached(files, current, manifests, self._compared)
            unreached = sets.unreached(unreached, chunks, files.canonical)
            listed = manifests.select("path", "length")
            compared = listed if self._compared is None else pl.concat([self._compared, listed])
            self._compared, self._free, self._at = compared.unique(), unreached, current
        return unreached

    def _listed(self, snapshots: Sequence[Snapshot]) -> pl.DataFrame:
        """Return the manifests of the snapshots. A list never changes: those that were compared are not read again."""
        files, known = self.guard.registry.files, self.compared
        if known is None:
            return sets.manifests_of(files, snapshots)
        unread = [snapshot for snapshot in snapshots if snapshot.manifest_list not in known.lists]
        return pl.concat([known.manifests, sets.manifests_of(files, unread)]).unique("path")

    def _same_table(self, current: TableMetadata) -> None:
        if current.table_uuid != self.base.table_uuid:
            raise TableReplaced(f"{current.ref} was replaced by another table: nothing is deleted")

    def _require_unpinned(self, current: TableMetadata) -> None:
        """Raise `Refused` when a snapshot was pinned meanwhile that may need the planned files."""
        for hold in self.holds(current):
            if hold.until <= self.clock.now() or hold.since is None or hold.since < self.since:
                continue
            if not self.finishing or hold.snapshot_id not in current.by_id:
                raise Refused(
                    f"{current.ref}: {hold.by} holds snapshot {hold.snapshot_id} since {hold.since:%Y-%m-%d %H:%M} "
                    "UTC: nothing is deleted until it is released",
                    "pinned",
                )
