"""The commit of a rewrite that the service planned: outputs in the place of files, on top of what writers committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from icewright.adapters.engines.arrow.live_files import (
    ListedFile,
    LiveFileReader,
    manifest_record,
    removed_entries,
    rewrite_summary,
    with_live_content,
)
from icewright.adapters.engines.arrow.small_table_limits import manifest_reader, same_partitions, unsupported_feature
from icewright.adapters.engines.arrow.table import FilesChanged, RewrittenGroup
from icewright.adapters.engines.service.manifest_files import EQUALITY_DELETES, Entry
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.ancestry import ancestors
from icewright.core.errors import CommitConflict, CommitStateUnknown, FileMissing, InvariantViolated, TableReplaced
from icewright.core.numbers import number_or
from icewright.core.runs import JOB_ID
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.ports import Catalog, Clock, TableFiles

_RETRIES, _WAIT_MS, _MOST_WAIT_MS = 4, 100, 60_000  # Iceberg's defaults of commit.retry.*


@dataclass(kw_only=True)
class PlannedTable:
    """A table at the metadata `base`, on which a rewrite is planned, and as later commits left it."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    planned: Snapshot  # the current snapshot of `base`
    listed: Sequence[ManifestFile]  # by the planned snapshot
    app_id: str  # of the Spark application that runs the tasks
    data: LiveFileReader
    deletes: LiveFileReader | None  # None until there are delete manifests
    drop_dangling: bool
    has_jvm: bool
    latest: TableMetadata = field(init=False)  # after the last commit, as far as it is known

    def __post_init__(self) -> None:
        self.latest = self.base

    def live_data(self, listed: Sequence[ManifestFile]) -> list[ListedFile]:
        """Return the live data files of the manifests."""
        return self.data.live(with_live_content(listed, ManifestContent.DATA))

    def live_deletes(self, listed: Sequence[ManifestFile]) -> list[ListedFile]:
        """Return the live delete files of the manifests."""
        return self.deletes.live(with_live_content(listed, ManifestContent.DELETES)) if self.deletes is not None else []


