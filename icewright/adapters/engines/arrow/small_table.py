"""Tables that the service plans and commits itself from the manifests that it has read.

Iceberg's planner and commit in the JVM take longer than the rewrite of a few small files; through Spark Connect there
is no way to them at all. Small tables with data files and deletes of one spec are rewritten this way, and through
Connect larger ones too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from icewright.adapters.engines.arrow.equality import misjudged_keys
from icewright.adapters.engines.arrow.live_deletes import other_columns
from icewright.adapters.engines.arrow.live_files import (
    REQUIRED_FIELDS,
    ListedFile,
    LiveFileReader,
    manifest_record,
    removed_entries,
    rewrite_summary,
    with_live_content,
)
from icewright.adapters.engines.arrow.sizes import TargetSizes, groups_within
from icewright.adapters.engines.arrow.small_table_limits import manifest_reader, same_partitions, unsupported_feature
from icewright.adapters.engines.arrow.table import FileGroup, FilesChanged, RewrittenGroup
from icewright.adapters.engines.arrow.tasks import SortField, sort_fields
from icewright.adapters.engines.arrow.types import single_value
from icewright.adapters.engines.service.manifest_files import DATA, EQUALITY_DELETES, Entry
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.ancestry import ancestors
from icewright.core.errors import (
    CommitConflict,
    CommitStateUnknown,
    FileMissing,
    InvariantViolated,
    MetadataUnreadable,
    TableReplaced,
)
from icewright.core.numbers import number_or
from icewright.core.ordering import Ordering
from icewright.core.paths import data_folder
from icewright.core.runs import JOB_ID
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata, columns
from icewright.ports import Catalog, Clock, TableFiles

_MANIFEST_BYTES = 8 << 20  # Iceberg's default of commit.manifest.target-size-bytes
_RETRIES, _WAIT_MS, _MOST_WAIT_MS = 4, 100, 60_000  # Iceberg's defaults of commit.retry.*


@dataclass
class SmallTable:
    """A table at the metadata `base`, created by `small_table`."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    planned: Snapshot  # the current snapshot of `base`
    listed: Sequence[ManifestFile]  # by the planned snapshot
    app_id: str  # of the Spark application that runs the tasks
    storage_properties: Callable[[], Mapping[str, str]]  # FileIO properties for files that are not local
    data: LiveFileReader
    deletes: LiveFileReader | None  # None until there are delete manifests
    drop_dangling: bool
    has_jvm: bool
    _current: TableMetadata = field(init=False)

    def __post_init__(self) -> None:
        self._current = self.base

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the properties of the table's metadata."""
        return self.base.properties

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""
        return self.base.location

    @property
    def has_row_ids(self) -> bool:
        """Return False: rows of format v2 have no ids."""
        return False

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""
        return self.base.schema

    @property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Return the id and fields of the table's sort order; None when the table is unsorted."""
        if self.base.sort_order is None:
            return None
        return self.base.sort_order_id, sort_fields(self.schema, Ordering.parse(self.base.sort_order))

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """Return dropped top-level columns by id, each in its latest form."""
        return other_columns(self.files, self.base, {field["id"] for field in self.schema["fields"]})

    def storage(self) -> Mapping[str, str]:
        """Return the FileIO properties of the table."""
        return self.storage_properties()

    def remove_dangling_deletes(self) -> None:
        """Do nothing: `commit` has removed dangling delete files."""

    def discard(self, paths: Iterable[str]) -> None:
        """Delete outputs that will not be committed."""
        self.files.delete(list(paths), 1)

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return the files that Iceberg's planner would choose, in groups of one partition and of the step's size."""
        candidates = self.files.candidates(self.base, step)
        chosen = {fate.path for fate in candidates}
        groups: dict[str, list[ListedFile]] = {}
        for file in self._live_data(self.listed):
            if file.path in chosen:
                groups.setdefault(file.partition, []).append(file)
        if sum(map(len, groups.values())) != len(candidates):
            raise MetadataUnreadable(f"{self.base.metadata_location} was read twice with different contents")
        sizes = TargetSizes(*(int(step.options[f"{name}-file-size-bytes"]) for name in ("target", "min", "max")))
        deletes = self._live_deletes(self.listed)
        most, all_files = int(step.options["max-file-group-size-bytes"]), step.options.get("rewrite-all") == "true"
        result: list[FileGroup] = []
        for files in groups.values():
            parts = [
                self._group(members, deletes, sizes) for members in groups_within(files, most, lambda file: file.bytes)
            ]
            pays = all_files or len(parts) == 1
            result += [p for p in parts if pays or len(p.files) > 1 or p.files[0].deletes or p.outputs > 1]
        return result

    def output_prefix(self, group: FileGroup, number: int) -> str:
        """Return a prefix in the folder of the group's partition, as Iceberg's default location provider does."""
        return f"{group.handle}/{number:05d}-{uuid.uuid4()}"

    def commit(self, groups: Sequence[RewrittenGroup], *, starting_sequence: bool, job_id: str) -> None:
        """Replace the files of the groups by their outputs, in one `replace` snapshot.

        Retries on top of concurrent commits that left the rewritten files and their deletes in place. Raises
        `CommitConflict`, and leaves the outputs, on others and when the retries are used up.
        """
        retries = self._int_property("commit.retry.num-retries", _RETRIES)
        shortest, longest = (
            self._int_property(f"commit.retry.{name}-wait-ms", default)
            for name, default in (("min", _WAIT_MS), ("max", _MOST_WAIT_MS))
        )
        try:
            for attempt in range(retries + 1):
                commit = self._prepare_on_latest(groups, job_id, starting_sequence=starting_sequence)
                try:
                    self._current = commit()
                except CommitConflict:
                    if attempt == retries:
                        raise
                    self.clock.sleep(min(shortest * 2**attempt, longest) / 1000)
                    self._current = self.catalog.load(self.base.ref)
                else:
                    return
        except (CommitStateUnknown, InvariantViolated, CommitConflict):
            raise  # the table may reference the new files, or some of them may be committed yet
        except Exception:
            self.discard(str(entry["file-path"]) for _, entries in groups for entry in entries)
            raise

    def _prepare_on_latest(
        self, groups: Sequence[RewrittenGroup], job_id: str, *, starting_sequence: bool
    ) -> Callable[[], TableMetadata]:
        """Prepare a commit; reload the table when a metadata file is missing, which an expiry may have deleted."""
        while True:
            try:
                return self._prepare_commit(self._current, groups, job_id, starting_sequence=starting_sequence)
            except FileMissing:
                latest = self.catalog.load(self.base.ref)
                if latest.metadata_location == self._current.metadata_location:
                    raise
                self._current = latest

    def _int_property(self, name: str, default: int) -> int:
        """Return a table property as integer; the default when it is not set or not a number."""
        return number_or(default, self.properties.get(name, ""))

    def _prepare_commit(
        self, metadata: TableMetadata, groups: Sequence[RewrittenGroup], job_id: str, *, starting_sequence: bool
    ) -> Callable[[], TableMetadata]:
        """Return a function that commits on top of `metadata`. Raises `CommitConflict`."""
        current, listed = self._validated_current(metadata)
        # one that was removed and added again has a newer number, and older deletes do not apply to it any more
        rewritten = {(file.path, file.sequence_number) for group, _ in groups for file in group.files}
        live = self._live_data(listed)
        removed = [file for file in live if (file.path, file.sequence) in rewritten]
        if len(removed) != sum(len(group.files) for group, _ in groups):
            raise FilesChanged(f"{metadata.ref}: a writer removed files that compaction has rewritten")
        self._check_deletes(metadata, listed, removed, starting_sequence=starting_sequence)
        remaining = [file for file in live if (file.path, file.sequence) not in rewritten]
        dangling = self._dangling(listed, remaining, starting_sequence=starting_sequence)
        replacing = Replacing(self.files, self.clock, self.catalog, metadata, current, listed)
        snapshot_id, sequence = replacing.snapshot_id, self.planned.sequence_number if starting_sequence else None
        partition_by_path = {file.path: self.data.writer.partition(file.entry.partition) for file in removed}
        added = [
            self.data.writer.added(
                manifest_record(entry), partition_by_path[group.files[0].path], snapshot_id, sequence
            )
            for group, entries in groups
            for entry in entries
        ]
        self._check_row_counts(removed, added)
        touched = {file.manifest for file in (*removed, *dangling)}
        retained = [file.entry for file in remaining if file.manifest in touched]
        # entries of these were deleted by earlier snapshots
        empty_manifests = {m.path for m in listed if not m.live_files}
        changes = rewrite_summary(current, removed, dangling, [entry for _, entries in groups for entry in entries])
        summary = {"app-id": self.app_id, "spark.app.id": self.app_id, **changes, JOB_ID: job_id}
        target = self._int_property("commit.manifest.target-size-bytes", _MANIFEST_BYTES)
        entry_bytes = max(len(entry.data_file) for entry in (*added, *(file.entry for file in removed)))

        def commit() -> TableMetadata:
            with replacing.undone_unless_committed():
                replacing.write(self.data.writer, [*added, *retained], target, entry_bytes)
                replacing.write(self.data.writer, removed_entries(removed, snapshot_id), target, entry_bytes)
                if self.deletes is not None and dangling:
                    deletes_left = [file for file in self._live_deletes(listed) if file.manifest in touched]
                    retained_deletes = [file.entry for file in deletes_left if file not in dangling]
                    replacing.write(self.deletes.writer, retained_deletes, target, entry_bytes)
                    replacing.write(self.deletes.writer, removed_entries(dangling, snapshot_id), target, entry_bytes)
                return replacing.commit(touched | empty_manifests, summary)

        return commit

    def _check_deletes(
        self,
        metadata: TableMetadata,
        listed: Sequence[ManifestFile],
        removed: Sequence[ListedFile],
        *,
        starting_sequence: bool,
    ) -> None:
        """Raise `FilesChanged` when a delete file of the rewritten files came, or one that was applied is gone.

        Equality deletes that came apply to outputs of the starting sequence number as they do to the rewritten files.
        """
        planned, live = ({delete.path: delete for delete in self._live_deletes(m)} for m in (self.listed, listed))
        for changes, before, after in (("added", planned, live), ("dropped", live, planned)):
            new = [
                delete
                for path, delete in after.items()
                if path not in before and not (starting_sequence and delete.content == EQUALITY_DELETES)
            ]
            if any(delete.applies_to(file) for delete in new for file in removed):
                raise FilesChanged(f"{metadata.ref}: a writer {changes} deletes of files that compaction has rewritten")

    def _check_row_counts(self, removed: Sequence[ListedFile], added: Sequence[Entry]) -> None:
        """Raise `InvariantViolated` when rows appeared, or more rows are missing than deletes can name."""
        rows_before, rows_after = sum(file.entry.records for file in removed), sum(entry.records for entry in added)
        deletes = self._live_deletes(self.listed)
        by_keys = any(file.content == EQUALITY_DELETES for file in deletes)  # a key may name any number of rows
        max_deleted = rows_before if by_keys else sum(file.entry.records for file in deletes)
        if not 0 <= rows_before - rows_after <= max_deleted:
            raise InvariantViolated(
                f"{self.base.ref}: compaction wrote {rows_after} rows of {rows_before}, of which deletes name "
                f"{max_deleted} at most; nothing was committed"
            )

    def _dangling(
        self, listed: Sequence[ManifestFile], remaining: Sequence[ListedFile], *, starting_sequence: bool
    ) -> list[ListedFile]:
        """Return the delete files that apply to none of the remaining data files, and to no output.

        Position deletes name rows by file path, and outputs have new paths. Equality deletes apply to outputs that
        are older.
        """
        if not self.drop_dangling:
            return []
        return [
            file
            for file in self._live_deletes(listed)
            if not any(file.applies_to(data) for data in remaining)
            and not (
                starting_sequence and file.content == EQUALITY_DELETES and file.sequence > self.planned.sequence_number
            )
        ]

    def _validated_current(self, metadata: TableMetadata) -> tuple[Snapshot, Sequence[ManifestFile]]:
        """Return the current snapshot and its manifests. Raises unless a rewrite of the plan is still valid on them."""
        if metadata is self.base:
            return self.planned, self.listed
        if metadata.table_uuid != self.base.table_uuid:
            raise TableReplaced(f"{metadata.ref} was replaced by another table during compaction")
        if metadata.current_snapshot is None:
            raise CommitConflict(f"{metadata.ref}: a writer removed the main branch during compaction")
        # a rollback and an expiry of the planned snapshot look alike: in both cases the history is not known
        history = {snapshot.snapshot_id for snapshot in ancestors(metadata, metadata.current_snapshot.snapshot_id)}
        if self.planned.snapshot_id not in history:
            raise CommitConflict(
                f"{metadata.ref}: the snapshot that compaction was planned on is not in main's history"
            )
        listed = self.files.manifests(metadata.current_snapshot)
        reason = unsupported_feature(metadata, listed, has_jvm=self.has_jvm, planned=self.base)
        if reason is None and self.deletes is None:  # the planned snapshot had none
            deletes = manifest_reader(self.files, metadata, listed, ManifestContent.DELETES)
            if same_partitions(self.data, deletes):
                self.deletes = deletes
            else:
                reason = "rows by delete files"
        if reason is not None:
            raise CommitConflict(f"{metadata.ref}: since compaction was planned a writer changed {reason}")
        return metadata.current_snapshot, listed

    def _live_data(self, listed: Sequence[ManifestFile]) -> list[ListedFile]:
        return self.data.live(with_live_content(listed, ManifestContent.DATA))

    def _live_deletes(self, listed: Sequence[ManifestFile]) -> list[ListedFile]:
        return self.deletes.live(with_live_content(listed, ManifestContent.DELETES)) if self.deletes is not None else []

    def _group(self, members: Sequence[ListedFile], deletes: Sequence[ListedFile], sizes: TargetSizes) -> FileGroup:
        size = sum(file.bytes for file in members)
        files = tuple(file.file_slice(deletes) for file in members)
        return FileGroup(
            self._partition_folder(members[0]),
            files,
            sizes.outputs(size),
            sizes.split(size),
            self._constants(members[0]),
        )

    def is_plain_parquet(self) -> bool:
        """Return whether all files are unencrypted Parquet data in partition folders, or deletes that are known here.

        Equality deletes are left to the JVM, if there is one, where they are not to go with the data that they apply
        to: Iceberg's own commit then drops those that are older than all data. So are those that readers may pass over.
        """
        data, deletes = self._live_data(self.listed), self._live_deletes(self.listed)
        key_ids = {number for file in deletes if file.delete for number in file.delete.equality_ids}
        by_keys = not key_ids or self.drop_dangling or not self.has_jvm
        misjudged = misjudged_keys((*self.schema["fields"], *self.older_fields().values())) if key_ids else frozenset()
        plain = all(file.is_plain_parquet for file in (*data, *deletes)) and by_keys and not key_ids & misjudged
        return plain and all(file.content == DATA and self._partition_folder(file) for file in data)

    def _partition_folder(self, file: ListedFile) -> str | None:
        """Return the folder for new files of a file's partition; None when its path has no partition folders."""
        names = [field.name for field in self.base.spec(self.base.default_spec_id).fields]
        folders = file.path.split("/")[-len(names) - 1 : -1]
        if [unquote_plus(folder.partition("=")[0]) for folder in folders] != names:
            return None
        return "/".join((data_folder(self.location, self.properties), *folders))

    def _constants(self, file: ListedFile) -> Mapping[int, Any]:
        """Return identity partition values by source field id."""
        kinds = {number: kind for number, _, kind in columns(self.schema)}
        fields = self.base.spec(self.base.default_spec_id).fields
        values = zip(fields, self.data.writer.partition(file.entry.partition), strict=True)
        return {
            field.source_id: single_value(kinds[field.source_id], value)
            for field, value in values
            if field.transform == "identity" and field.source_id in kinds
        }


