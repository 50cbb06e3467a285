"""Checks that manifest lists, manifests and the metadata file of a table agree with one another.

Each manifest is read once, and each distinct row that manifest lists have of it is compared with its entries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import msgspec

from icewright.adapters.engines.arrow.deletes import DELETED_PATH, DELETED_POSITION
from icewright.adapters.engines.service.avro_records import decoded, names_by_id, plain_schema, readable
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.footers import MAGIC
from icewright.adapters.engines.service.manifest_files import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    partition_schema,
    read_manifest,
)
from icewright.adapters.engines.service.manifest_list_files import read_list
from icewright.adapters.engines.service.partition_bounds import decimal_fields, partition_fields, shortest, uncovered
from icewright.adapters.engines.service.reachable import CONTENT_KINDS
from icewright.adapters.metadata.document import text_of
from icewright.adapters.metadata.shape import malformed
from icewright.core.avro_values import Schema
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFault, FileFaultKind, metadata_faults
from icewright.core.table import Snapshot, TableMetadata, columns
from icewright.core.writer_state import summary_number
from icewright.ports import TableFiles

_TOTALS = ("total-data-files", "total-delete-files")  # in summaries, by the content of manifests
_COUNTS = {
    ADDED: (504, 512),
    EXISTING: (505, 513),
    DELETED: (506, 514),
}  # files and rows in a list's row, by the entry's status
_FORMATS = {"PARQUET", "PUFFIN", *MAGIC}
# what some writers name without an id
_ALIASES = {504: "added_files_count", 505: "existing_files_count", 506: "deleted_files_count"}

# of a manifest, in each list that names it
_LASTING = {
    501: FileFaultKind.WRONG_LENGTH,
    502: FileFaultKind.WRONG_PARTITION,
    503: FileFaultKind.WRONG_SNAPSHOT,
    515: FileFaultKind.WRONG_SEQUENCE,
    517: FileFaultKind.WRONG_CONTENT,
}

Row = Mapping[int, Any]  # of a manifest list, by field id
_Place = tuple[int, int, str]  # of a file: sequence number, spec, partition


@dataclass
class EntryFaults:
    """The faults of lists and manifests, and the content files that the manifests name."""

    files: TableFiles
    metadata: TableMetadata
    content: bytes | None = None  # of the metadata file, where it is not written yet
    since: int | None = None  # sequence number up to which manifests were checked before; None: all are checked
    faults: list[FileFault] = field(default_factory=list, init=False)
    _snapshots: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set), init=False)  # by manifest
    _rows: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict), init=False)
    _live_in: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set), init=False)
    _data: dict[str, set[tuple[_Place, str]]] = field(default_factory=lambda: defaultdict(set), init=False)  # manifest
    _stated: dict[int, tuple[_Place, str]] = field(default_factory=dict, init=False)  # and manifest, by file and commit
    _scoped: list[ContentFile] = field(default_factory=list, init=False)  # deletes of one data file
    _row_ids: list[tuple[int, int, ContentFile]] = field(default_factory=list, init=False)  # first, end

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
        of_tables = {number: kind for schema in reversed(self.schemas) for number, _, kind in columns(schema)}
        return {DELETED_PATH: "string", DELETED_POSITION: "long", **of_tables}

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
        for snapshot in self.metadata.snapshots:
            self._check_list(snapshot)
        for path in list(self._snapshots):
            if self.since is not None and self._rows[path] and self._sequence(path) <= self.since:
                continue
            try:
                entries, partition = self.read(path)
            except MetadataUnreadable as error:
                self._add(FileFaultKind.UNREADABLE, "manifest", path, str(error))
                continue
            live = [one for one in entries if one.status != DELETED]
            rows = list(self._rows[path].values())
            for row in rows:
                self._check_row(path, row, entries, live, partition)
            self._check_rows(path, rows)
            self._check_entries(path, live)
            yield from entries if gone else live
        self._find_duplicates()
        self._find_misplaced_deletes()
        self._find_shared_row_ids()
        self.faults += metadata_faults(self.metadata, self.document)

    def needed_columns(self, one: ContentFile) -> Collection[int]:
        """Return the columns without which readers fail at a file, or delete other rows by it."""
        match one.content:
            case content if content == POSITION_DELETES:
                return DELETED_PATH, DELETED_POSITION
            case content if content == EQUALITY_DELETES:
                return one.values.get(135) or ()
        if not self.is_of_main(one.manifest):
            return ()
        return self._required - self._constant.get(one.spec_id, set())

    @cached_property
    def _required(self) -> AbstractSet[int]:
        fields = self.metadata.schema["fields"]
        return {int(one["id"]) for one in fields if one["required"] and "initial-default" not in one}

    @cached_property
    def _constant(self) -> Mapping[int, AbstractSet[int]]:
        """Return the columns whose values the partition tuples have, by spec: files may lack them."""
        return {
            spec.spec_id: {one.source_id for one in spec.fields if one.transform == "identity"}
            for spec in self.metadata.specs
        }

    def is_of_main(self, manifest: str) -> bool:
        """Return whether main's current snapshot lists a manifest."""
        return self.metadata.current_snapshot_id in self._snapshots[manifest]

    def concern(self, manifest: str) -> tuple[int, ...]:
        """Return the snapshots that list a manifest."""
        return tuple(sorted(self._snapshots[manifest]))

    def _check_list(self, snapshot: Snapshot) -> None:
        path, snapshot_id = snapshot.manifest_list, (snapshot.snapshot_id,)
        if path is None:
            for manifest in snapshot.manifests:
                self._snapshots[manifest].add(snapshot.snapshot_id)
            return
        if snapshot.sequence_number > (newest := self.metadata.last_sequence_number):
            detail = f"its snapshot has the sequence number {snapshot.sequence_number}, the table's last is {newest}"
            self._add(FileFaultKind.WRONG_SEQUENCE, "manifest list", path, detail, snapshot_id)
        try:
            listed = read_list(self.files, path, self.metadata.format_version)
        except MetadataUnreadable as error:
            self._add(FileFaultKind.UNREADABLE, "manifest list", path, str(error), snapshot_id)
            return
        names = _ALIASES | dict(listed.names)
        rows = [{number: record[name] for number, name in names.items() if name in record} for record in listed.records]
        for row in rows:
            self._snapshots[row[500]].add(snapshot.snapshot_id)
            self._rows[row[500]].setdefault(repr(row), row)
            if (row.get(515) or 0) > snapshot.sequence_number:
                detail = f"it has the sequence number {row[515]} in a snapshot of {snapshot.sequence_number}"
                self._add(FileFaultKind.WRONG_SEQUENCE, "manifest", row[500], detail, snapshot_id)
        for manifest, times in Counter(row[500] for row in rows).items():
            if times > 1:
                detail = f"the manifest list names it {times} times"
                self._add(FileFaultKind.DUPLICATE, "manifest", manifest, detail, snapshot_id)
        for content, total in enumerate(_TOTALS):
            named = [(row.get(504), row.get(505)) for row in rows if (row.get(517) or 0) == content]
            live, stated = sum((a or 0) + (b or 0) for a, b in named), summary_number(snapshot, total)
            if live < stated and not any(None in counts for counts in named):
                detail = f"its manifests have {live} of the {stated} files that its snapshot's {total} counts"
                self._add(FileFaultKind.WRONG_COUNT, "manifest list", path, detail, snapshot_id)

    def read(self, path: str) -> tuple[list[ContentFile], Schema]:
        """Return all entries of a manifest, and the schema of its partition tuples. Raises `MetadataUnreadable`."""
        manifest = read_manifest(self.files, path)
        inherited = self._sequence(path)
        with readable(path):
            schema, data_file = manifest.shape.schema, manifest.shape.data_file
            names, inner = names_by_id(schema), names_by_id(data_file)
            spec_id, entries = int(manifest.header.get("partition-spec-id", "0")), list[ContentFile]()
            decimals = decimal_fields(partition_schema(data_file))
            for record in decoded(plain_schema(schema), manifest.records, manifest.body):
                values = {number: record[names[2]][name] for number, name in inner.items()}
                values[102] |= shortest(values[102], decimals)
                stated = record.get(names.get(3, ""))
                sequence = inherited if stated is None else stated
                if stated is None and inherited and record[names[0]] == EXISTING:
                    detail = "its entry, of an earlier commit, lacks the sequence number that tells which deletes apply"
                    file = CONTENT_KINDS[int(values.get(134) or DATA)]
                    self._add(FileFaultKind.WRONG_SEQUENCE, file, str(values[100]), detail, self.concern(path))
                added = inherited if record[names[0]] == ADDED else record.get(names.get(4, ""))
                one = ContentFile(
                    path, spec_id, record[names[0]], sequence, values, added, record.get(names.get(1, ""))
                )
                if one.status not in _COUNTS or one.content not in CONTENT_KINDS or one.format not in _FORMATS:
                    raise ValueError(f"its entry of {one.path} has a status, content or format that there is not")
                entries.append(one)
            return entries, partition_schema(data_file)

    def _sequence(self, path: str) -> int:
        """Return the sequence number of a manifest, by the first list that names it."""
        return next(iter(self._rows[path].values()), {}).get(515) or 0

    def _check_row(
        self, path: str, row: Row, entries: Sequence[ContentFile], live: Sequence[ContentFile], partition: Schema
    ) -> None:
        """Compare a manifest list's row with the entries of its manifest."""

        def add(kind: FileFaultKind, detail: str) -> None:
            self._add(kind, "manifest", path, detail)

        for status, (files_id, rows_id) in _COUNTS.items():
            chosen = [one for one in entries if one.status == status]
            for field_id, count in (files_id, len(chosen)), (rows_id, sum(one.records for one in chosen)):
                if row.get(field_id) not in (None, count):
                    add(FileFaultKind.WRONG_COUNT, f"field {field_id} of its list says {row[field_id]}, not {count}")
        if row.get(519) is not None and not self._is_encrypted:
            add(FileFaultKind.UNREADABLE, "its list has a key of it, and the table is not encrypted")
        for kind, detail in self._wrong_identity(row, entries, partition):
            add(kind, detail)
        partitions = {repr(one.partition): one.partition for one in live}.values()  # -0.0 and 0.0 are two
        for detail in uncovered(partition_fields(partition), row.get(507), partitions):
            add(FileFaultKind.WRONG_BOUNDS, detail)
        least, most = row.get(516) or 0, row.get(515) or 0
        for one in live:
            if not least <= one.sequence <= most:
                detail = f"its sequence number {one.sequence} is outside its manifest's, {least} to {most}"
                self._add(FileFaultKind.WRONG_SEQUENCE, one.kind, one.path, detail, self.concern(path))
        next_row_id = self.document.get("next-row-id")
        if next_row_id is not None and row.get(520) is not None:
            assigned = row[520] + sum(one.records for one in live if one.values.get(142) is None)
            stated = [one.values[142] + one.records for one in live if one.values.get(142) is not None]
            if (end := max([assigned, *stated])) > next_row_id:
                add(FileFaultKind.WRONG_ROW_IDS, f"its row ids end at {end}, the table's next one is {next_row_id}")

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
        spec = next((spec for spec in self.metadata.specs if spec.spec_id == row[502]), None)
        tuple_ids = [one.get("field-id") for one in partition["fields"]]
        if spec is None:
            yield FileFaultKind.WRONG_PARTITION, f"the table has no partition spec {row[502]}"
        elif None not in tuple_ids and tuple_ids != (ids := [one.field_id for one in spec.fields]):
            yield FileFaultKind.WRONG_PARTITION, f"its entries have the partition fields {tuple_ids}, its spec {ids}"
        elif entries and entries[0].spec_id != row[502]:
            yield FileFaultKind.WRONG_PARTITION, f"its list says spec {row[502]}, and it says {entries[0].spec_id}"
        deletes, added_by = bool(row.get(517)), row.get(503)
        if any((one.content != DATA) is not deletes for one in entries if one.status != DELETED):
            yield FileFaultKind.WRONG_CONTENT, f"its list says that it holds {'delete' if deletes else 'data'} files"
        for other in {one.snapshot_id for one in entries if one.status == ADDED} - {None, added_by}:
            if added_by is not None:
                detail = f"its list says that snapshot {added_by} added it, and its entries say {other}"
                yield FileFaultKind.WRONG_SNAPSHOT, detail

    def _check_entries(self, path: str, live: Sequence[ContentFile]) -> None:
        named = Counter((one.kind, one.path, one.values.get(144)) for one in live)
        for (kind, file, _), times in named.items():
            if times > 1:
                detail = f"its manifest names it {times} times"
                self._add(FileFaultKind.DUPLICATE, kind, file, detail, self.concern(path))
        for one in live:
            self._live_in[one.kind, one.referenced if one.is_vector else one.path].add(path)
            place = one.sequence, one.spec_id, repr(one.partition)
            self._compare(one, place)
            if one.content == DATA:
                self._data[one.path].add((place, path))
            elif one.referenced:
                self._scoped.append(one)
            if one.content != DATA and (version := self.metadata.format_version) < (3 if one.is_vector else 2):
                detail = f"format version {version} has no {one.kind}"
                self._add(FileFaultKind.WRONG_CONTENT, one.kind, one.path, detail, self.concern(path))
            if (order := one.values.get(140)) not in (None, 0, *self._orders):
                detail = f"its entry names the sort order {order}, which the table has not"
                self._add(FileFaultKind.WRONG_ORDER, one.kind, one.path, detail, self.concern(path))
            if one.is_encrypted and not self._is_encrypted:
                detail = "its entry has a key, and the table is not encrypted"
                self._add(FileFaultKind.UNREADABLE, one.kind, one.path, detail, self.concern(path))
            if one.content == EQUALITY_DELETES:
                ids = one.values.get(135) or ()
                if not ids or any(number not in self.types for number in ids):
                    detail = f"it deletes by columns of the ids {list(ids)}, which no schema has"
                    self._add(FileFaultKind.WRONG_FIELDS, one.kind, one.path, detail, self.concern(path))
        self._note_row_ids(path, live)

    @property
    def _is_encrypted(self) -> bool:
        return "encryption.key-id" in self.metadata.properties

    @cached_property
    def _orders(self) -> tuple[int, ...]:
        return tuple(int(order["order-id"]) for order in self.document.get("sort-orders") or ())

    def _note_row_ids(self, path: str, live: Sequence[ContentFile]) -> None:
        """Note which row ids the data files of a manifest have, their own or in the order of its entries."""
        following = next(iter(self._rows[path].values()), {}).get(520)
        for one in live if "next-row-id" in self.document else ():
            first = one.values.get(142)
            if first is None and following is not None:
                first, following = following, following + one.records
            if first is not None and one.content == DATA:
                self._row_ids.append((first, first + one.records, one))

    def _find_shared_row_ids(self) -> None:
        """Find two data files of one snapshot whose rows have the same ids."""
        self._row_ids.sort(key=lambda found: found[:2])
        furthest = self._row_ids[0] if self._row_ids else None
        for found in self._row_ids[1:]:
            first, _, one = found
            if furthest is None or first >= furthest[1]:
                furthest = found
                continue
            other = furthest[2]
            furthest = max(furthest, found, key=lambda ids: ids[1])
            if one.path == other.path:
                continue
            if both := self._snapshots[one.manifest] & self._snapshots[other.manifest]:
                detail = f"its row ids from {first} on are also those of {other.path}"
                self._add(FileFaultKind.WRONG_ROW_IDS, one.kind, one.path, detail, tuple(sorted(both)))

    def _compare(self, one: ContentFile, place: _Place) -> None:
        """Compare what two manifests say of a file that one commit added: neither number nor partition ever changes."""
        if not one.file_sequence:
            return
        key = hash((one.path, one.values.get(144), one.file_sequence))
        other, manifest = self._stated.setdefault(key, (place, one.manifest))
        for value, other_value, what, kind in (
            (place[0], other[0], "sequence number", FileFaultKind.WRONG_SEQUENCE),
            (place[1:], other[1:], "partition", FileFaultKind.WRONG_PARTITION),
        ):
            if value != other_value:
                detail = f"its {what} is {value} in {one.manifest} and {other_value} in {manifest}"
                concerned = tuple(sorted(self._snapshots[one.manifest] | self._snapshots[manifest]))
                self._add(kind, one.kind, one.path, detail, concerned)

    def _find_misplaced_deletes(self) -> None:
        """Find deletes that do not apply to the data file that they name: older than it, or of another partition.

        A data file may be removed and added again after its deletes: what no snapshot shows together is not compared.
        """
        for one in self._scoped:
            together: dict[_Place, set[int]] = defaultdict(set)
            for place, manifest in self._data.get(one.referenced, ()):
                together[place] |= self._snapshots[one.manifest] & self._snapshots[manifest]
            for (sequence, *partition), snapshots in together.items():
                concerned = tuple(sorted(snapshots))
                if concerned and one.sequence < sequence:
                    detail = f"it has the sequence number {one.sequence}, its data file {one.referenced} has {sequence}"
                    self._add(FileFaultKind.WRONG_SEQUENCE, one.kind, one.path, detail, concerned)
                if concerned and partition != [one.spec_id, repr(one.partition)]:
                    detail = f"it is of another partition than its data file {one.referenced}"
                    self._add(FileFaultKind.WRONG_PARTITION, one.kind, one.path, detail, concerned)

    def _find_duplicates(self) -> None:
        """Find files, and data files with vectors, that two manifests of one snapshot name as live."""
        for (kind, path), manifests in self._live_in.items():
            for one, other in combinations(sorted(manifests), 2) if len(manifests) > 1 else ():
                if both := self._snapshots[one] & self._snapshots[other]:
                    detail = f"it is live in {one} and {other}"
                    self._add(FileFaultKind.DUPLICATE, kind, path, detail, tuple(sorted(both)))

    def _add(
        self, kind: FileFaultKind, file: str, path: str, detail: str, snapshot_ids: tuple[int, ...] | None = None
    ) -> None:
        concerned = self.concern(path) if snapshot_ids is None else snapshot_ids
        self.faults.append(FileFault(kind, file, path, detail, concerned))
