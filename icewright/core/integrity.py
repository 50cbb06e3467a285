"""The result of checking that every file of a table exists and is what its entry says."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from icewright.core.schemas import NAME_MAPPING, columns
from icewright.core.table import FORMAT_V3, MAIN, RefKind, Snapshot, TableMetadata, TableRef
from icewright.core.writer_state import summary_number

_NUMBERED = {  # lists, the number of each item, and which of them is in use
    "snapshots": ("snapshot-id", "current-snapshot-id"),
    "schemas": ("schema-id", "current-schema-id"),
    "partition-specs": ("spec-id", "default-spec-id"),
    "sort-orders": ("order-id", "default-sort-order-id"),
}
_TIMESTAMPS = {"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"}
_CUT = {"int", "long", "decimal", "string", "binary"}
_SOURCES = {  # types that transforms apply to
    **{transform: {"date", *_TIMESTAMPS} for transform in ("year", "month", "day")},
    "hour": _TIMESTAMPS,
    "truncate": _CUT,
    "bucket": {*_CUT, *_TIMESTAMPS, "date", "time", "uuid", "fixed"},
}
_SINCE_V3 = ("unknown", "variant", "geometry", "geography")
_RESERVED = 2**31 - 201  # column ids above are Iceberg's own
_NO_SNAPSHOT = -1  # how older writers say that a table has none
_CLOCK_SKEW_MS = 60_000  # by which Iceberg's library lets logs go back


class CheckLevel(StrEnum):
    """The depth of a check; each level includes those before it."""

    EXISTS = "exists"  # every file is there, with its length, by a listing
    ENTRIES = "entries"  # manifest lists, manifests and the metadata file agree with one another
    FOOTERS = "footers"  # footers of data and delete files, and deletion vectors, agree with their entries
    ROWS = "rows"  # all rows of data and delete files can be read, and agree with their entries

    @property
    def depth(self) -> int:
        """Return the level as a number, which grows with its depth."""
        return list(CheckLevel).index(self)

    def includes(self, other: CheckLevel) -> bool:
        """Return whether a check of this level does what the other does."""
        return self.depth >= other.depth


class FileFaultKind(StrEnum):
    """The kinds of faults of a file that the table needs, or of its entry."""

    MISSING = "missing"
    WRONG_LENGTH = "wrong_length"
    UNREADABLE = "unreadable"
    WRONG_COUNT = "wrong_count"
    WRONG_SEQUENCE = "wrong_sequence"
    WRONG_PARTITION = "wrong_partition"
    WRONG_CONTENT = "wrong_content"
    WRONG_ROW_IDS = "wrong_row_ids"
    WRONG_FIELDS = "wrong_fields"
    DUPLICATE = "duplicate"
    WRONG_BOUNDS = "wrong_bounds"
    WRONG_OFFSETS = "wrong_offsets"
    WRONG_VECTOR = "wrong_vector"
    WRONG_POSITIONS = "wrong_positions"
    WRONG_SNAPSHOT = "wrong_snapshot"
    WRONG_ORDER = "wrong_order"
    WRONG_LOG = "wrong_log"


_OPERATIONS = ("append", "replace", "overwrite", "delete")  # the spec has no others
_Finding = tuple[FileFaultKind, str, Iterable[int]]  # what is wrong, and for which snapshots


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that snapshots need and cannot use, or that they read wrongly by what its entry says."""

    kind: FileFaultKind
    file: str  # what the file is: a manifest list, a manifest, data, deletes, statistics
    path: str
    detail: str
    snapshot_ids: tuple[int, ...]  # of the snapshots that the fault concerns; none: it breaks no read of them

    def __str__(self) -> str:
        """Return the fault as a line for people."""
        ids = ", ".join(map(str, self.snapshot_ids))
        return f"{self.kind} {self.file} {self.path}: {self.detail}" + (f"; snapshots {ids}" if ids else "")


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """The files of all snapshots of a table that were checked, and their faults."""

    ref: TableRef
    metadata_location: str
    level: CheckLevel
    snapshots: int
    files: int
    faults: tuple[FileFault, ...]
    read: int = 0  # data and delete files whose footers or rows were read
    bytes_read: int = 0  # of these files, as far as the level reads rows
    unread: Mapping[str, str] = field(default_factory=dict)  # why files were not read as deep as the level asks


