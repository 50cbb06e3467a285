"""The effect of a rewrite on a table, read back from the table, and the uncommitted files of a failed one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from icewright.adapters.engines.service.manifest_files import ADDED, DELETED
from icewright.adapters.engines.service.reachable import CONTENT_KINDS, reached, unreached
from icewright.core.partitions import PartitionKey, partition_key, partition_name, partition_text
from icewright.core.paths import metadata_folder
from icewright.core.runs import FileAction, PartitionChange
from icewright.core.table import Snapshot, TableMetadata
from icewright.core.writer_state import summary_number
from icewright.ports import TableFiles

_APPLICATION = "app-id"  # in the summary of every snapshot that Spark makes
_COUNTS = ("files_in", "bytes_in", "files_out", "bytes_out")
_ENTRIES = pl.Schema(
    {
        "status": pl.Int8,
        "content": pl.Int8,
        "path": pl.String,
        "format": pl.String,
        "bytes": pl.Int64,
        "spec_id": pl.Int32,
        "partition": pl.String,
    }
)
_CHECKSUM = r"/\.[^/]*\.crc$"  # which Hadoop puts beside local files
LEFT_BEHIND = "output of a failed rewrite"


@dataclass(frozen=True)
class Effect:
    """The commits that one application made to one table since `base`; the job's lease excludes other jobs."""

    snapshots: tuple[Snapshot, ...]
    removed: tuple[FileAction, ...]
    changes: tuple[PartitionChange, ...]
    touched: frozenset[PartitionKey]  # partitions whose data files were rewritten
    live_entries: int  # in the manifests that the commits wrote

    @property
    def data_files_in(self) -> int:
        """Return the number of data files that the commits removed."""
        return sum(change.files_in for change in self.changes)

    @property
    def data_files_out(self) -> int:
        """Return the number of data files that the commits added."""
        return sum(change.files_out for change in self.changes)

    @property
    def data_bytes_in(self) -> int:
        """Return the bytes of the data files that the commits removed."""
        return sum(change.bytes_in for change in self.changes)

    def count(self, name: str) -> int:
        """Return the sum of a summary field over the commits."""
        return sum(summary_number(s, name) for s in self.snapshots)

    @property
    def bins(self) -> int:
        """Return the number of partitions that the commits changed: Iceberg plans a file group for each."""
        rewrites = [s for s in self.snapshots if "deleted-data-files" in s.summary]  # else dangling deletes alone
        return sum(summary_number(s, "changed-partition-count") for s in rewrites)


def effect(
    files: TableFiles,
    base: TableMetadata,
    after: TableMetadata,
    app_id: str,
    operations: Collection[str] = ("replace",),
) -> Effect:
    """Return the effect of a step, read from the manifests of its commits. Raises what reading raises."""
    own_snapshots = tuple(
        s
        for s in after.snapshots
        if s.snapshot_id not in base.by_id and s.operation in operations and s.summary.get(_APPLICATION) == app_id
    )
    entries = pl.concat([_ENTRIES.to_frame(), *(_own_entries(files, snapshot) for snapshot in own_snapshots)])
    direction = pl.when(pl.col("status") == DELETED).then(pl.lit("in")).otherwise(pl.lit("out"))
    counted = (
        entries.filter(pl.col("content") == 0)
        .group_by("spec_id", "partition", direction=direction)
        .agg(files=pl.len(), bytes=pl.col("bytes").sum())
    )
    removed = entries.filter(pl.col("status") == DELETED).unique("path").sort("path")
    vector = pl.col("format") == "PUFFIN"
    kind = pl.when(vector).then(pl.lit("deletion vectors")).otherwise(pl.col("content").replace_strict(CONTENT_KINDS))
    counts: dict[PartitionKey, dict[str, int]] = {}
    for spec_id, text, in_or_out, number, size in counted.rows():
        partition_counts = counts.setdefault(partition_key(after.spec(spec_id), text), dict.fromkeys(_COUNTS, 0))
        partition_counts[f"files_{in_or_out}"] += number
        partition_counts[f"bytes_{in_or_out}"] += size
    changes = [
        PartitionChange(
            partition_name(after, key), f"{key[0]} {partition_text(key[1])}", *(counts[key][name] for name in _COUNTS)
        )
        for key in sorted(counts, key=repr)
    ]
    written = [m for s in own_snapshots for m in files.manifests(s) if m.added_snapshot_id == s.snapshot_id]
    return Effect(
        snapshots=own_snapshots,
        live_entries=sum(m.live_files for m in written),
        removed=tuple(FileAction(*row) for row in removed.select("path", "bytes", kind.alias("kind")).rows()),
        changes=tuple(changes),
        touched=frozenset(key for key, partition_counts in counts.items() if partition_counts["files_in"]),
    )


def _own_entries(files: TableFiles, snapshot: Snapshot) -> pl.DataFrame:
    """Return the manifest entries that the snapshot itself added and removed."""
    own = [m for m in files.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
    table = files.entries([m for m in own if m.deleted_files or m.added_files])
    frame = pl.DataFrame(pl.from_arrow(table)).filter(pl.col("snapshot_id") == snapshot.snapshot_id)
    return frame.filter(pl.col("status").is_in([ADDED, DELETED])).select(_ENTRIES.names())


def left_behind(files: TableFiles, now: TableMetadata, since: datetime) -> Sequence[FileAction]:
    """Return files written since then that the table's metadata does not reach.

    These are outputs of a failed rewrite, and perhaps of a writer that has yet to commit: a record, not a list to
    delete.
    """
    metadata = metadata_folder(now.location, now.properties) + "/"
    entries = [
        frame.filter(
            pl.col("modified") >= since,
            ~pl.col("path").str.contains(metadata, literal=True),
            ~pl.col("path").str.contains(_CHECKSUM),
        )
        for batch in files.listing(now.location)
        if (frame := pl.DataFrame(pl.from_arrow(batch))).height
    ]
    if not any(frame.height for frame in entries):
        return ()
    young = pl.concat(entries).select("path", "bytes", kind=pl.lit(LEFT_BEHIND))
    unreachable = unreached(young, reached(files, now), files.canonical)
    return [FileAction(path, size, kind) for path, size, kind in unreachable.sort("path").rows()]
