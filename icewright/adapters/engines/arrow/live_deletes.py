"""Live data and delete files of all specs, as manifests list them: what is needed to convert equality deletes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icewright.adapters.engines.arrow.key_sequences import Bounds
from icewright.adapters.engines.arrow.live_files import delete_file, only_data_file, with_live_content
from icewright.adapters.engines.arrow.tasks import DeleteFile
from icewright.adapters.engines.service.manifest_bytes import read_manifest, read_manifests
from icewright.adapters.engines.service.manifest_files import POSITION_DELETES, Entry, ManifestWriter, model_for_deletes
from icewright.adapters.metadata.document import Editor, decode
from icewright.core import field_ids as ids
from icewright.core.errors import UnsupportedTable
from icewright.core.table import ManifestContent, ManifestFile, TableMetadata
from icewright.ports import TableFiles

Partition = tuple[int, bytes]  # spec id, and the tuple as manifests of the spec store it


@dataclass(frozen=True, slots=True)
class LiveData:
    """A live data file, with what tells whether deletes may name its rows."""

    path: str
    partition: Partition
    values: tuple[Any, ...]  # of the partition
    sequence: int
    records: int
    bytes: int
    is_plain_parquet: bool  # not encrypted
    bounds: Bounds  # of the columns that deletes name


@dataclass(frozen=True, slots=True)
class LiveDelete:
    """A live delete file or deletion vector, and the manifest that lists it."""

    entry: Entry
    manifest: str
    partition: Partition
    file: DeleteFile
    bytes: int
    content: int
    format: str
    is_encrypted: bool
    only_file: str | None  # the data file of position deletes that name only one

    @property
    def path(self) -> str:
        """Return the path of the file, which may hold several vectors."""
        return self.file.path

    @property
    def sequence(self) -> int:
        """Return the data sequence number."""
        return self.entry.sequence or 0

    @property
    def is_vector(self) -> bool:
        """Return whether this is a deletion vector."""
        return self.format == "PUFFIN"

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the deletes themselves: a Puffin file may hold many vectors."""
        return self.file.length if self.is_vector else self.bytes

    def applies_to(self, data: LiveData) -> bool:
        """Return whether these position deletes may name rows of a data file (spec, Scan Planning)."""
        if self.content != POSITION_DELETES or self.sequence < data.sequence:
            return False
        return self.only_file == data.path if self.only_file is not None else self.partition == data.partition


@dataclass
class LiveFiles:
    """Reads the manifests of one table, each once, however often the table changes meanwhile."""

    files: TableFiles
    base: TableMetadata
    check: Callable[[], None]
    _writers: dict[tuple[int, ManifestContent], ManifestWriter] = field(default_factory=dict, init=False)
    _data: dict[str, list[LiveData]] = field(default_factory=dict, init=False)
    _deletes: dict[str, list[LiveDelete]] = field(default_factory=dict, init=False)

    def deletes(self, listed: Sequence[ManifestFile]) -> list[LiveDelete]:
        """Return the live delete files of the manifests."""
        manifests = with_live_content(listed, ManifestContent.DELETES)
        for manifest, read in self._read([m for m in manifests if m.path not in self._deletes], listed):
            self._deletes[manifest.path] = [_delete(manifest, *file) for file in read]
        return [file for manifest in manifests for file in self._deletes[manifest.path]]

    def data(
        self, listed: Sequence[ManifestFile], key_ids: frozenset[int], before: int, only: frozenset[Partition] | None
    ) -> list[LiveData]:
        """Return the live data files of sequence numbers below `before`, with the bounds of the columns `key_ids`.

        With `only`, those of these partitions. Every call must have the same last three arguments.
        """
        manifests = [m for m in with_live_content(listed, ManifestContent.DATA) if m.min_sequence_number < before]
        for manifest, read in self._read([m for m in manifests if m.path not in self._data], listed):
            self._data[manifest.path] = [
                _data(manifest, key_ids, *file)
                for file in read
                if (file[0].sequence or 0) < before and (only is None or (manifest.spec_id, file[0].partition) in only)
            ]
        return [file for manifest in manifests for file in self._data[manifest.path]]

    def writer(self, spec_id: int, content: ManifestContent, listed: Iterable[ManifestFile]) -> ManifestWriter:
        """Return the writer of manifests of a spec; one of delete files is modelled on any manifest of the spec."""
        key = (spec_id, content)
        if key not in self._writers:
            own = [m for m in listed if m.spec_id == spec_id and m.live_files]
            model = next((m for m in own if m.content is content), own[0])
            read = read_manifest(self.files, model.path)
            if content is ManifestContent.DELETES:
                read = model_for_deletes(read, self.base.format_version)
            self._writers[key] = ManifestWriter(read, self.base, spec_id, content)
        return self._writers[key]

    def require_comparable_partitions(self, spec_id: int, listed: Sequence[ManifestFile]) -> None:
        """Raise `UnsupportedTable` when data and delete files of a spec store their partitions in different ways."""
        data, deletes = (self.writer(spec_id, content, listed) for content in ManifestContent)
        if data.partition_shape != deletes.partition_shape:
            raise UnsupportedTable(f"{self.base.ref}: manifests of spec {spec_id} store partition values differently")

    def _read(
        self, manifests: Sequence[ManifestFile], listed: Sequence[ManifestFile]
    ) -> Iterator[tuple[ManifestFile, list[tuple[Entry, tuple[Any, ...], Mapping[int, Any]]]]]:
        for manifest, source in zip(manifests, read_manifests(self.files, [m.path for m in manifests]), strict=True):
            self.check()
            writer = self.writer(manifest.spec_id, manifest.content, listed)
            entries = writer.live_entries(manifest, source)
            partitions = (writer.partition(entry.partition) for entry in entries)
            yield manifest, list(zip(entries, partitions, writer.data_files(entries), strict=True))


def other_columns(files: TableFiles, base: TableMetadata, present: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    """Return the top-level columns beside the present ones by id, each in its latest form: deletes may name them."""
    schemas = Editor(decode(files.read(base.metadata_location), base.metadata_location)).get("schemas", [])
    latest_last = [*sorted(schemas, key=lambda schema: schema.get("schema-id", 0)), base.schema]
    return {f["id"]: f for schema in latest_last for f in schema["fields"] if f["id"] not in present}


def _data(
    manifest: ManifestFile, key_ids: frozenset[int], entry: Entry, partition: tuple[Any, ...], record: Mapping[int, Any]
) -> LiveData:
    lower, upper, nulls = (
        {item["key"]: item["value"] for item in record.get(number) or () if item["key"] in key_ids}
        for number in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS, ids.NULL_COUNTS)
    )
    bounds = {number: (lower.get(number), upper.get(number), nulls.get(number)) for number in key_ids}
    plain = record[ids.FILE_FORMAT].upper() == "PARQUET" and record.get(ids.KEY_METADATA) is None
    key = (manifest.spec_id, entry.partition)
    size = int(record[ids.FILE_SIZE])
    return LiveData(record[ids.FILE_PATH], key, partition, entry.sequence or 0, entry.records, size, plain, bounds)


def _delete(manifest: ManifestFile, entry: Entry, _partition: tuple[Any, ...], record: Mapping[int, Any]) -> LiveDelete:
    content = int(record[ids.CONTENT])
    return LiveDelete(
        entry,
        manifest.path,
        (manifest.spec_id, entry.partition),
        delete_file(record),
        int(record[ids.FILE_SIZE]),
        content,
        record[ids.FILE_FORMAT].upper(),
        record.get(ids.KEY_METADATA) is not None,
        only_data_file(record) if content == POSITION_DELETES else None,
    )
