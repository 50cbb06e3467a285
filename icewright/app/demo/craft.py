"""Writes the history of a format v2 table straight to disk, as its writers would have left it.

Hundreds of commits through a client take minutes; this takes a second and can say when each one was.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from icewright.app.demo.files import WrittenFile, avro_schema, entry_schema, millis, set_modified, write_file
from icewright.app.demo.lake import Lake

_DATA, _EQUALITY_DELETES = 0, 2  # a file's content, in the words of the spec
_ADDED, _DELETED = 1, 2  # a manifest entry's status


@dataclass(frozen=True, slots=True)
class CraftedManifest:
    """A manifest on disk: its row in manifest lists, and the files of its entries."""

    row: Mapping[str, Any]
    files: tuple[WrittenFile, ...]


class Craft:
    """Collects the snapshots of a new table; `publish` writes its metadata and registers it with the catalog."""

    def __init__(
        self,
        lake: Lake,
        name: str,
        schema: Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] | None = None,
        salt: str = "",
    ) -> None:
        self.lake = lake
        self.name = name
        self.random = lake.random(name + salt)
        self.folder = lake.folder(name)
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "metadata").mkdir(exist_ok=True)
        self.properties = dict(properties or {})
        self._metadata = new_table_metadata(
            schema, spec, UNSORTED_SORT_ORDER, f"file://{self.folder}", {"format-version": "2"}, self.uuid()
        )
        self.schema = self._metadata.schema()
        self.spec = self._metadata.spec()
        self.refs: dict[str, dict[str, Any]] = {}
        self.snapshots: list[dict[str, Any]] = []
        self._partition_type = self.spec.partition_type(self.schema)
        self._entry_schema = entry_schema(self._partition_type)
        self._list_schema = avro_schema(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")
        self._live: list[CraftedManifest] = []
        self._totals = Counter[str]()
        self._sequence = 0
        self._parent: int | None = None

    def uuid(self) -> uuid.UUID:
        """Return a fresh identifier, the same in every build."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def data(self, columns: Mapping[str, Sequence[Any]], **partition: Any) -> WrittenFile:
        """Write a data file of one partition; it is not part of the table before a commit adds it."""
        return self._write(columns, self.schema, partition, _DATA, None)

    def equality_deletes(self, columns: Mapping[str, Sequence[Any]]) -> WrittenFile:
        """Write a file that deletes the older rows whose values in these columns are equal."""
        fields = [self.schema.find_field(column) for column in columns]
        ids = [field.field_id for field in fields]
        return self._write(columns, Schema(*fields), {}, _EQUALITY_DELETES, ids)

    def _write(
        self,
        columns: Mapping[str, Sequence[Any]],
        schema: Schema,
        partition: Mapping[str, Any],
        content: int,
        equality_ids: list[int] | None,
    ) -> WrittenFile:
        folder = self.folder / "data"
        if partition:
            folder /= self.spec.partition_to_path(Record(*partition.values()), self.schema)
            folder.mkdir(exist_ok=True)
        path = folder / f"00000-{self.uuid()}.parquet"
        return write_file(
            path,
            f"file://{path}",
            columns,
            schema,
            {
                "content": content,
                "partition": dict(partition),
                "equality_ids": equality_ids,
                "sort_order_id": None if equality_ids else 0,
            },
        )

    def commit(
        self,
        at: datetime,
        added: Sequence[WrittenFile],
        *,
        replaced: CraftedManifest | None = None,
        deletes: Sequence[WrittenFile] = (),
        expired: bool = False,
    ) -> CraftedManifest:
        """Commit data files and delete files, taking out all files that an earlier commit added.

        A commit that is `expired` already leaves its files to the later ones, but no snapshot of its own.
        """
        self._sequence += 1
        snapshot = self.random.getrandbits(62) | 1
        manifest = self._manifest(at, snapshot, _ADDED, added)
        removed = replaced.files if replaced else ()
        fresh = [manifest]
        if replaced:
            fresh.append(self._manifest(at, snapshot, _DELETED, removed, replaced.row["sequence_number"]))
        if deletes:
            fresh.append(self._manifest(at, snapshot, _ADDED, deletes))
        # an emptied manifest is gone from the next list on, as Iceberg's writers have it
        self._live = [m for m in self._live if m is not replaced and not m.row["deleted_files_count"]] + fresh
        for file in (*added, *deletes):
            set_modified(file.path, millis(at))
        summary = self._summary(added, removed, deletes)
        if not expired:
            self._snapshot(at, snapshot, summary)
        self._parent = snapshot
        return manifest

    def _manifest(
        self, at: datetime, snapshot: int, status: int, files: Sequence[WrittenFile], sequence: int | None = None
    ) -> CraftedManifest:
        content = int(files[0].record["content"] != _DATA)
        path = self.folder / "metadata" / f"{self.uuid()}-m0.avro"
        entries = [
            {
                "status": status,
                "snapshot_id": snapshot,
                "sequence_number": sequence,  # none is inherited from the manifest list
                "file_sequence_number": sequence,
                "data_file": file.record,
            }
            for file in files
        ]
        header = {
            "schema": self.schema.model_dump_json(),
            "partition-spec": json.dumps([f.model_dump(by_alias=True, mode="json") for f in self.spec.fields]),
            "partition-spec-id": str(self.spec.spec_id),
            "format-version": "2",
            "content": "deletes" if content else "data",
        }
        self._avro(path, self._entry_schema, entries, header, at)
        rows = sum(file.rows for file in files)
        row = {
            "manifest_path": f"file://{path}",
            "manifest_length": path.stat().st_size,
            "partition_spec_id": self.spec.spec_id,
            "content": content,
            "sequence_number": self._sequence,
            "min_sequence_number": sequence or self._sequence,
            "added_snapshot_id": snapshot,
            "added_files_count": len(files) if status == _ADDED else 0,
            "existing_files_count": 0,
            "deleted_files_count": len(files) if status == _DELETED else 0,
            "added_rows_count": rows if status == _ADDED else 0,
            "existing_rows_count": 0,
            "deleted_rows_count": rows if status == _DELETED else 0,
            "partitions": self._bounds(files),
        }
        return CraftedManifest(row, tuple(files))

    def _bounds(self, files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
        bounds = []
        for field in self._partition_type.fields:
            values = [file.record["partition"][field.name] for file in files]
            kind = field.field_type
            if not isinstance(kind, PrimitiveType):
                raise TypeError(kind)
            bounds.append(
                {
                    "contains_null": False,
                    "contains_nan": False,
                    "lower_bound": to_bytes(kind, min(values)),
                    "upper_bound": to_bytes(kind, max(values)),
                }
            )
        return bounds

    def _avro(self, path: Path, schema: Any, records: Sequence[Any], header: Mapping[str, str], at: datetime) -> None:  # noqa: ANN401 - fastavro's
        with path.open("wb") as out:
            marker = self.random.randbytes(16)
            fastavro.writer(out, schema, records, codec="deflate", metadata=dict(header), sync_marker=marker)
        set_modified(path, millis(at))

    def _summary(
        self, added: Sequence[WrittenFile], removed: Sequence[WrittenFile], deletes: Sequence[WrittenFile]
    ) -> dict[str, str]:
        facts = {
            "added-data-files": len(added),
            "added-records": sum(file.rows for file in added),
            "added-files-size": sum(file.size for file in (*added, *deletes)),
        }
        if removed:
            facts["deleted-data-files"] = len(removed)
            facts["deleted-records"] = sum(file.rows for file in removed)
            facts["removed-files-size"] = sum(file.size for file in removed)
        if deletes:
            facts["added-delete-files"] = facts["added-equality-delete-files"] = len(deletes)
            facts["added-equality-deletes"] = sum(file.rows for file in deletes)
        totals = self._totals
        totals["data-files"] += len(added) - len(removed)
        totals["records"] += sum(file.rows for file in added) - sum(file.rows for file in removed)
        totals["files-size"] += sum(f.size for f in (*added, *deletes)) - sum(f.size for f in removed)
        totals["delete-files"] += len(deletes)
        totals["equality-deletes"] += sum(file.rows for file in deletes)
        totals["position-deletes"] += 0
        operation = "overwrite" if removed or deletes else "append"
        texts = facts | {f"total-{counter}": count for counter, count in totals.items()}
        return {"operation": operation} | {key: str(count) for key, count in texts.items()}

    def _snapshot(self, at: datetime, snapshot: int, summary: Mapping[str, str]) -> None:
        path = self.folder / "metadata" / f"snap-{snapshot}-1-{self.uuid()}.avro"
        header = {
            "snapshot-id": str(snapshot),
            "parent-snapshot-id": "null" if self._parent is None else str(self._parent),
            "sequence-number": str(self._sequence),
            "format-version": "2",
        }
        self._avro(path, self._list_schema, [m.row for m in self._live], header, at)
        document = {
            "snapshot-id": snapshot,
            "sequence-number": self._sequence,
            "timestamp-ms": millis(at),
            "manifest-list": f"file://{path}",
            "summary": summary,
            "schema-id": self.schema.schema_id,
        }
        self.snapshots.append(document if self._parent is None else document | {"parent-snapshot-id": self._parent})

    def fit_target(self) -> None:
        """Make the live data files as large as the table wants its files."""
        largest = max(file.size for manifest in self._live for file in manifest.files)
        self.properties["write.target-file-size-bytes"] = str(-(-largest // 1024) * 1024)

    def publish(self, *, register: bool = True) -> Path:
        """Write the metadata file and, unless `register` is false, register the table with the catalog."""
        last = self.snapshots[-1]
        document = json.loads(self._metadata.model_dump_json()) | {
            "last-sequence-number": self._sequence,
            "last-updated-ms": last["timestamp-ms"],
            "current-snapshot-id": last["snapshot-id"],
            "properties": self.properties,
            "snapshots": self.snapshots,
            "snapshot-log": [{key: s[key] for key in ("snapshot-id", "timestamp-ms")} for s in self.snapshots],
            "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}} | self.refs,
        }
        path = self.folder / "metadata" / f"{self._sequence:05d}-{self.uuid()}.metadata.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        set_modified(path, last["timestamp-ms"])
        if register:
            self.lake.catalog.register_table(self.lake.identifier(self.name), f"file://{path}")
        return path