def small_table(
    files: TableFiles,
    clock: Clock,
    catalog: Catalog,
    base: TableMetadata,
    step: RewriteDataFiles,
    app_id: str,
    storage_properties: Callable[[], Mapping[str, str]],
    *,
    has_jvm: bool = True,
) -> SmallTable | None:
    """Return the table when the service can plan and commit the step itself, else None.

    Without a JVM larger tables are opened too.
    """
    planned = base.current_snapshot
    if planned is None or step.user_where is not None or step.branch is not None:
        return None
    other_spec = step.options.get("output-spec-id") not in (None, str(base.default_spec_id))
    bounded = step.options.keys() & {"max-files-to-rewrite", "max-file-group-input-files"}  # by Iceberg's planner
    if other_spec or bounded or (has_jvm and step.bytes > int(step.options["max-file-group-size-bytes"])):
        return None
    listed = files.manifests(planned)
    if unsupported_feature(base, listed, has_jvm=has_jvm) is not None:
        return None
    data, deletes = (manifest_reader(files, base, listed, content) for content in ManifestContent)
    if data is None or not data.writer.has_fields(REQUIRED_FIELDS):
        return None
    if not same_partitions(data, deletes):
        return None
    drop_dangling = step.options.get("remove-dangling-deletes") == "true"
    table = SmallTable(
        files, clock, catalog, base, planned, listed, app_id, storage_properties, data, deletes, drop_dangling, has_jvm
    )
    return table if table.is_plain_parquet() else None
