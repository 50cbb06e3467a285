"""Small tables: planned and committed by the service, which has read their manifests anyway.

What Iceberg's planner and commit do in the JVM takes longer than rewriting a few small files, and where nothing but
data files and position deletes are concerned little of it is needed. Whatever else there is is left to Iceberg's means.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_plus

from icewright.adapters.engines.arrow.group import SortField
from icewright.adapters.engines.arrow.listed import SAID, Listed, ListedManifests, by_id, content_of
from icewright.adapters.engines.arrow.sizes import Sizes
from icewright.adapters.engines.arrow.table import Done, FileGroup
from icewright.adapters.engines.arrow.types import single_value
from icewright.adapters.engines.service.manifest_files import DELETED, Entry, ManifestWriter, read_manifest
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    MetadataUnreadable,
    TableReplaced,
)
from icewright.core.runs import JOB_ID
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata, columns
from icewright.ports import Catalog, Clock, TableFiles

_MOST_FILES = 2_000  # beyond, the JVM's part is small beside the rest
_VERSION = 2  # of the format: older ones have no sequence numbers, newer ones number their rows
_MANIFEST_BYTES = 8 << 20  # of a manifest, as Iceberg has it by default
_RETRIES, _WAIT_MS, _MOST_WAIT_MS = 4, 100, 60_000  # Iceberg's defaults of commit.retry.*
_PLACED_BY = ("write.location-provider.impl", "write.py-location-provider.impl")
_DATA, _POSITION_DELETES = 0, 1  # content of a file


@dataclass
class SmallTable:
    """A table as `base` has it. Made by `small_table` alone."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    planned: Snapshot  # its current one
    listed: Sequence[ManifestFile]  # by that
    app_id: str  # of the Spark application whose tasks write
    stores: Callable[[], Mapping[str, str]]  # by which properties files elsewhere are opened
    data: ListedManifests
    deletes: ListedManifests | None  # None: there are none
    drop_dangling: bool
    _now: TableMetadata = field(init=False)

    def __post_init__(self) -> None:
        self._now = self.base

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the properties of the table's metadata."""
        return self.base.properties

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""
        return self.base.location

    @property
    def lineage(self) -> bool:
        """Return False: rows of format v2 have no ids."""
        return False

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""
        return self.base.schema

    @property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Return None: only tables without a sort order are rewritten this way."""
        return None

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """No equality delete asks for them."""
        return {}

    def storage(self) -> Mapping[str, str]:
        """By which properties the table's files are opened."""
        return self.stores()

    def remove_dangling_deletes(self) -> None:
        """The commit itself did so."""

    def discard(self, paths: Iterable[str]) -> None:
        """Remove outputs that nobody will commit."""
        self.files.delete(list(paths), 1)

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return the files that Iceberg's planner takes, a group for each partition."""
        candidates = self.files.candidates(self.base, step)
        chosen = {fate.path for fate in candidates}
        groups: dict[str, list[Listed]] = {}
        for one in self._live_data(self.listed):
            if one.path in chosen:
                groups.setdefault(one.partition, []).append(one)
        if sum(map(len, groups.values())) != len(candidates):
            raise MetadataUnreadable(f"{self.base.metadata_location} was read twice, and said another thing each time")
        sizes = Sizes(*(int(step.options[f"{name}-file-size-bytes"]) for name in ("target", "min", "max")))
        deletes = self._live_deletes(self.listed)
        return [self._group(some, deletes, sizes) for some in groups.values()]

    def place(self, group: FileGroup, number: int) -> str:
        """In the folder of its partition, as Iceberg's default location provider has it."""
        return f"{group.planned}/{number:05d}-{uuid.uuid4()}"

    def commit(self, done: Sequence[Done], *, starting_sequence: bool, job_id: str) -> None:
        """One `replace` snapshot for the groups.

        Whoever committed meanwhile, the files must all be there still and no delete must have come. Raises
        `CommitConflict` where that is not so, and when others are quicker again and again.
        """
        retries = self._number("commit.retry.num-retries", _RETRIES)
        wait, longest = (
            self._number(f"commit.retry.{name}-wait-ms", default)
            for name, default in (("min", _WAIT_MS), ("max", _MOST_WAIT_MS))
        )
        try:
            for attempt in range(retries + 1):
                commit = self._prepared(self._now, done, job_id, starting_sequence=starting_sequence)
                try:
                    self._now = commit()
                except CommitConflict:
                    if attempt == retries:
                        raise
                    self.clock.sleep(min(wait * 2**attempt, longest) / 1000)
                    self._now = self.catalog.load(self.base.ref)
                else:
                    return
        except (CommitStateUnknown, InvariantViolated):
            raise  # the table may refer to the new files
        except Exception:
            self.discard(str(entry["file-path"]) for _, entries in done for entry in entries)
            raise

    def _number(self, name: str, default: int) -> int:
        """Return a property of the table; what is no number is as if it were not set."""
        said = self.properties.get(name, "")
        return int(said) if said.isdecimal() else default

    def _prepared(
        self, now: TableMetadata, done: Sequence[Done], job_id: str, *, starting_sequence: bool
    ) -> Callable[[], TableMetadata]:
        """Return the commit to the table as it is now. Raises `CommitConflict` where trying again would not help."""
        current, listed = self._comes_after(now)
        gone = {piece.path for group, _ in done for piece in group.files}
        live = self._live_data(listed)
        removed = [one for one in live if one.path in gone]
        if len(removed) != sum(len(group.files) for group, _ in done):
            raise CommitConflict(f"{now.ref}: a writer removed files that compaction had rewritten")
        rest = [one for one in live if one.path not in gone]
        dangling = self._dangling(listed, rest)
        replacing = Replacing(self.files, self.clock, self.catalog, now, current, listed)
        mine, sequence = replacing.snapshot_id, self.planned.sequence_number if starting_sequence else None
        like = {one.path: one.entry for one in removed}
        added = [
            self.data.writer.added(by_id(entry), like[group.files[0].path], mine, sequence)
            for group, entries in done
            for entry in entries
        ]
        self._same_rows(removed, added)
        touched = {one.manifest for one in (*removed, *dangling)}
        kept = [one.entry for one in rest if one.manifest in touched]
        dead = {m.path for m in listed if not m.live_files}  # told what an earlier snapshot removed
        summary = _summary(current, removed, dangling, [entry for _, entries in done for entry in entries])
        said = {"app-id": self.app_id, "spark.app.id": self.app_id, **summary, JOB_ID: job_id}
        target = self._number("commit.manifest.target-size-bytes", _MANIFEST_BYTES)
        each = max(len(entry.data_file) for entry in (*added, *(one.entry for one in removed)))

        def commit() -> TableMetadata:
            with replacing.undone_unless_committed():
                replacing.write(self.data.writer, [*added, *kept], target, each)
                replacing.write(self.data.writer, _as_removed(removed, mine), target, each)
                if self.deletes is not None and dangling:
                    left = [one for one in self._live_deletes(listed) if one.manifest in touched]
                    stay = [one.entry for one in left if one not in dangling]
                    replacing.write(self.deletes.writer, stay, target, each)
                    replacing.write(self.deletes.writer, _as_removed(dangling, mine), target, each)
                return replacing.commit(touched | dead, said)

        return commit

    def _same_rows(self, removed: Sequence[Listed], added: Sequence[Entry]) -> None:
        """Raise unless there are as many rows as before, but for those that the known deletes can name."""
        had, has = sum(one.entry.records for one in removed), sum(entry.records for entry in added)
        most = sum(one.entry.records for one in self._live_deletes(self.listed))
        if not 0 <= had - has <= most:
            raise InvariantViolated(
                f"{self.base.ref}: compaction wrote {has} rows of {had}, of which deletes name {most} at most; "
                "nothing was committed"
            )

    def _dangling(self, listed: Sequence[ManifestFile], rest: Sequence[Listed]) -> list[Listed]:
        """Delete files that apply to none of the data files that are left; outputs are of no delete's concern.

        A delete file names rows by the path of their file, and outputs have paths of their own.
        """
        if not self.drop_dangling:
            return []
        return [one for one in self._live_deletes(listed) if not any(one.applies_to(data) for data in rest)]

    def _comes_after(self, now: TableMetadata) -> tuple[Snapshot, Sequence[ManifestFile]]:
        """The current snapshot and its list. Raises unless the table is the planned one, with nothing not done here."""
        if now is self.base:
            return self.planned, self.listed
        if now.table_uuid != self.base.table_uuid:
            raise TableReplaced(f"{now.ref} was replaced by another table while it was compacted")
        if now.current_snapshot is None:
            raise CommitConflict(f"{now.ref}: a writer took all snapshots from main while it was compacted")
        listed = self.files.manifests(now.current_snapshot)
        why = _against(now, listed)
        if why is None and not self._knows_deletes(content_of(listed, ManifestContent.DELETES)):
            why = "rows by delete files"
        if why is not None:
            raise CommitConflict(f"{now.ref}: since compaction was planned a writer changed {why}")
        return now.current_snapshot, listed

    def _knows_deletes(self, manifests: Sequence[ManifestFile]) -> bool:
        """Return whether the plan has applied all that they delete."""
        if self.deletes is None:
            return not manifests
        known = {one.path for one in self._live_deletes(self.listed)}
        return known.issuperset(one.path for one in self.deletes.live(manifests))

    def _live_data(self, listed: Sequence[ManifestFile]) -> list[Listed]:
        return self.data.live(content_of(listed, ManifestContent.DATA))

    def _live_deletes(self, listed: Sequence[ManifestFile]) -> list[Listed]:
        return self.deletes.live(content_of(listed, ManifestContent.DELETES)) if self.deletes is not None else []

    def _group(self, some: Sequence[Listed], deletes: Sequence[Listed], sizes: Sizes) -> FileGroup:
        size = sum(one.bytes for one in some)
        files = tuple(one.piece(deletes) for one in some)
        return FileGroup(self._folder(some[0]), files, sizes.outputs(size), sizes.split(size), self._constants(some[0]))

    def plain(self) -> bool:
        """Whether there are data files and position deletes alone, plain Parquet, in folders of their partitions."""
        data, deletes = self._live_data(self.listed), self._live_deletes(self.listed)
        return all(one.plain and one.content == _DATA and self._folder(one) for one in data) and all(
            one.plain and one.content == _POSITION_DELETES for one in deletes
        )

    def _folder(self, one: Listed) -> str | None:
        """Where files of its partition belong, by the names that its writer gave the folders; None: it gave none."""
        said = ("write.data.path", "write.folder-storage.path")
        place = next((self.properties[name] for name in said if self.properties.get(name)), f"{self.location}/data")
        names = [field.name for field in self.base.spec(self.base.default_spec_id).fields]
        folders = one.path.split("/")[-len(names) - 1 : -1]
        if [unquote_plus(folder.partition("=")[0]) for folder in folders] != names:
            return None
        return "/".join((place.rstrip("/"), *folders))

    def _constants(self, one: Listed) -> Mapping[int, Any]:
        """Return the values of identity partition fields, by their source."""
        kinds = {number: kind for number, _, kind in columns(self.schema)}
        fields = self.base.spec(self.base.default_spec_id).fields
        values = zip(fields, self.data.writer.partition(one.entry.partition), strict=True)
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
    stores: Callable[[], Mapping[str, str]],
) -> SmallTable | None:
    """Return the table, if it is one of those, and the step asks for no more than is done here."""
    planned = base.current_snapshot
    if planned is None or step.user_where is not None:
        return None
    if step.bytes > int(step.options["max-file-group-size-bytes"]):  # then a partition may be several groups
        return None
    listed = files.manifests(planned)
    if _against(base, listed) is not None:
        return None
    data, deletes = (_listing(files, base, listed, content) for content in ManifestContent)
    if data is None or not data.writer.says(SAID):
        return None
    if deletes is not None and deletes.writer.partition_shape != data.writer.partition_shape:
        return None  # which deletes are of which partition could not be told for sure
    drop = step.options.get("remove-dangling-deletes") == "true"
    table = SmallTable(files, clock, catalog, base, planned, listed, app_id, stores, data, deletes, drop)
    return table if table.plain() else None


