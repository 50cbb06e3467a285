"""Manifests that a lost manifest list named first: those that its snapshot wrote.

Each entry states the id of the snapshot that added its file, so that a manifest tells whose it is. What failed attempts
left behind has other counts, or makes the counts of the snapshot's summary wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from icewright.adapters.engines.service.avro_records import decoded, names_by_id, plain_schema, translating_errors
from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.manifest_bytes import ManifestBytes, manifest_of
from icewright.adapters.engines.service.manifest_files import ADDED, WrittenManifest, partition_schema
from icewright.adapters.engines.service.partition_bounds import partition_fields, summaries
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import key, metadata_folder
from icewright.core.table import FORMAT_V2, Snapshot, TableMetadata
from icewright.ports import TableFiles


def avro_files(files: TableFiles, base: TableMetadata) -> Mapping[str, int]:
    """Return the Avro files of the table's metadata folder with their bytes, but for manifest lists."""
    lists = {key(snapshot.manifest_list or "") for snapshot in base.snapshots}
    sizes: dict[str, int] = {}
    for frame in files_below(files, metadata_folder(base.location, base.properties)):
        avro = frame.filter(pl.col("path").str.ends_with(".avro")).select("path", "bytes")
        sizes |= {path: size for path, size in avro.iter_rows() if key(path) not in lists}
    return sizes


def added_by(
    files: TableFiles, base: TableMetadata, snapshot: Snapshot, candidates: Mapping[str, int]
) -> list[WrittenManifest]:
    """Return the candidates that hold data files which the snapshot added, and nothing else, as a list names them."""
    manifests = []
    paths = sorted(candidates)
    for path, file in zip(paths, files.avros(paths), strict=True):
        try:
            row = _row(base, snapshot, path, manifest_of(path, file))
        except MetadataUnreadable:
            continue  # a manifest list, or what a writer did not end
        if row is not None:
            manifests.append(
                WrittenManifest(path, row[ids.ADDED_FILES], {**row, ids.MANIFEST_LENGTH: candidates[path]})
            )
    return manifests


def _row(base: TableMetadata, snapshot: Snapshot, path: str, manifest: ManifestBytes) -> dict[int, Any] | None:
    with translating_errors(path):
        schema, data_file = manifest.shape.schema, manifest.shape.data_file
        names, inner = names_by_id(schema), names_by_id(data_file)
        spec_id = int(manifest.header["partition-spec-id"])
        entries = decoded(plain_schema(schema), manifest.records, manifest.body)
        values = [entry[names[ids.DATA_FILE]] for entry in entries]
        statuses = {(entry[names[ids.STATUS]], entry[names[ids.SNAPSHOT_ID]]) for entry in entries}
        sequences = {entry.get(names.get(ids.SEQUENCE_NUMBER, "")) for entry in entries}
        deletes = any(value.get(inner.get(ids.CONTENT, "")) for value in values)
        if statuses != {(ADDED, snapshot.snapshot_id)} or sequences - {None, snapshot.sequence_number} or deletes:
            return None
        if spec_id not in base.specs_by_id:
            return None
        partitions = {tuple(value[inner[ids.PARTITION]].values()) for value in values}
        return {
            ids.MANIFEST_PATH: path,
            ids.MANIFEST_SPEC_ID: spec_id,
            ids.MANIFEST_CONTENT: 0,
            ids.MIN_SEQUENCE_NUMBER: snapshot.sequence_number if base.format_version >= FORMAT_V2 else 0,
            ids.ADDED_FILES: len(entries),
            ids.ADDED_ROWS: sum(value[inner[ids.RECORD_COUNT]] for value in values),
            **dict.fromkeys((ids.EXISTING_FILES, ids.DELETED_FILES, ids.EXISTING_ROWS, ids.DELETED_ROWS), 0),
            ids.PARTITION_SUMMARIES: summaries(partition_fields(partition_schema(data_file)), partitions),
        }
