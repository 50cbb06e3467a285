"""Equality deletes become deletion vectors (format v3) or position deletes (v2), in the service and without Spark.

The commit is of operation `overwrite`, though no row changes. Rewrites of other tools that began before an equality
delete look for positions of the files that they replace among overwrites and deletes alone. They would not see a
`replace`, and their outputs, which have the sequence number of before, would bring the deleted rows back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete, LiveFiles, other_columns
from icewright.adapters.engines.arrow.live_files import with_totals
from icewright.adapters.engines.arrow.opening import Opener, refusing, service_opener
from icewright.adapters.engines.arrow.position_outputs import PositionOutputs
from icewright.adapters.engines.arrow.position_scan import PositionScan
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.service.manifest_files import DELETED, EQUALITY_DELETES, Entry
from icewright.adapters.engines.service.replacing import Replacing, undone_unless_committed
from icewright.core.ancestry import ancestors
from icewright.core.errors import CommitConflict, FileMissing, InvariantViolated, TableReplaced, UnsupportedTable
from icewright.core.policy import Operation
from icewright.core.runs import JOB_ID, FileAction, Outcome, backoff, committed, skipped
from icewright.core.schemas import columns
from icewright.core.steps import ConvertEqualityDeletes
from icewright.core.table import FORMAT_V3, ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.core.words import count
from icewright.ports import Catalog, Clock, StepRequest, TableFiles
from icewright.ports.work import progress

ATTEMPTS = 10  # of the commit, each on top of what writers have committed since the one before
UNSUPPORTED = "equality_deletes_unsupported"


@dataclass(frozen=True)
class ConvertInService:
    """Runs the conversion of equality deletes."""

    files: TableFiles
    clock: Clock

    def run(self, catalog: Catalog, request: StepRequest, step: ConvertEqualityDeletes) -> Outcome:
        """Convert the equality deletes, or list them. Raises `CommitConflict` when the table changed too often."""
        chosen = self.files.candidates(request.base, step)
        if request.base.current_snapshot is None or not chosen:
            return skipped(Operation.REWRITE_DELETES, "no equality deletes to convert")
        if request.dry_run:
            summary = f"would convert {len(chosen)} equality delete files"
            return committed(Operation.REWRITE_DELETES, summary, {"files_rewritten": len(chosen)}, chosen)
        conversion = Conversion(self.files, self.clock, catalog, request, step, chosen)
        with refusing(request.base.ref, "the equality deletes stay", UNSUPPORTED):
            conversion.run()
        outputs = conversion.outputs
        metrics = {
            "files_rewritten": len(chosen),
            "files_written": outputs.count,
            "rows_marked": outputs.rows,
            "bytes_written": outputs.written_bytes,
        }
        return committed(
            Operation.REWRITE_DELETES,
            f"converted {count(len(chosen), 'equality delete file')} into {outputs.count} {outputs.kind} "
            f"({count(outputs.rows, 'row')})",
            metrics,
            chosen,
        )


@dataclass
class Conversion:
    """The conversion of some equality delete files, planned on the request's base."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    request: StepRequest
    step: ConvertEqualityDeletes
    chosen: Sequence[FileAction]
    _live: LiveFiles = field(init=False)
    _scan: PositionScan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._live = LiveFiles(self.files, self.base, self._check)

    @property
    def base(self) -> TableMetadata:
        """Return the table as it was when the conversion was planned."""
        return self.request.base

    def run(self) -> None:
        """Find the positions and commit them, on top of what writers commit meanwhile.

        Raises `CommitConflict` after the last attempt, and where a writer took away what was planned on.
        """
        metadata = self.base
        with undone_unless_committed(lambda: self.outputs.discard()):  # noqa: PLW0108 - what they need is read late
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._commit(metadata)
                except _Replan:
                    raise
                except (CommitConflict, FileMissing) as error:  # an expiry may have deleted the metadata's files
                    now = self.catalog.load(self.base.ref)
                    if attempt == ATTEMPTS or now.metadata_location == metadata.metadata_location:
                        raise
                    self.request.on_progress({"commits_lost": attempt})
                    if isinstance(error, CommitConflict):
                        self.clock.sleep(backoff(attempt).total_seconds())
                        now = self.catalog.load(self.base.ref)
                    metadata = now
                else:
                    return

    def _commit(self, metadata: TableMetadata) -> None:
        """Commit on top of `metadata`, after reading the data files that were not there before."""
        current, listed = self._validated(metadata)
        deletes = self._live.deletes(listed)
        chosen = self._require_live(metadata, deletes)
        for spec_id in {delete.partition[0] for delete in deletes}:
            self._live.require_comparable_partitions(spec_id, listed)
        scan = self._scan = self._scan or self._new_scan(chosen)
        key_ids = frozenset(number for delete in chosen for number in delete.file.equality_ids)
        partitions = frozenset(delete.partition for delete in chosen)
        is_global = any(spec_id in self.base.global_specs for spec_id, _ in partitions)
        newest = max(delete.sequence for delete in chosen)
        data = self._live.data(listed, key_ids, newest, None if is_global else partitions)
        scan.scan(data)
        marked = {file.path: file for file in data if file.path in scan.matched}
        self._require_possible(marked)
        self.outputs.prepare(scan.matched, marked, [d for d in deletes if d.content != EQUALITY_DELETES])
        self._commit_manifests(metadata, current, listed, deletes, [*chosen, *self.outputs.replaced])

    def _commit_manifests(
        self,
        metadata: TableMetadata,
        current: Snapshot,
        listed: Sequence[ManifestFile],
        deletes: Sequence[LiveDelete],
        removed: Sequence[LiveDelete],
    ) -> None:
        """Commit manifests of delete files without the removed ones and with the new ones."""
        replacing = Replacing(self.files, self.clock, self.catalog, metadata, current, listed)
        if metadata.format_version >= FORMAT_V3 and replacing.lacks_row_ids():
            raise UnsupportedTable(
                f"{metadata.ref}: the rows have no ids since the table became format v3: any commit of a writer gives "
                "them ids, and then its equality deletes can be converted"
            )
        gone, touched = {id(delete) for delete in removed}, {delete.manifest for delete in removed}
        sequence = None  # that of the commit: the new deletes are newer than all data that they name
        entries, dropped = defaultdict[int, list[Entry]](list), defaultdict[int, list[Entry]](list)
        for output in self.outputs.made:
            writer = self._live.writer(output.partition[0], ManifestContent.DELETES, listed)
            added = writer.added(output.record, output.values, replacing.snapshot_id, sequence)
            entries[output.partition[0]].append(added)
        for delete in (d for d in deletes if d.manifest in touched and id(d) not in gone):
            entries[delete.partition[0]].append(delete.entry)
        for delete in removed:
            taken = replace(delete.entry, status=DELETED, snapshot_id=replacing.snapshot_id)
            dropped[delete.partition[0]].append(taken)
        empty = {m.path for m in listed if not m.live_files}
        self.request.check()
        with replacing.undone_unless_committed():
            for group in (entries, dropped):
                for spec_id, members in group.items():
                    writer = self._live.writer(spec_id, ManifestContent.DELETES, listed)
                    replacing.write(writer, members, replacing.manifest_bytes, max(len(e.data_file) for e in members))
            operation = "overwrite" if self.outputs.made else "replace"
            replacing.commit(touched | empty, self._summary(current, removed), operation)

    def _validated(self, metadata: TableMetadata) -> tuple[Snapshot, Sequence[ManifestFile]]:
        """Return the current snapshot and its manifests. Raises unless it comes after the planned one."""
        planned = self.base.current_snapshot_id
        if metadata.table_uuid != self.base.table_uuid:
            raise TableReplaced(f"{metadata.ref} was replaced by another table during the conversion")
        current = metadata.current_snapshot
        if current is None or planned not in {s.snapshot_id for s in ancestors(metadata, current.snapshot_id)}:
            raise _Replan(f"{metadata.ref}: the snapshot that the conversion was planned on is not in main's history")
        if metadata.schema != self.base.schema or metadata.format_version != self.base.format_version:
            raise _Replan(f"{metadata.ref}: a writer changed the schema or the format during the conversion")
        return current, self.files.manifests(current)

    def _require_live(self, metadata: TableMetadata, deletes: Sequence[LiveDelete]) -> list[LiveDelete]:
        """Return the chosen equality deletes. Raises when a writer has dropped one: perhaps its rows are to return."""
        paths = {file.path for file in self.chosen}
        live = [delete for delete in deletes if delete.content == EQUALITY_DELETES and delete.path in paths]
        if {delete.path for delete in live} != paths:
            raise _Replan(f"{metadata.ref}: a writer dropped equality deletes that the conversion has read")
        if encrypted := next((d.path for d in live if d.is_encrypted or d.format != "PARQUET"), None):
            raise UnsupportedByArrow(f"{encrypted} is encrypted or not Parquet")
        return live

    def _require_possible(self, marked: Mapping[str, LiveData]) -> None:
        scan = self._scan
        for path, file in marked.items() if scan is not None else ():
            if (last := scan.matched[path].max()) >= file.records:  # type: ignore[union-attr] # see above
                raise InvariantViolated(f"{self.base.ref}: position {last} is beyond the {file.records} rows of {path}")

    def _new_scan(self, chosen: Sequence[LiveDelete]) -> PositionScan:
        return PositionScan(self._layout, self._opener, self.base, chosen, self._check)

    @cached_property
    def outputs(self) -> PositionOutputs:
        """Return the new delete files."""
        return PositionOutputs(self.files, self.base, self._layout, self._opener, self._check)

    @cached_property
    def _layout(self) -> Layout:
        """Return how the table's files are read; nothing is written by it."""
        older = other_columns(self.files, self.base, {n for n, _, _ in columns(self.base.schema)})
        return Layout.for_reading(self.base.schema, older, self.base.properties, self.step.memory_bytes)

    @cached_property
    def _opener(self) -> Opener:
        return service_opener(self.files, self.base.location)

    def _check(self) -> None:
        self.request.check()
        progress()

    def _summary(self, current: Snapshot, removed: Sequence[LiveDelete]) -> Mapping[str, str]:
        """Return the summary of the snapshot that has the new delete files and not those that were removed."""
        made, vectors = self.outputs.made, [delete for delete in removed if delete.is_vector]
        equality = [delete for delete in removed if delete.content == EQUALITY_DELETES]
        positions = [delete for delete in removed if delete.content != EQUALITY_DELETES]
        kind = "dvs" if self.outputs.writes_vectors else "position-delete-files"
        counts = {
            "added-delete-files": len(made),
            f"added-{kind}": len(made),
            "added-position-deletes": sum(output.rows for output in made),
            "added-files-size": sum(output.bytes for output in made),
            "removed-delete-files": len(removed),
            "removed-equality-delete-files": len(equality),
            "removed-equality-deletes": sum(delete.entry.records for delete in equality),
            "removed-position-delete-files": len(positions) - len(vectors),
            "removed-dvs": len(vectors),
            "removed-position-deletes": sum(delete.entry.records for delete in positions),
            "removed-files-size": sum(delete.stored_bytes for delete in removed),
            "changed-partition-count": len({delete.partition for delete in removed} | {o.partition for o in made}),
        }
        return {**with_totals({name: n for name, n in counts.items() if n}, current), JOB_ID: self.request.job_id}


class _Replan(CommitConflict):
    """The conversion has to be planned again from the table as it is now."""