def _listing(
    files: TableFiles, base: TableMetadata, listed: Sequence[ManifestFile], content: ManifestContent
) -> ListedManifests | None:
    """Return who reads and writes manifests of this content, in the shape of the first one; None when there is none."""
    first = next(iter(content_of(listed, content)), None)
    if first is None:
        return None
    model = read_manifest(files, first)
    return ListedManifests(files, ManifestWriter(model, base, base.default_spec_id, content))


def _against(metadata: TableMetadata, listed: Sequence[ManifestFile]) -> str | None:
    """Return what there is that is not done here; None when there is nothing."""
    snapshot, properties = metadata.current_snapshot, metadata.properties
    if metadata.format_version != _VERSION or snapshot is None or snapshot.manifest_list is None:
        return "its format"
    if metadata.sort_order_id:
        return "its sort order"
    if properties.get("write.object-storage.enabled") == "true" or any(name in properties for name in _PLACED_BY):
        return "the places of its files"
    manifests = [m for m in listed if m.live_files]
    if any(m.spec_id != metadata.default_spec_id for m in manifests):
        return "its partition spec"
    return "most of its files" if sum(m.live_files for m in manifests) > _MOST_FILES else None


def _as_removed(some: Sequence[Listed], snapshot_id: int) -> list[Entry]:
    """Return their entries, as the snapshot that removes them has them."""
    return [replace(one.entry, status=DELETED, snapshot_id=snapshot_id) for one in some]