@dataclass(frozen=True)
class SmallTableCommit:
    """One commit of rewritten groups. With `starting_sequence` outputs are as old as the planned snapshot."""

    table: PlannedTable
    groups: Sequence[RewrittenGroup]
    job_id: str
    starting_sequence: bool

    def run(self) -> None:
        """Commit, and retry on top of commits that left the rewritten files and their deletes in place.

        Raises `CommitConflict`, and leaves the outputs, on other commits and when the retries are used up.
        """
        table, retries = self.table, self._int_property("commit.retry.num-retries", _RETRIES)
        shortest, longest = (
            self._int_property(f"commit.retry.{name}-wait-ms", default)
            for name, default in (("min", _WAIT_MS), ("max", _MOST_WAIT_MS))
        )
        try:
            for attempt in range(retries + 1):
                commit = self._prepare_on_latest()
                try:
                    table.latest = commit()
                except CommitConflict:
                    if attempt == retries:
                        raise
                    table.clock.sleep(min(shortest * 2**attempt, longest) / 1000)
                    table.latest = table.catalog.load(table.base.ref)
                else:
                    return
        except (CommitStateUnknown, InvariantViolated, CommitConflict):
            raise  # the table may reference the new files, or some of them may be committed yet
        except Exception:
            table.files.delete([str(entry["file-path"]) for _, entries in self.groups for entry in entries], 1)
            raise

    def _prepare_on_latest(self) -> Callable[[], TableMetadata]:
        """Prepare a commit; reload the table when a metadata file is missing, which an expiry may have deleted."""
        table = self.table
        while True:
            try:
                return self._prepare(table.latest)
            except FileMissing:
                reloaded = table.catalog.load(table.base.ref)
                if reloaded.metadata_location == table.latest.metadata_location:
                    raise
                table.latest = reloaded

    def _int_property(self, name: str, default: int) -> int:
        """Return a table property as integer; the default when it is not set or not a number."""
        return number_or(default, self.table.base.properties.get(name, ""))

    def _prepare(self, metadata: TableMetadata) -> Callable[[], TableMetadata]:
        """Return a function that commits on top of `metadata`. Raises `CommitConflict`."""
        table = self.table
        current, listed = self._validated_current(metadata)
        # one that was removed and added again has a newer number, and older deletes do not apply to it any more
        rewritten = {(file.path, file.sequence_number) for group, _ in self.groups for file in group.files}
        live = table.live_data(listed)
        removed = [file for file in live if (file.path, file.sequence) in rewritten]
        if len(removed) != sum(len(group.files) for group, _ in self.groups):
            raise FilesChanged(f"{metadata.ref}: a writer removed files that compaction has rewritten")
        self._check_deletes(metadata, listed, removed)
        remaining = [file for file in live if (file.path, file.sequence) not in rewritten]
        dangling = self._dangling(listed, remaining)
        replacing = Replacing(table.files, table.clock, table.catalog, metadata, current, listed)
        snapshot_id = replacing.snapshot_id
        added = self._added(removed, snapshot_id)
        self._check_row_counts(removed, added)
        touched = {file.manifest for file in (*removed, *dangling)}
        retained = [file.entry for file in remaining if file.manifest in touched]
        # entries of these were deleted by earlier snapshots
        empty_manifests = {m.path for m in listed if not m.live_files}
        changes = rewrite_summary(current, removed, dangling, [e for _, entries in self.groups for e in entries])
        summary = {"app-id": table.app_id, "spark.app.id": table.app_id, **changes, JOB_ID: self.job_id}
        target = replacing.manifest_bytes
        entry_bytes = max(len(entry.data_file) for entry in (*added, *(file.entry for file in removed)))

        def commit() -> TableMetadata:
            with replacing.undone_unless_committed():
                replacing.write(table.data.writer, [*added, *retained], target, entry_bytes)
                replacing.write(table.data.writer, removed_entries(removed, snapshot_id), target, entry_bytes)
                if table.deletes is not None and dangling:
                    deletes_left = [file for file in table.live_deletes(listed) if file.manifest in touched]
                    retained_deletes = [file.entry for file in deletes_left if file not in dangling]
                    replacing.write(table.deletes.writer, retained_deletes, target, entry_bytes)
                    replacing.write(table.deletes.writer, removed_entries(dangling, snapshot_id), target, entry_bytes)
                return replacing.commit(touched | empty_manifests, summary)

        return commit

    def _added(self, removed: Sequence[ListedFile], snapshot_id: int) -> list[Entry]:
        """Return the entries of the outputs, each in the partition of the files that it replaces."""
        writer = self.table.data.writer
        sequence = self.table.planned.sequence_number if self.starting_sequence else None
        partition_by_path = {file.path: writer.partition(file.entry.partition) for file in removed}
        return [
            writer.added(manifest_record(entry), partition_by_path[group.files[0].path], snapshot_id, sequence)
            for group, entries in self.groups
            for entry in entries
        ]

    def _check_deletes(
        self, metadata: TableMetadata, listed: Sequence[ManifestFile], removed: Sequence[ListedFile]
    ) -> None:
        """Raise `FilesChanged` when a delete file of the rewritten files came, or one that was applied is gone.

        Equality deletes that came apply to outputs of the starting sequence number as they do to the rewritten files.
        """
        table = self.table
        planned, live = ({delete.path: delete for delete in table.live_deletes(m)} for m in (table.listed, listed))
        for changes, before, after in (("added", planned, live), ("dropped", live, planned)):
            new = [
                delete
                for path, delete in after.items()
                if path not in before and not (self.starting_sequence and delete.content == EQUALITY_DELETES)
            ]
            if any(delete.applies_to(file) for delete in new for file in removed):
                raise FilesChanged(f"{metadata.ref}: a writer {changes} deletes of files that compaction has rewritten")

    def _check_row_counts(self, removed: Sequence[ListedFile], added: Sequence[Entry]) -> None:
        """Raise `InvariantViolated` when rows appeared, or more rows are missing than deletes can name."""
        rows_before, rows_after = sum(file.entry.records for file in removed), sum(entry.records for entry in added)
        deletes = self.table.live_deletes(self.table.listed)
        by_keys = any(file.content == EQUALITY_DELETES for file in deletes)  # a key may name any number of rows
        max_deleted = rows_before if by_keys else sum(file.entry.records for file in deletes)
        if not 0 <= rows_before - rows_after <= max_deleted:
            raise InvariantViolated(
                f"{self.table.base.ref}: compaction wrote {rows_after} rows of {rows_before}, of which deletes name "
                f"{max_deleted} at most; nothing was committed"
            )

    def _dangling(self, listed: Sequence[ManifestFile], remaining: Sequence[ListedFile]) -> list[ListedFile]:
        """Return the delete files that apply to none of the remaining data files, and to no output.

        Position deletes name rows by file path, and outputs have new paths. Equality deletes apply to outputs that
        are older.
        """
        if not self.table.drop_dangling:
            return []
        planned = self.table.planned.sequence_number
        return [
            file
            for file in self.table.live_deletes(listed)
            if not any(file.applies_to(data) for data in remaining)
            and not (self.starting_sequence and file.content == EQUALITY_DELETES and file.sequence > planned)
        ]

    def _validated_current(self, metadata: TableMetadata) -> tuple[Snapshot, Sequence[ManifestFile]]:
        """Return the current snapshot and its manifests. Raises unless a rewrite of the plan is still valid on them."""
        table = self.table
        if metadata is table.base:
            return table.planned, table.listed
        if metadata.table_uuid != table.base.table_uuid:
            raise TableReplaced(f"{metadata.ref} was replaced by another table during compaction")
        if metadata.current_snapshot is None:
            raise CommitConflict(f"{metadata.ref}: a writer removed the main branch during compaction")
        # a rollback and an expiry of the planned snapshot look alike: in both cases the history is not known
        history = {snapshot.snapshot_id for snapshot in ancestors(metadata, metadata.current_snapshot.snapshot_id)}
        if table.planned.snapshot_id not in history:
            raise CommitConflict(
                f"{metadata.ref}: the snapshot that compaction was planned on is not in main's history"
            )
        listed = table.files.manifests(metadata.current_snapshot)
        reason = unsupported_feature(metadata, listed, has_jvm=table.has_jvm, planned=table.base)
        if reason is None and table.deletes is None:  # the planned snapshot had none
            deletes = manifest_reader(table.files, metadata, listed, ManifestContent.DELETES)
            if same_partitions(table.data, deletes):
                table.deletes = deletes
            else:
                reason = "rows by delete files"
        if reason is not None:
            raise CommitConflict(f"{metadata.ref}: since compaction was planned a writer changed {reason}")
        return metadata.current_snapshot, listed
