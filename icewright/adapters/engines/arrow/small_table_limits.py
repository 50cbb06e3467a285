"""Conditions under which the service plans and commits the rewrite of a table itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icewright.adapters.engines.arrow.live_files import LiveFileReader, with_live_content
from icewright.adapters.engines.service.manifest_bytes import read_manifest
from icewright.adapters.engines.service.manifest_files import ManifestWriter
from icewright.adapters.engines.service.partition_types import source_types
from icewright.core.table import ManifestContent, ManifestFile, TableMetadata
from icewright.ports import TableFiles

_MAX_FILES = 2_000  # with more files the JVM's share of the time is small
_MAX_FILES_WITHOUT_JVM = 100_000  # whose entries are in memory
_FORMAT_VERSION = 2  # version 1 has no sequence numbers, version 3 has row ids
_PLACED_BY = ("write.location-provider.impl", "write.py-location-provider.impl")


def same_partitions(data: LiveFileReader, deletes: LiveFileReader | None) -> bool:
    """Return whether the partitions of data and deletes can be compared."""
    return deletes is None or deletes.writer.partition_shape == data.writer.partition_shape


def manifest_reader(
    files: TableFiles, base: TableMetadata, listed: Sequence[ManifestFile], content: ManifestContent
) -> LiveFileReader | None:
    """Return a reader of the manifests of this content, by the schema of the first; None when there are none."""
    first = next(iter(with_live_content(listed, content)), None)
    if first is None:
        return None
    model = read_manifest(files, first.path)
    return LiveFileReader(files, ManifestWriter(model, base, base.default_spec_id, content))


def unsupported_feature(
    metadata: TableMetadata, listed: Sequence[ManifestFile], *, has_jvm: bool, planned: TableMetadata | None = None
) -> str | None:
    """Return the feature of the table that `SmallTable` does not support; None when there is none.

    With `planned` it may also be one that has changed since, and on which the plan depends.
    """
    snapshot, properties = metadata.current_snapshot, metadata.properties
    most_files = _MAX_FILES if has_jvm else _MAX_FILES_WITHOUT_JVM
    if metadata.format_version != _FORMAT_VERSION or snapshot is None or snapshot.manifest_list is None:
        return "its format"
    if metadata.sort_order_id and metadata.sort_order is None:  # it has transforms
        return "its sort order"
    if properties.get("write.object-storage.enabled", "").lower() == "true" or any(
        name in properties for name in _PLACED_BY
    ):
        return "the places of its files"
    manifests = [m for m in listed if m.live_files]
    if any(m.spec_id != metadata.default_spec_id for m in manifests):
        return "its partition spec"
    if planned is not None and _partition_types(planned) != _partition_types(metadata):
        return "the types of its partition columns"
    return "most of its files" if sum(m.live_files for m in manifests) > most_files else None


def _partition_types(metadata: TableMetadata) -> Mapping[int, str]:
    return source_types(metadata, metadata.default_spec_id)
