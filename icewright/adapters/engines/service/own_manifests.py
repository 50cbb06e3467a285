"""Manifests that a lost manifest list named first: those that its snapshot wrote.

Each entry states the id of the snapshot that added its file, so that a manifest tells whose it is. What failed attempts
left behind has other counts, or makes the counts of the snapshot's summary wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from icewright.adapters.engines.service.avro_records import (
    VERSION_SEQUENCES,
    decoded,
    names_by_id,
    plain_schema,
    readable,
)
from icewright.adapters.engines.service.manifest_files import ADDED, WrittenManifest, partition_schema, read_manifest
from icewright.adapters.engines.service.partition_bounds import partition_fields, summaries
from icewright.core.errors import FolderMissing, MetadataUnreadable
from icewright.core.paths import key, metadata_folder
from icewright.core.table import Snapshot, TableMetadata
from icewright.ports import TableFiles


def avro_files(files: TableFiles, base: TableMetadata) -> Mapping[str, int]:
    """Return the Avro files of the table's metadata folder with their bytes, but for manifest lists."""
    lists = {key(snapshot.manifest_list or "") for snapshot in base.snapshots}
    found: dict[str, int] = {}
    try:
        for batch in files.listing(metadata_folder(base.location, base.properties)):
            frame = pl.DataFrame(pl.from_arrow(batch)).filter(pl.col("path").str.ends_with(".avro"))
            found |= {path: size for path, size in frame.select("path", "bytes").iter_rows() if key(path) not in lists}
    except FolderMissing:
        pass
    return found


def added_by(
    files: TableFiles, base: TableMetadata, snapshot: Snapshot, candidates: Mapping[str, int]
) -> list[WrittenManifest]:
    """Return the candidates that hold data files which the snapshot added, and nothing else, as a list names them."""
    found = []
    for path, length in sorted(candidates.items()):
        try:
            row = _row(files, base, snapshot, path)
        except MetadataUnreadable:
            continue  # a manifest list, or what a writer did not end
        if row is not None:
            found.append(WrittenManifest(path, row[504], {**row, 501: length}))
    return found


def _row(files: TableFiles, base: TableMetadata, snapshot: Snapshot, path: str) -> dict[int, Any] | None:
    manifest = read_manifest(files, path)
    with readable(path):
        schema, data_file = manifest.shape.schema, manifest.shape.data_file
        names, inner = names_by_id(schema), names_by_id(data_file)
        spec_id = int(manifest.header["partition-spec-id"])
        entries = decoded(plain_schema(schema), manifest.records, manifest.body)
        values = [entry[names[2]] for entry in entries]
        theirs = all(entry[names[0]] == ADDED and entry[names[1]] == snapshot.snapshot_id for entry in entries)
        sequences = {entry.get(names.get(3, "")) for entry in entries} - {None, snapshot.sequence_number}
        deletes = any(value.get(inner.get(134, "")) for value in values)
        if not entries or not theirs or sequences or deletes or spec_id not in {spec.spec_id for spec in base.specs}:
            return None
        partitions = {tuple(value[inner[102]].values()) for value in values}
        return {
            500: path,
            502: spec_id,
            517: 0,
            516: snapshot.sequence_number if base.format_version >= VERSION_SEQUENCES else 0,
            504: len(entries),
            512: sum(value[inner[103]] for value in values),
            **dict.fromkeys((505, 506, 513, 514), 0),
            507: summaries(partition_fields(partition_schema(data_file)), partitions),
        }
