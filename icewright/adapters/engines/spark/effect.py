"""What a rewrite did to a table, read back from the table itself; and what a failed one left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from icewright.adapters.engines.service.reachable import reached, unreached
from icewright.core.partitions import PartitionKey, partition_key, partition_name, partition_text
from icewright.core.runs import FileFate, PartitionChange
from icewright.core.table import Snapshot, TableMetadata, metadata_folder
from icewright.ports import Files

_APPLICATION = "app-id"  # in the summary of every snapshot that Spark makes
_ADDED, _DELETED = 1, 2
_KINDS = ("data", "position deletes", "equality deletes")
LEFT_BEHIND = "output of a failed rewrite"


@dataclass(frozen=True)
class Effect:
    """The commits of one application to one table since `base`: a job holds its table alone."""

    snapshots: tuple[Snapshot, ...]
    removed: tuple[FileFate, ...]
    changes: tuple[PartitionChange, ...]
    touched: frozenset[PartitionKey]  # whose data files were rewritten
    data_files_in: int
    data_files_out: int
    data_bytes_in: int

    def count(self, name: str) -> int:
        """The sum of what the summaries say under the name."""
        return sum(int(s.summary.get(name, "0")) for s in self.snapshots)

    @property
    def bins(self) -> int:
        """Partitions that commits changed: Iceberg plans a file group for each."""
        rewrites = [s for s in self.snapshots if "deleted-data-files" in s.summary]  # else dangling deletes alone
        return sum(int(s.summary.get("changed-partition-count", "0")) for s in rewrites)


def effect(
    files: Files, base: TableMetadata, after: TableMetadata, app_id: str, operations: Collection[str] = ("replace",)
) -> Effect:
    """Read from the manifests that the commits themselves wrote. Raises what reading raises."""
    mine = tuple(
        s
        for s in after.snapshots
        if s.snapshot_id not in base.by_id and s.operation in operations and s.summary.get(_APPLICATION) == app_id
    )
    removed: dict[str, FileFate] = {}
    counts = {name: Counter[PartitionKey]() for name in ("files_in", "bytes_in", "files_out", "bytes_out")}
    for snapshot in mine:
        own = [m for m in files.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
        for row in files.entries([m for m in own if m.deleted_files or m.added_files]).to_pylist():
            if row["snapshot_id"] != snapshot.snapshot_id or row["status"] not in (_ADDED, _DELETED):
                continue
            way = "in" if row["status"] == _DELETED else "out"
            if way == "in":
                kind = "deletion vectors" if row["format"] == "PUFFIN" else _KINDS[row["content"]]
                removed[row["path"]] = FileFate(row["path"], row["bytes"], kind)
            if row["content"] == 0:
                key = partition_key(after.spec(row["spec_id"]), row["partition"])
                counts[f"files_{way}"][key] += 1
                counts[f"bytes_{way}"][key] += row["bytes"]
    keys = sorted(counts["files_in"].keys() | counts["files_out"].keys(), key=repr)
    return Effect(
        snapshots=mine,
        removed=tuple(removed[path] for path in sorted(removed)),
        changes=tuple(
            PartitionChange(
                partition_name(after, key),
                f"{key[0]} {partition_text(key[1])}",
                *(counts[name][key] for name in ("files_in", "bytes_in", "files_out", "bytes_out")),
            )
            for key in keys
        ),
        touched=frozenset(counts["files_in"]),
        data_files_in=counts["files_in"].total(),
        data_files_out=counts["files_out"].total(),
        data_bytes_in=counts["bytes_in"].total(),
    )


def left_behind(files: Files, now: TableMetadata, since: datetime) -> Sequence[FileFate]:
    """Files written since then that nothing of the table reaches.

    Outputs of a rewrite that failed, and perhaps of a writer that has yet to commit: a record, not a list to delete.
    """
    metadata = metadata_folder(now.location, now.properties) + "/"
    found = [
        frame.filter(pl.col("modified") >= since, ~pl.col("path").str.contains(metadata, literal=True))
        for batch in files.listing(now.location)
        if (frame := pl.DataFrame(pl.from_arrow(batch))).height
    ]
    if not any(frame.height for frame in found):
        return ()
    young = pl.concat(found).select("path", "bytes", kind=pl.lit(LEFT_BEHIND))
    left = unreached(young, reached(files, now), files.canonical)
    return [FileFate(path, size, kind) for path, size, kind in left.sort("path").rows()]
