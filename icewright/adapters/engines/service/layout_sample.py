"""A sample of a table's data files as the head of a branch, where layouts are measured; main stays as it is.

No file is copied: the branch names files that main has, so that its first rewrite alone writes data.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.manifest_bytes import read_manifest
from icewright.adapters.engines.service.manifest_files import DATA, Entry, ManifestWriter
from icewright.adapters.engines.service.reachable import of_snapshots
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.errors import Refused
from icewright.core.field_ids import FILE_PATH, FIRST_ROW_ID
from icewright.core.layout import MEASURED_ON
from icewright.core.policy import MEGABYTE
from icewright.core.runs import JOB_ID
from icewright.core.table import ManifestContent, ManifestFile, RefKind, SnapshotRef, TableMetadata
from icewright.core.words import byte_size
from icewright.ports import Catalog, Clock, SetRefs, TableFiles

_KEPT = timedelta(days=1)  # after which any engine's expiry drops the branch, should nobody else do so
_ONE_MANIFEST = 1 << 62  # bytes: more than any has


@dataclass(frozen=True)
class SampleBranch:
    """The part of a table's files that a branch has."""

    table: TableMetadata  # as the commit of the sample left it
    snapshot_id: int
    files: int
    bytes: int
    records: int
    share: float  # of the bytes of all data files


@dataclass
class LayoutSample:
    """The commits that make the branch, on top of exactly `base`."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    job_id: str

    def commit(self, limit: int) -> SampleBranch:
        """Make the branch of data files of `limit` bytes together, chosen at random, and of all deletes.

        Raises `Refused` where no file can be chosen, and `CommitConflict` when the table has changed since `base`.
        """
        head = self.base.current_snapshot
        if head is None:
            raise Refused(f"{self.base.ref} has no rows on which layouts could be measured")
        chosen, total = self._chosen(limit)
        branch = SnapshotRef(MEASURED_ON, RefKind.BRANCH, head.snapshot_id, max_ref_age=_KEPT)
        base = self.catalog.commit(self.base, SetRefs((branch,)))
        replacing = Replacing(
            self.files, self.clock, self.catalog, base, head, self.files.manifests(head), branch=MEASURED_ON
        )
        row_ids = replacing.first_row_ids()
        data = [manifest for manifest in replacing.listed if manifest.content is ManifestContent.DATA]
        sizes = [(file.bytes, file.records) for files in chosen.values() for file in files]
        size, records = sum(each for each, _ in sizes), sum(each for _, each in sizes)
        totals = {"total-data-files": len(sizes), "total-records": records}
        stated = {name: value for name, value in head.summary.items() if name.startswith("total-")}
        stated.pop("total-files-size", None)  # that of deletes is in it, which nobody has counted here
        with replacing.undone_unless_committed():
            for manifest in data:
                if manifest.path in chosen:
                    paths = {file.path for file in chosen[manifest.path]}
                    writer, entries = _entries_of(self.files, base, manifest, paths, row_ids[manifest.path])
                    replacing.write(writer, entries, _ONE_MANIFEST, 1, row_ids[manifest.path])
            summary = {**stated, **{name: str(value) for name, value in totals.items()}, JOB_ID: self.job_id}
            after = replacing.commit({manifest.path for manifest in data}, summary, "delete")
        return SampleBranch(after, replacing.snapshot_id, len(sizes), size, records, size / total)

    def _chosen(self, limit: int) -> tuple[dict[str, list[ContentFile]], int]:
        """Return files of the table's spec that together have `limit` bytes at most, by manifest, and the bytes of all.

        Raises `Refused` where files that could be chosen have less than half of the bytes: what is left is no sample,
        but the newest files of a table that is merged into larger ones, or is partitioned otherwise now.
        """
        head = of_snapshots(self.base, frozenset({self.base.current_snapshot_id or 0}))
        data = [file for file in CheckedEntries(self.files, head).content_files() if file.content == DATA]
        usable = [
            file
            for file in data
            if file.format == "PARQUET"
            and not file.is_encrypted
            and file.spec_id == self.base.default_spec_id
            and file.bytes <= limit
        ]
        total, known = (sum(file.bytes for file in files) for files in (data, usable))
        if known < max(1, total / 2):
            raise Refused(
                f"{self.base.ref}: no layout is measured, as {len(usable)} of its {len(data)} data files, with "
                f"{byte_size(known)} of {byte_size(total)}, are Parquet of the current partition spec and of "
                f"{byte_size(limit)} at most (layout.sample_mb {limit / MEGABYTE:g})"
            )
        chosen, size = defaultdict[str, list[ContentFile]](list), 0
        for file in random.Random(4).sample(usable, len(usable)):  # noqa: S311 - no secret
            if size + file.bytes <= limit:
                chosen[file.manifest].append(file)
                size += file.bytes
        return chosen, total


def _entries_of(
    files: TableFiles, base: TableMetadata, manifest: ManifestFile, paths: Collection[str], first_row_id: int | None
) -> tuple[ManifestWriter, list[Entry]]:
    """Return the entries of these files with the row ids that their manifest gives them, and a writer for them."""
    source = read_manifest(files, manifest.path)
    writer, chosen = ManifestWriter(source, base, manifest.spec_id), []
    entries = writer.entries(manifest, source)
    for entry, values in zip(entries, writer.data_files(entries), strict=True):
        numbered = entry
        if first_row_id is not None and values.get(FIRST_ROW_ID) is None:
            numbered = writer.changed(entry, {**values, FIRST_ROW_ID: first_row_id})
            first_row_id += entry.records
        if values[FILE_PATH] in paths:
            chosen.append(numbered)
    return writer, chosen