def _summary(
    current: Snapshot, removed: Sequence[Listed], dangling: Sequence[Listed], added: Sequence[Mapping[str, Any]]
) -> Mapping[str, str]:
    """Return what changed, in Iceberg's words, and the totals as far as the snapshot before knew them."""
    rows, gone = sum(int(entry["record-count"]) for entry in added), sum(one.entry.records for one in removed)
    size, freed = sum(int(e["file-size-in-bytes"]) for e in added), sum(one.bytes for one in (*removed, *dangling))
    deletes = {"delete-files": len(dangling), "position-deletes": sum(one.entry.records for one in dangling)}
    changes = {"data-files": len(added) - len(removed), "records": rows - gone, "files-size": size - freed}
    changes |= {name: -count for name, count in deletes.items()}
    totals = {
        name: str(total)
        for name, said in current.summary.items()
        if name.startswith("total-") and said.isdecimal()
        if (total := int(said) + changes.get(name.removeprefix("total-"), 0)) >= 0  # else it was wrong before
    }
    counts = {
        "added-data-files": len(added),
        "deleted-data-files": len(removed),
        "added-records": rows,
        "deleted-records": gone,
        "added-files-size": size,
        "removed-files-size": freed,
        "changed-partition-count": len({one.partition for one in removed}),
    }
    if dangling:
        counts |= {f"removed-{name}": count for name, count in deletes.items()}
    return {name: str(count) for name, count in counts.items()} | totals
