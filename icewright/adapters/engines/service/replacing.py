"""A snapshot of the same rows under other manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service.manifest_files import Entry, ManifestWriter, WrittenManifest
from icewright.core import field_ids as ids
from icewright.core.errors import CommitStateUnknown, IcewrightError, InvariantViolated, MetadataUnreadable
from icewright.core.numbers import number_or
from icewright.core.paths import metadata_folder
from icewright.core.table import FORMAT_V2, MAIN, ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.core.verify import identity_violations, ref_violations
from icewright.ports import AddSnapshot, Catalog, Change, Clock, TableFiles

_MANIFEST_BYTES = 8 << 20  # Iceberg's default of commit.manifest.target-size-bytes


@contextmanager
def undone_unless_committed(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was written for a commit when the block fails, unless the table may refer to it."""
    try:
        yield
    except (CommitStateUnknown, InvariantViolated):
        raise
    except Exception:
        undo()
        raise


def commit(catalog: Catalog, base: TableMetadata, change: Change) -> TableMetadata:
    """Commit a change. After a bug, of ours or of a library, whether it landed is unknown: files may be in use."""
    try:
        return catalog.commit(base, change)
    except IcewrightError:
        raise
    except Exception as error:
        raise CommitStateUnknown(f"{base.ref}: unexpected {type(error).__name__} at the commit: {error}") from error


@dataclass
class Replacing:
    """The next snapshot of a branch, on top of exactly `base`; its `current` snapshot lists the manifests `listed`."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    current: Snapshot
    listed: Sequence[ManifestFile]
    branch: str = MAIN
    written: list[WrittenManifest] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.snapshot_id = lists.new_snapshot_id(self.base)
        self._folder = metadata_folder(self.base.location, self.base.properties)
        self._list = f"{self._folder}/snap-{self.snapshot_id}-1-{uuid4()}.avro"
        path = self.current.manifest_list
        self._rows = lists.read_list(self.files, path or "", self.base.format_version)
        if [m.path for m in self.listed] != [self._rows.value(row, ids.MANIFEST_PATH) for row in self._rows.records]:
            raise MetadataUnreadable(f"{path} was read twice, and said another thing each time")

    def undone_unless_committed(self) -> AbstractContextManager[None]:
        """Delete the new files when the block fails, unless the table may refer to them."""
        return undone_unless_committed(
            lambda: self.files.delete([self._list, *(manifest.path for manifest in self.written)], 1)
        )

    def write(
        self,
        writer: ManifestWriter,
        entries: Sequence[Entry],
        target_bytes: int,
        entry_bytes: float,
        first_row_id: int | None = None,
    ) -> None:
        """Write manifests of about `target_bytes` for entries of about `entry_bytes` each.

        `first_row_id`: any that the table has given out, without which readers pass over the row ids of entries.
        """
        per_file = max(1, int(target_bytes / max(1.0, entry_bytes)))
        for manifest in writer.write(self.files, self._folder, entries, -(-len(entries) // per_file)):
            self.written.append(replace(manifest, row={**manifest.row, ids.MANIFEST_FIRST_ROW_ID: first_row_id}))

    @property
    def manifest_bytes(self) -> int:
        """Return the bytes of a manifest that the table asks for."""
        return number_or(_MANIFEST_BYTES, self.base.properties.get("commit.manifest.target-size-bytes", ""))

    def lacks_row_ids(self) -> bool:
        """Return whether the table's manifests of data have no row ids yet, which the next commit in v3 has to give."""
        rows = self._rows
        data = (row for row in rows.records if rows.value(row, ids.MANIFEST_CONTENT) == ManifestContent.DATA)
        return any(rows.value(row, ids.MANIFEST_FIRST_ROW_ID) is None for row in data)

    def first_row_ids(self) -> Mapping[str, int | None]:
        """Return by manifest the id of the first row whose entry does not state it; None where there are no ids."""
        rows = self._rows
        return {rows.value(row, ids.MANIFEST_PATH): rows.value(row, ids.MANIFEST_FIRST_ROW_ID) for row in rows.records}

    def commit(self, dropped: Collection[str], summary: Mapping[str, str], operation: str = "replace") -> TableMetadata:
        """Commit a snapshot in which the new manifests replace the dropped ones.

        Raises `CommitConflict` when the table has changed, `InvariantViolated` when the commit did more.
        """
        base, current, rows = self.base, self.current, self._rows
        sequence = base.last_sequence_number + 1 if base.format_version >= FORMAT_V2 else 0
        retained = [row for row in rows.records if rows.value(row, ids.MANIFEST_PATH) not in dropped]
        content = lists.manifest_list(
            rows, retained, self.written, base, self.snapshot_id, current.snapshot_id, sequence
        )
        counts = {"created": len(self.written), "kept": len(retained), "replaced": len(dropped)}
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": current.snapshot_id,
            # a writer's clock may be ahead: Iceberg's library loads no table whose times go back
            "timestamp-ms": max(
                *(int(one.timestamp() * 1000) for one in (self.clock.now(), base.last_updated)),
                int(current.timestamp.timestamp() * 1000) + 1,
            ),
            "manifest-list": self._list,
            "summary": {"operation": operation} | {f"manifests-{n}": str(c) for n, c in counts.items()} | {**summary},
            "schema-id": base.schema.get("schema-id", 0),
        }
        if base.format_version >= FORMAT_V2:
            snapshot["sequence-number"] = sequence
        self.files.write(self._list, content)
        after = commit(self.catalog, base, AddSnapshot(snapshot, self.branch))
        violations = identity_violations(base, after) + ref_violations(base, after, [self.branch])
        if violations:
            raise InvariantViolated(f"{base.ref}: replacing manifests broke the table: {'; '.join(violations)}")
        return after