def metadata_faults(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[FileFault]:
    """Yield where a metadata file contradicts itself; `document` is its JSON. Most of this breaks no snapshot yet."""
    checks = _wrong_references, _wrong_ancestry, _wrong_ids, _wrong_sources, _wrong_names, _wrong_logs
    # for which Iceberg's library loads no such table, or reads none of its files
    refused = _repeated_numbers, _repeated_columns, _impossible_retention, _wrong_mapping
    for finding in (*checks, _too_new, _ambiguous, _unfit, *refused):
        for kind, detail, snapshot_ids in finding(metadata, document):
            yield FileFault(kind, "metadata", metadata.metadata_location, detail, tuple(snapshot_ids))


def _wrong_references(metadata: TableMetadata, _: Mapping[str, Any]) -> Iterator[_Finding]:
    present, current = metadata.by_id, metadata.current_snapshot_id
    for ref in metadata.refs:
        if ref.snapshot_id not in present:
            detail = f"{ref.kind} {ref.name} is of snapshot {ref.snapshot_id}, which is gone"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, ()
        elif ref.name == MAIN and ref.snapshot_id != current:
            detail = f"main is of snapshot {ref.snapshot_id}, and the current one is {current}"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, (ref.snapshot_id,)
        if ref.name == MAIN and ref.kind is RefKind.TAG:
            yield FileFaultKind.WRONG_SNAPSHOT, "main is a tag: nobody can commit to it", ()
    for file in (*metadata.statistics, *metadata.partition_statistics):
        if file.snapshot_id not in present:
            detail = f"{file.path} is of snapshot {file.snapshot_id}, which is gone"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, ()


def _wrong_ancestry(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    if endless := sorted(_endless(metadata)):
        detail = f"snapshot {endless[0]} comes from itself: who asks for its history never ends"
        yield FileFaultKind.WRONG_SNAPSHOT, detail, endless
    schema_ids = {schema.get("schema-id") or 0 for schema in document.get("schemas") or ()}
    for snapshot in metadata.snapshots:
        number, operation = snapshot.snapshot_id, snapshot.operation
        if operation is None and snapshot.sequence_number > 0:  # format v1 asks for none
            detail = f"snapshot {number} has no operation: who reads by changes takes it for an overwrite"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, ()
        if operation not in (None, *_OPERATIONS):
            detail = f"snapshot {number} has the operation {operation!r}: PyIceberg reads no such table"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, ()
        if schema_ids and snapshot.schema_id is not None and snapshot.schema_id not in schema_ids:
            detail = f"snapshot {number} is of schema {snapshot.schema_id}, which is gone"
            yield FileFaultKind.WRONG_FIELDS, detail, (number,)
        parent = metadata.by_id.get(snapshot.parent_id or 0)
        if parent is None:
            continue
        if parent.sequence_number > snapshot.sequence_number:
            detail = f"snapshot {number} has a lower sequence number than its parent {parent.snapshot_id}"
            yield FileFaultKind.WRONG_SEQUENCE, detail, (number,)
        if not _follows(parent, snapshot, "records") and _follows(parent, snapshot, "data-files"):
            detail = f"total-records of snapshot {number} is not its parent's with what it adds and deletes"
            yield FileFaultKind.WRONG_COUNT, detail, ()


def _endless(metadata: TableMetadata) -> AbstractSet[int]:
    """Return the snapshots that are their own ancestors, and those that come from them."""
    ended, endless, by_id = set[int](), set[int](), metadata.by_id
    for snapshot in metadata.snapshots:
        line, ancestor = set[int](), by_id.get(snapshot.snapshot_id)
        while ancestor is not None and not any(ancestor.snapshot_id in known for known in (ended, endless, line)):
            line.add(ancestor.snapshot_id)
            ancestor = by_id.get(ancestor.parent_id or 0)
        (endless if ancestor is not None and ancestor.snapshot_id not in ended else ended).update(line)
    return endless


def _follows(parent: Snapshot, snapshot: Snapshot, what: str) -> bool:
    """Return whether a total of a summary is its parent's with what was added and deleted, or anew, as by a repair.

    Some writers begin at nothing on a new branch, or each time: they count files so, too.
    """
    total = f"total-{what}"
    added, deleted = summary_number(snapshot, f"added-{what}"), summary_number(snapshot, f"deleted-{what}")
    repaired = snapshot.operation == "replace" and not added + deleted
    if total not in parent.summary or total not in snapshot.summary or repaired:
        return True
    return summary_number(snapshot, total) == summary_number(parent, total) + added - deleted


def _wrong_ids(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield ids beyond the last one that was given: what comes next gets them once more."""
    schemas = document.get("schemas") or ()
    column_ids = [number for schema in schemas for number, _, _ in columns(schema, elements=True)]
    field_ids = [field.field_id for spec in metadata.specs for field in spec.fields]
    for name, ids, last in (
        ("column", column_ids, "last-column-id"),
        ("partition field", field_ids, "last-partition-id"),
    ):
        highest = max(ids, default=0)
        if highest > document.get(last, highest):
            detail = f"{name} {highest} is beyond the last id {document[last]}: a new one would get its values"
            yield FileFaultKind.WRONG_FIELDS, detail, ()
    last = document.get("last-column-id", _RESERVED)
    for file in document.get("statistics") or ():
        counted = {number for blob in file.get("blob-metadata") or () for number in blob.get("fields") or ()}
        if beyond := sorted(number for number in counted if last < number <= _RESERVED):
            detail = f"{file['statistics-path']} is of columns of the ids {beyond}, which the table never had"
            yield FileFaultKind.WRONG_FIELDS, detail, ()
    for snapshot in document.get("snapshots") or ():
        end = (snapshot.get("first-row-id") or 0) + (snapshot.get("added-rows") or 0)
        if end > (following := document.get("next-row-id", end)):
            detail = f"the row ids of snapshot {snapshot['snapshot-id']} end at {end}, the next one is {following}"
            yield FileFaultKind.WRONG_ROW_IDS, detail, (snapshot["snapshot-id"],)


def _too_new(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield types that the format version of the table has not yet."""
    if (version := metadata.format_version) >= FORMAT_V3:
        return
    for schema in document.get("schemas") or (metadata.schema,):
        for number, path, kind in columns(schema, elements=True):
            if isinstance(kind, str) and (kind.endswith("_ns") or kind.startswith(_SINCE_V3)):
                detail = f"column {number} {'.'.join(path)} is of type {kind}, which format version {version} has not"
                yield FileFaultKind.WRONG_FIELDS, detail, ()


def _wrong_sources(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield where new files are partitioned or sorted by columns that the schema has not."""
    by: dict[str, Iterable[int]] = {}
    for spec in metadata.specs:
        if spec.spec_id == metadata.default_spec_id:
            by["partition spec"] = [field.source_id for field in spec.fields if field.transform != "void"]
    for order in document.get("sort-orders") or ():
        if order["order-id"] == metadata.sort_order_id:
            by["sort order"] = [field["source-id"] for field in order["fields"] if "source-id" in field]
    for name, ids in by.items():
        if gone := sorted({*ids} - {number for number, _, _ in columns(metadata.schema)}):
            detail = f"its default {name} is by columns of the ids {gone}, which its schema has not"
            yield FileFaultKind.WRONG_FIELDS, detail, ()


def _wrong_logs(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    for name in ("snapshot-log", "metadata-log"):
        times = [int(entry["timestamp-ms"]) for entry in document.get(name) or ()]
        if any(after < before - _CLOCK_SKEW_MS for before, after in pairwise([*times, document["last-updated-ms"]])):
            detail = f"its {name} goes back in time: Iceberg's library refuses to load the table"
            yield FileFaultKind.WRONG_LOG, detail, metadata.by_id
    logged, current = [entry["snapshot-id"] for entry in document.get("snapshot-log") or ()], metadata.current_snapshot
    if current is not None and logged[-1:] != [current.snapshot_id]:
        detail = "its snapshot-log does not end with the current snapshot: readers of a time find another one, or none"
        yield FileFaultKind.WRONG_LOG, detail, ()
    present = {snapshot["snapshot-id"] for snapshot in document.get("snapshots") or ()}
    if gone := sorted({*logged} - present):
        yield FileFaultKind.WRONG_LOG, f"its snapshot-log has {gone}, which are gone: readers of their times fail", ()


def _wrong_names(metadata: TableMetadata, _: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield partition fields with a name that another field or column has, by which Iceberg's library loads nothing."""
    named = {".".join(path): number for number, path, _ in columns(metadata.schema)}
    for spec in metadata.specs:
        sources = defaultdict[str, list[int]](list)
        for part in spec.fields:
            sources[part.name].append(part.source_id)
        for name, source_ids in sources.items():
            if len(source_ids) > 1 or source_ids[0] != named.get(name, source_ids[0]):
                detail = f"partition spec {spec.spec_id} has a field {name}, and so has it or the schema another one"
                yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id


def _ambiguous(metadata: TableMetadata, _: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield partition fields for which Spark reads nothing: no transform that it knows, or several fields of one id."""
    sources, transforms = defaultdict[int, set[int]](set), defaultdict[int, set[str]](set)
    for spec in metadata.specs:
        for part in spec.fields:
            transform = part.transform.lower()
            sources[part.field_id].add(part.source_id)
            transforms[part.field_id].add(transform)
            if (name := transform.partition("[")[0]) not in ("identity", "void", *_SOURCES):
                detail = (
                    f"partition spec {spec.spec_id} has {part.name} by {name}, a transform that Spark does not know"
                )
                yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id
    for number in sources:
        if len(sources[number]) > 1 or len(transforms[number] - {"void"}) > 1:
            detail = f"several partition fields have the id {number}, by other columns or transforms: Spark reads none"
            yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id


def _unfit(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield transforms and identifiers of columns that cannot have them: Iceberg's library loads no such table."""
    kinds = {number: kind for number, _, kind in columns(metadata.schema)}
    by = [(f"partition spec {s.spec_id}", f.source_id, f.transform) for s in metadata.specs for f in s.fields]
    for order in document.get("sort-orders") or ():
        if order["order-id"] == metadata.sort_order_id:
            by += [("its default sort order", field.get("source-id"), field["transform"]) for field in order["fields"]]
    for what, source, transform in by:
        if not _can_have(kinds.get(source), transform):
            kind = kinds.get(source)
            kind = kind["type"] if isinstance(kind, Mapping) else kind
            detail = f"{what} has column {source} by {transform}, which no {kind} can have"
            yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id
    for schema in document.get("schemas") or (metadata.schema,):
        exact = set(_exact(schema["fields"]))
        for number in schema.get("identifier-field-ids") or ():
            if number not in exact:
                detail = f"a schema has the identifier field {number}, which is no required column of an exact type"
                yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id


def _can_have(kind: Any, transform: str) -> bool:  # noqa: ANN401 - text, JSON of a nested type, or None where it is gone
    """Return whether a column of a type can be transformed so; transforms that are unknown are not judged."""
    name, _, width = transform.lower().partition("[")
    if name in ("bucket", "truncate") and not width.strip("]0"):
        return False
    if kind is None or name == "void":
        return True
    return isinstance(kind, str) and (name not in _SOURCES or re.split(r"[(\[]", kind)[0] in _SOURCES[name])


def _exact(fields: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the columns that can identify rows: they are never null, and have no values that are nearly equal."""
    for column in fields:
        match column["type"]:
            case {"type": "struct", "fields": inner} if column["required"]:
                yield from _exact(inner)
            case str(kind) if column["required"] and kind not in ("float", "double"):
                yield column["id"]


def _repeated_numbers(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    """Yield numbers of snapshots, schemas, specs and orders that are there twice, or in use and not there."""
    for names, (number, chosen) in _NUMBERED.items():
        numbers = Counter(item[number] for item in document.get(names) or () if number in item)
        for twice, times in numbers.items():
            if times > 1:
                yield FileFaultKind.DUPLICATE, f"it has {times} {names} of the {number} {twice}", metadata.by_id
        none = (None, _NO_SNAPSHOT) if names == "snapshots" else ()
        if names in document and (current := document.get(chosen)) not in (*none, *numbers):
            yield FileFaultKind.WRONG_FIELDS, f"its {chosen} is {current}, and it has no such {number}", metadata.by_id


def _repeated_columns(metadata: TableMetadata, document: Mapping[str, Any]) -> Iterator[_Finding]:
    for schema in document.get("schemas") or (metadata.schema,):
        fields = [(number, ".".join(path)) for number, path, _ in columns(schema, elements=True)]
        counted = Counter(f"id {number}" for number, _ in fields) + Counter(f"name {name}" for _, name in fields)
        for twice in (what for what, times in counted.items() if times > 1):
            yield FileFaultKind.WRONG_FIELDS, f"a schema has several columns of the {twice}", metadata.by_id


def _impossible_retention(metadata: TableMetadata, _: Mapping[str, Any]) -> Iterator[_Finding]:
    for ref in metadata.refs:
        ages = [age.total_seconds() for age in (ref.max_snapshot_age, ref.max_ref_age) if age is not None]
        kept = () if ref.min_snapshots_to_keep is None else (ref.min_snapshots_to_keep,)
        of_branches = ref.kind is RefKind.TAG and (kept or ref.max_snapshot_age is not None)
        if of_branches or any(value <= 0 for value in (*ages, *kept)):
            detail = f"{ref.kind} {ref.name} has a retention that no {ref.kind} can have"
            yield FileFaultKind.WRONG_SNAPSHOT, detail, metadata.by_id


def _wrong_mapping(metadata: TableMetadata, _: Mapping[str, Any]) -> Iterator[_Finding]:
    if name_mapping(metadata) != metadata.properties.get(NAME_MAPPING):
        detail = f"its {NAME_MAPPING} is no list of names, or has a name or an id twice"
        yield FileFaultKind.WRONG_FIELDS, detail, metadata.by_id


def name_mapping(metadata: TableMetadata) -> str | None:
    """Return the mapping by which columns of files without ids are found; None without one that readers can take."""
    mapping = metadata.properties.get(NAME_MAPPING)
    try:
        mapped = [] if mapping is None else _mapped_ids(json.loads(mapping))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return None if mapped is None or len({*mapped}) < len(mapped) else mapping


def _mapped_ids(mapping: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the ids of a name mapping; None for names that are no texts, or that are there twice."""
    names = [name for field in mapping for name in field.get("names", [])]
    ids = [field["field-id"] for field in mapping if field.get("field-id") is not None]
    inner = [_mapped_ids(field["fields"]) for field in mapping if "fields" in field]
    lists = all(isinstance(field.get("names", []), list) for field in mapping)
    texts, numbers = all(isinstance(name, str) for name in names), all(isinstance(number, int) for number in ids)
    if not lists or not texts or not numbers or len({*names}) < len(names) or None in inner:
        return None
    return ids + [number for some in inner for number in some or ()]
