"""Read the entries of all manifests, and check that lists, manifests and the metadata file agree with one another.

Each manifest is read once, and each distinct row that manifest lists have of it is compared with its entries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from icewright.adapters.engines.service.avro_records import decoded, names_by_id, plain_schema, translating_errors
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.entry_contradictions import EntryContradictions
from icewright.adapters.engines.service.footers import MAGIC
from icewright.adapters.engines.service.manifest_bytes import ManifestBytes, manifest_of
from icewright.adapters.engines.service.manifest_files import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    partition_schema,
)
from icewright.adapters.engines.service.manifest_list_files import list_of
from icewright.adapters.engines.service.partition_bounds import decimal_fields, partition_fields, shortest, uncovered
from icewright.adapters.engines.service.reachable import CONTENT_KINDS
from icewright.adapters.metadata.document import text_of
from icewright.adapters.metadata.shape import malformed
from icewright.core import field_ids as ids
from icewright.core.avro_values import Schema
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFault, FileFaultKind, metadata_faults
from icewright.core.schemas import columns
from icewright.core.table import FORMAT_V2, FORMAT_V3, Snapshot, TableMetadata
from icewright.core.writer_state import summary_number
from icewright.ports import AvroFile, TableFiles

_TOTALS = ("total-data-files", "total-delete-files")  # in summaries, by the content of manifests
# of files and rows in a list's row, by the entry's status
_COUNTS = {
    ADDED: (ids.ADDED_FILES, ids.ADDED_ROWS),
    EXISTING: (ids.EXISTING_FILES, ids.EXISTING_ROWS),
    DELETED: (ids.DELETED_FILES, ids.DELETED_ROWS),
}
_FORMATS = {"PARQUET", "PUFFIN", *MAGIC}
# what some writers name without an id
_ALIASES = {
    ids.ADDED_FILES: "added_files_count",
    ids.EXISTING_FILES: "existing_files_count",
    ids.DELETED_FILES: "deleted_files_count",
}

# of a manifest, in each list that names it
_LASTING = {
    ids.MANIFEST_LENGTH: FileFaultKind.WRONG_LENGTH,
    ids.MANIFEST_SPEC_ID: FileFaultKind.WRONG_PARTITION,
    ids.ADDED_SNAPSHOT_ID: FileFaultKind.WRONG_SNAPSHOT,
    ids.MANIFEST_SEQUENCE_NUMBER: FileFaultKind.WRONG_SEQUENCE,
    ids.MANIFEST_CONTENT: FileFaultKind.WRONG_CONTENT,
}

Row = Mapping[int, Any]  # of a manifest list, by field id


@dataclass
class CheckedEntries:
    """The content files that manifests name, and the faults that lists and manifests show while they are read."""

    files: TableFiles
    metadata: TableMetadata
    content: bytes | None = None  # of the metadata file, where it is not written yet
    since: int | None = None  # sequence number up to which manifests were checked before; None: all are checked
    faults: list[FileFault] = field(default_factory=list, init=False)
    _snapshots: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set), init=False)  # by manifest
    _rows: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict), init=False)
    _contradictions: EntryContradictions = field(init=False)

    def __post_init__(self) -> None:
        self._contradictions = EntryContradictions(self._snapshots)

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """Return the JSON of the metadata file."""
        location = self.metadata.metadata_location
        content = self.files.read(location) if self.content is None else self.content
        document: Mapping[str, Any] = msgspec.json.decode(text_of(content, location))
        return document

    @cached_property
    def types(self) -> Mapping[int, Any]:
        """Return the type of each column of any schema or of position deletes; the current schema's where it has it."""
        of_tables = {number: kind for s in reversed(self.schemas) for number, _, kind in columns(s, elements=True)}
        return {ids.DELETED_PATH: "string", ids.DELETED_POSITION: "long", **of_tables}

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """Return the current schema, and then all that the table has had, the newest first."""
        return self.metadata.schema, *reversed(self.document.get("schemas") or ())

    def content_files(self, *, gone: bool = False) -> Iterator[ContentFile]:
        """Check lists and manifests, and yield the live files; what cannot be read is left out.

        With `gone`, yield also the entries of files that a manifest's snapshot took out.
        """
        if (why := malformed(self.document)) is not None:
            path, concerned = self.metadata.metadata_location, tuple(self.metadata.by_id)
            detail = f"Iceberg's library refuses to load it: {why}"
            self.faults.append(FileFault(FileFaultKind.UNREADABLE, "metadata", path, detail, concerned))
            return
        self._check_lists()
        paths = [
            path
            for path in self._snapshots
            if self.since is None or not self._rows[path] or self._sequence(path) > self.since
        ]
        for path, file in zip(paths, self.files.avros(paths), strict=True):
            try:
                entries, partition = self._entries(path, manifest_of(path, file))
            except MetadataUnreadable as error:
                self._add(FileFaultKind.UNREADABLE, "manifest", path, str(error))
                continue
            live = [entry for entry in entries if entry.status != DELETED]
            rows = list(self._rows[path].values())
            for row in rows:
                for kind, detail in self._wrong_row(row, entries, partition):
                    self._add(kind, "manifest", path, detail)
                self._check_sequences(row, live)
            self._check_rows(path, rows)
            self._check_entries(path, live)
            yield from entries if gone else live
        self.faults += self._contradictions.found()
        self.faults += metadata_faults(self.metadata, self.document)

    def needed_columns(self, entry: ContentFile) -> Collection[int]:
        """Return the columns without which readers fail at a file, or delete other rows by it."""
        match entry.content:
            case content if content == POSITION_DELETES:
                return ids.DELETED_PATH, ids.DELETED_POSITION
            case content if content == EQUALITY_DELETES:
                return entry.equality_ids
        if not self.is_of_main(entry.manifest):
            return ()
        return self._required - self._constant.get(entry.spec_id, set())

    @cached_property
    def _required(self) -> AbstractSet[int]:
        fields = self.metadata.schema["fields"]
        return {int(f["id"]) for f in fields if f["required"] and "initial-default" not in f}

    @cached_property
    def _constant(self) -> Mapping[int, AbstractSet[int]]:
        """Return the columns whose values the partition tuples have, by spec: files may lack them."""
        return {
            spec.spec_id: {f.source_id for f in spec.fields if f.transform == "identity"}
            for spec in self.metadata.specs
        }

    def is_of_main(self, manifest: str) -> bool:
        """Return whether main's current snapshot lists a manifest."""
        return self.metadata.current_snapshot_id in self._snapshots[manifest]

    def concern(self, manifest: str) -> tuple[int, ...]:
        """Return the snapshots that list a manifest."""
        return tuple(sorted(self._snapshots[manifest]))

    def _check_lists(self) -> None:
        lists = [(s.manifest_list, s) for s in self.metadata.snapshots if s.manifest_list is not None]
        for snapshot in self.metadata.snapshots:
            for manifest in snapshot.manifests if snapshot.manifest_list is None else ():
                self._snapshots[manifest].add(snapshot.snapshot_id)
        for (path, snapshot), file in zip(lists, self.files.avros([path for path, _ in lists]), strict=True):
            self._check_list(path, file, snapshot)

    def _check_list(self, path: str, file: AvroFile | MetadataUnreadable, snapshot: Snapshot) -> None:
        snapshot_id = (snapshot.snapshot_id,)
        if snapshot.sequence_number > (newest := self.metadata.last_sequence_number):
            detail = f"its snapshot has the sequence number {snapshot.sequence_number}, the table's last is {newest}"
            self._add(FileFaultKind.WRONG_SEQUENCE, "manifest list", path, detail, snapshot_id)
        try:
            listed = list_of(path, file, self.metadata.format_version)
        except MetadataUnreadable as error:
            self._add(FileFaultKind.UNREADABLE, "manifest list", path, str(error), snapshot_id)
            return
        names = _ALIASES | dict(listed.names)
        rows = [{number: record[name] for number, name in names.items() if name in record} for record in listed.records]
        for row in rows:
            manifest, sequence = row[ids.MANIFEST_PATH], row.get(ids.MANIFEST_SEQUENCE_NUMBER) or 0
            self._snapshots[manifest].add(snapshot.snapshot_id)
            self._rows[manifest].setdefault(repr(row), row)
            if sequence > snapshot.sequence_number:
                detail = f"it has the sequence number {sequence} in a snapshot of {snapshot.sequence_number}"
                self._add(FileFaultKind.WRONG_SEQUENCE, "manifest", manifest, detail, snapshot_id)
        for manifest, times in Counter(row[ids.MANIFEST_PATH] for row in rows).items():
            if times > 1:
                detail = f"the manifest list names it {times} times"
                self._add(FileFaultKind.DUPLICATE, "manifest", manifest, detail, snapshot_id)
        for detail in _wrong_totals(rows, snapshot):
            self._add(FileFaultKind.WRONG_COUNT, "manifest list", path, detail, snapshot_id)

    def read(self, path: str) -> tuple[list[ContentFile], Schema]:
        """Return all entries of a manifest, and the schema of its partition tuples. Raises `MetadataUnreadable`."""
        return self._entries(path, manifest_of(path, self.files.avro(path)))

    def _entries(self, path: str, manifest: ManifestBytes) -> tuple[list[ContentFile], Schema]:
        inherited = self._sequence(path)
        with translating_errors(path):
            schema, data_file = manifest.shape.schema, manifest.shape.data_file
            names, inner = names_by_id(schema), names_by_id(data_file)
            spec_id, entries = int(manifest.header.get("partition-spec-id", "0")), list[ContentFile]()
            decimals = decimal_fields(partition_schema(data_file))
            for record in decoded(plain_schema(schema), manifest.records, manifest.body):
                values = {number: record[names[ids.DATA_FILE]][name] for number, name in inner.items()}
                values[ids.PARTITION] |= shortest(values[ids.PARTITION], decimals)
                entry: Mapping[int, Any] = {number: record.get(name) for number, name in names.items()}
                status, stated = entry[ids.STATUS], entry.get(ids.SEQUENCE_NUMBER)
                sequence = inherited if stated is None else stated
                added = inherited if status == ADDED else entry.get(ids.FILE_SEQUENCE_NUMBER)
                file = ContentFile(path, spec_id, status, sequence, values, added, entry.get(ids.SNAPSHOT_ID))
                if file.status not in _COUNTS or file.content not in CONTENT_KINDS or file.format not in _FORMATS:
                    raise ValueError(f"its entry of {file.path} has a status, content or format that there is not")
                if stated is None and inherited and status == EXISTING:
                    detail = "its entry, of an earlier commit, lacks the sequence number that tells which deletes apply"
                    self._add(
                        FileFaultKind.WRONG_SEQUENCE, CONTENT_KINDS[file.content], file.path, detail, self.concern(path)
                    )
                entries.append(file)
            return entries, partition_schema(data_file)

    def _sequence(self, path: str) -> int:
        """Return the sequence number of a manifest, by the first list that names it."""
        return next(iter(self._rows[path].values()), {}).get(ids.MANIFEST_SEQUENCE_NUMBER) or 0

    def _wrong_row(
        self, row: Row, entries: Sequence[ContentFile], partition: Schema
    ) -> Iterator[tuple[FileFaultKind, str]]:
        """Yield where a manifest list's row says other than the entries of its manifest."""
        for status, (files_id, rows_id) in _COUNTS.items():
            chosen = [entry for entry in entries if entry.status == status]
            for field_id, count in (files_id, len(chosen)), (rows_id, sum(entry.records for entry in chosen)):
                if row.get(field_id) not in (None, count):
                    yield FileFaultKind.WRONG_COUNT, f"field {field_id} of its list says {row[field_id]}, not {count}"
        if row.get(ids.MANIFEST_KEY_METADATA) is not None and not self._is_encrypted:
            yield FileFaultKind.UNREADABLE, "its list has a key of it, and the table is not encrypted"
        yield from self._wrong_identity(row, entries, partition)
        live = [entry for entry in entries if entry.status != DELETED]
        partitions = {repr(entry.partition): entry.partition for entry in live}.values()  # -0.0 and 0.0 are two
        for detail in uncovered(partition_fields(partition), row.get(ids.PARTITION_SUMMARIES), partitions):
            yield FileFaultKind.WRONG_BOUNDS, detail
        next_row_id, first = self.document.get("next-row-id"), row.get(ids.MANIFEST_FIRST_ROW_ID)
        if next_row_id is not None and first is not None:
            assigned = first + sum(entry.records for entry in live if entry.first_row_id is None)
            stated = [entry.first_row_id + entry.records for entry in live if entry.first_row_id is not None]
            if (end := max([assigned, *stated])) > next_row_id:
                yield FileFaultKind.WRONG_ROW_IDS, f"its row ids end at {end}, the table's next one is {next_row_id}"

    def _check_sequences(self, row: Row, live: Sequence[ContentFile]) -> None:
        """Compare the sequence numbers of entries with those that a manifest list says of their manifest."""
        least, most = row.get(ids.MIN_SEQUENCE_NUMBER) or 0, row.get(ids.MANIFEST_SEQUENCE_NUMBER) or 0
        for entry in live:
            if not least <= entry.sequence <= most:
                detail = f"its sequence number {entry.sequence} is outside its manifest's, {least} to {most}"
                self._add_file(FileFaultKind.WRONG_SEQUENCE, entry, detail)

    def _check_rows(self, path: str, rows: Sequence[Row]) -> None:
        """Compare what manifest lists say of one manifest, which does not change."""
        for number, kind in _LASTING.items():
            if len(values := {row.get(number) or 0 for row in rows}) > 1:
                low, high = min(values), max(values)
                self._add(kind, "manifest", path, f"field {number} of it is {low} in one list and {high} in another")

    def _wrong_identity(
        self, row: Row, entries: Sequence[ContentFile], partition: Schema
    ) -> Iterator[tuple[FileFaultKind, str]]:
        """Yield where a manifest is of another spec, content or snapshot than its list's row says."""
        number, tuple_ids = row[ids.MANIFEST_SPEC_ID], [f.get("field-id") for f in partition["fields"]]
        spec = self.metadata.specs_by_id.get(number)
        of_spec = [f.field_id for f in spec.fields] if spec is not None else []
        if spec is None:
            yield FileFaultKind.WRONG_PARTITION, f"the table has no partition spec {number}"
        elif None not in tuple_ids and tuple_ids != of_spec:
            detail = f"its entries have the partition fields {tuple_ids}, its spec {of_spec}"
            yield FileFaultKind.WRONG_PARTITION, detail
        elif entries and entries[0].spec_id != number:
            yield FileFaultKind.WRONG_PARTITION, f"its list says spec {number}, and it says {entries[0].spec_id}"
        deletes, added_by = bool(row.get(ids.MANIFEST_CONTENT)), row.get(ids.ADDED_SNAPSHOT_ID)
        if any((entry.content != DATA) is not deletes for entry in entries if entry.status != DELETED):
            yield FileFaultKind.WRONG_CONTENT, f"its list says that it holds {'delete' if deletes else 'data'} files"
        for other in {entry.snapshot_id for entry in entries if entry.status == ADDED} - {None, added_by}:
            if added_by is not None:
                detail = f"its list says that snapshot {added_by} added it, and its entries say {other}"
                yield FileFaultKind.WRONG_SNAPSHOT, detail

    def _check_entries(self, path: str, live: Sequence[ContentFile]) -> None:
        for (kind, (file, _)), times in Counter((entry.kind, entry.key) for entry in live).items():
            if times > 1:
                detail = f"its manifest names it {times} times"
                self._add(FileFaultKind.DUPLICATE, kind, file, detail, self.concern(path))
        for entry in live:
            self.faults += self._contradictions.add(entry)
            since = FORMAT_V3 if entry.is_vector else FORMAT_V2
            if entry.content != DATA and self.metadata.format_version < since:
                detail = f"format version {self.metadata.format_version} has no {entry.kind}"
                self._add_file(FileFaultKind.WRONG_CONTENT, entry, detail)
            if (order := entry.values.get(ids.SORT_ORDER_ID)) not in (None, 0, *self._orders):
                detail = f"its entry names the sort order {order}, which the table has not"
                self._add_file(FileFaultKind.WRONG_ORDER, entry, detail)
            if entry.is_encrypted and not self._is_encrypted:
                detail = "its entry has a key, and the table is not encrypted"
                self._add_file(FileFaultKind.UNREADABLE, entry, detail)
            keys = entry.equality_ids
            if entry.content == EQUALITY_DELETES and not (keys and all(number in self.types for number in keys)):
                detail = f"it deletes by columns of the ids {list(keys)}, which no schema has"
                self._add_file(FileFaultKind.WRONG_FIELDS, entry, detail)
        if "next-row-id" in self.document:
            self._add_row_ids(path, live)

    @property
    def _is_encrypted(self) -> bool:
        return "encryption.key-id" in self.metadata.properties

    @cached_property
    def _orders(self) -> tuple[int, ...]:
        return tuple(int(order["order-id"]) for order in self.document.get("sort-orders") or ())

    def _add_row_ids(self, path: str, live: Sequence[ContentFile]) -> None:
        """Compare the row ids of the data files of a manifest: their own, or those in the order of its entries."""
        following = next(iter(self._rows[path].values()), {}).get(ids.MANIFEST_FIRST_ROW_ID)
        for entry in live:
            first = entry.first_row_id
            if first is None and following is not None:
                first, following = following, following + entry.records
            if first is not None and entry.content == DATA:
                self._contradictions.add_row_ids(entry, first)

    def _add_file(self, kind: FileFaultKind, entry: ContentFile, detail: str) -> None:
        self._add(kind, entry.kind, entry.path, detail, self.concern(entry.manifest))

    def _add(
        self, kind: FileFaultKind, file: str, path: str, detail: str, snapshot_ids: tuple[int, ...] | None = None
    ) -> None:
        concerned = self.concern(path) if snapshot_ids is None else snapshot_ids
        self.faults.append(FileFault(kind, file, path, detail, concerned))


def _wrong_totals(rows: Sequence[Row], snapshot: Snapshot) -> Iterator[str]:
    """Yield where the manifests of a list have fewer files than the snapshot's summary counts, as far as all say."""
    for content, total in enumerate(_TOTALS):
        of_content = [row for row in rows if (row.get(ids.MANIFEST_CONTENT) or 0) == content]
        named = [(row.get(ids.ADDED_FILES), row.get(ids.EXISTING_FILES)) for row in of_content]
        live, stated = sum((a or 0) + (b or 0) for a, b in named), summary_number(snapshot, total)
        if live < stated and not any(None in counts for counts in named):
            yield f"its manifests have {live} of the {stated} files that its snapshot's {total} counts"
