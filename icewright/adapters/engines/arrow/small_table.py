"""Tables that the service plans and commits itself from the manifests that it has read.

Iceberg's planner and commit in the JVM take longer than the rewrite of a few small files; through Spark Connect there
is no way to them at all. Small tables with data files and deletes of one spec are rewritten this way, and through
Connect larger ones too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from icewright.adapters.engines.arrow.equality import misjudged_keys
from icewright.adapters.engines.arrow.live_deletes import other_columns
from icewright.adapters.engines.arrow.live_files import REQUIRED_FIELDS, ListedFile
from icewright.adapters.engines.arrow.sizes import TargetSizes, groups_within
from icewright.adapters.engines.arrow.small_table_commit import PlannedTable, SmallTableCommit
from icewright.adapters.engines.arrow.small_table_limits import manifest_reader, same_partitions, unsupported_feature
from icewright.adapters.engines.arrow.table import FileGroup, RewrittenGroup
from icewright.adapters.engines.arrow.tasks import SortField, sort_fields
from icewright.adapters.engines.arrow.types import single_value
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.core.errors import MetadataUnreadable
from icewright.core.ordering import Ordering
from icewright.core.paths import data_folder
from icewright.core.schemas import columns
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import ManifestContent, TableMetadata
from icewright.ports import Catalog, Clock, TableFiles


@dataclass(kw_only=True)
class SmallTable(PlannedTable):
    """A table that the service plans and commits, created by `small_table`."""

    storage_properties: Callable[[], Mapping[str, str]]  # FileIO properties for files that are not local

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
        chosen = {action.path for action in candidates}
        groups: dict[str, list[ListedFile]] = {}
        for file in self.live_data(self.listed):
            if file.path in chosen:
                groups.setdefault(file.partition, []).append(file)
        if sum(map(len, groups.values())) != len(candidates):
            raise MetadataUnreadable(f"{self.base.metadata_location} was read twice with different contents")
        sizes = TargetSizes(*(int(step.options[f"{name}-file-size-bytes"]) for name in ("target", "min", "max")))
        deletes = self.live_deletes(self.listed)
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
        """Replace the files of the groups by their outputs, in one `replace` snapshot; see `SmallTableCommit`."""
        SmallTableCommit(self, groups, job_id, starting_sequence).run()

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
        data, deletes = self.live_data(self.listed), self.live_deletes(self.listed)
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
    table = SmallTable(
        files=files,
        clock=clock,
        catalog=catalog,
        base=base,
        planned=planned,
        listed=listed,
        app_id=app_id,
        data=data,
        deletes=deletes,
        drop_dangling=step.options.get("remove-dangling-deletes") == "true",
        has_jvm=has_jvm,
        storage_properties=storage_properties,
    )
    return table if table.is_plain_parquet() else None
