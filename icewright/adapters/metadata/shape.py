"""The fields that a metadata file must have, and their types: without them Iceberg's library does not load it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from icewright.adapters.metadata.document import Json, SpecObject
from icewright.core.table import FORMAT_V2, FORMAT_V3

_Id = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_ANY = Meta(min_length=1)
_NAMES = r"boolean|int|long|float|double|date|time|timestamp(tz)?(_ns)?|string|uuid|binary|unknown|variant"
_TYPE = re.compile(
    rf"({_NAMES}|fixed\[\s*\d+\s*\]|decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)|geometry(\(.*\))?|geography(\(.*\))?)"
)
_MOST_DIGITS = 38
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_DAY = r"[+-]?\d{4,}-(?!02-3|(04|06|09|11)-31)(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME, _BYTES = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?", r"([0-9a-fA-F]{2})*"
_MOMENT = {"timestamp": f"{_DAY}T{_TIME}", "timestamptz": rf"{_DAY}T{_TIME}(Z|\+00:00)"}
# how the JSON of defaults has values of types: by a type of JSON, or by text
_VALUES: Mapping[str, type | str] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "date": _DAY,
    "time": _TIME,
    "uuid": _UUID,
    "fixed": _BYTES,
    "binary": _BYTES,
    "decimal": r"-?\d+(\.\d+)?",
    **_MOMENT,
    **{f"{name}_ns": pattern for name, pattern in _MOMENT.items()},
}
# that format v1 may leave out
_SINCE_V2 = (
    *("table_uuid", "schemas", "current_schema_id", "partition_specs", "default_spec_id", "last_partition_id"),
    *("sort_orders", "default_sort_order_id", "last_sequence_number"),
)


def _require_type(kind: _Type) -> None:
    """Raise `ValueError` where a simple type is none."""
    match = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
    if isinstance(kind, str) and not match:
        raise ValueError(f"no type is called {kind!r}")
    if match and match[4] and not max(1, int(match[5])) <= int(match[4]) <= _MOST_DIGITS:
        raise ValueError(f"{kind} has more digits than 38 or behind the point than in all, or none")


def _has_value(kind: _Type, default: Json) -> bool:
    """Return whether the JSON of a default is a value of a type; those of nested types are not read."""
    if not isinstance(kind, str):
        return isinstance(default, Mapping | list)
    match _VALUES.get(re.split(r"\W", kind, maxsplit=1)[0]):
        case None:
            return False
        case str(pattern):
            return isinstance(default, str) and bool(re.fullmatch(pattern, default))
        case expected:
            bits = {"int": 31, "long": 63}.get(kind)
            return type(default) is expected and (bits is None or -(2**bits) <= default < 2**bits)


class _Struct(msgspec.Struct, tag="struct", frozen=True, gc=False):
    fields: list[_Field]


class _List(SpecObject, tag="list", frozen=True, gc=False):
    element_id: _Id
    element: _Type
    element_required: bool

    def __post_init__(self) -> None:
        _require_type(self.element)


class _Map(SpecObject, tag="map", frozen=True, gc=False):
    key_id: _Id
    key: _Type
    value_id: _Id
    value: _Type
    value_required: bool

    def __post_init__(self) -> None:
        _require_type(self.key)
        _require_type(self.value)


_Type = str | _Struct | _List | _Map


class _Field(SpecObject, frozen=True, gc=False):
    id: _Id
    name: str
    required: bool
    type: _Type
    initial_default: Json = msgspec.UNSET
    write_default: Json = msgspec.UNSET

    def __post_init__(self) -> None:
        _require_type(self.type)
        if self.type == "unknown" and self.required:
            raise ValueError(f"{self.name} is required and of type unknown, which has nothing but nulls")
        for default in (self.initial_default, self.write_default):
            if default is not msgspec.UNSET and not _has_value(self.type, default):
                raise ValueError(f"{self.name} has the default {default!r}, which is no {self.type}")


class _Sourced(SpecObject, frozen=True, gc=False):
    transform: str
    source_id: _Id | None = None
    source_ids: list[_Id] | None = None  # of transforms of several columns, since format v3

    def __post_init__(self) -> None:
        if self.source_id is None and not self.source_ids:
            raise ValueError("it is of no column: `source-id`")


class _PartitionField(_Sourced, kw_only=True, frozen=True, gc=False):
    name: Annotated[str, _ANY]
    field_id: _Id | None = None


class _SortField(_Sourced, kw_only=True, frozen=True, gc=False):
    direction: Annotated[str, Meta(pattern="^(?i:asc|desc)$")]
    null_order: Annotated[str, Meta(pattern="^(?i:nulls-(first|last))$")]


class _Spec(SpecObject, frozen=True, gc=False):
    spec_id: _Id
    fields: list[_PartitionField]


class _Order(SpecObject, frozen=True, gc=False):
    order_id: _Id
    fields: list[_SortField]

    def __post_init__(self) -> None:
        if bool(self.fields) is (self.order_id == 0):
            raise ValueError("0 is the `order-id` of no order, and of nothing else")


class _Schema(SpecObject, frozen=True, gc=False):
    type: Literal["struct"]
    fields: list[_Field]
    schema_id: _Id | None = None
    identifier_field_ids: list[_Id] | None = None


class _SnapshotLogEntry(SpecObject, frozen=True, gc=False):
    timestamp_ms: int
    snapshot_id: int


class _MetadataLogEntry(SpecObject, frozen=True, gc=False):
    timestamp_ms: int
    metadata_file: str


class _Blob(SpecObject, frozen=True, gc=False):
    type: str
    snapshot_id: int
    sequence_number: int
    fields: list[_Id]
    properties: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class _Statistics(SpecObject, frozen=True, gc=False):
    statistics_path: str
    file_size_in_bytes: int
    file_footer_size_in_bytes: int
    blob_metadata: list[_Blob]


class _Snapshot(SpecObject, frozen=True, gc=False):
    snapshot_id: int
    timestamp_ms: int
    first_row_id: int | None = None
    added_rows: int | None = None
    summary: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.first_row_id is not None and self.added_rows is None:
            raise ValueError(f"snapshot {self.snapshot_id} has `first-row-id`, and no `added-rows`")


class _Shape(SpecObject, frozen=True, gc=False):
    format_version: int
    location: str
    last_updated_ms: int
    last_column_id: _Id
    table_uuid: str | None = None
    last_sequence_number: int | None = None
    schemas: Annotated[list[_Schema], _ANY] | None = None
    schema: _Schema | None = None
    current_schema_id: _Id | None = None
    partition_specs: Annotated[list[_Spec], _ANY] | None = None
    default_spec_id: _Id | None = None
    last_partition_id: _Id | None = None
    sort_orders: Annotated[list[_Order], _ANY] | None = None
    default_sort_order_id: _Id | None = None
    next_row_id: int | None = None
    properties: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    refs: dict[str, Json] | msgspec.UnsetType = msgspec.UNSET
    snapshots: list[_Snapshot] | None = None
    snapshot_log: list[_SnapshotLogEntry] | None = None
    metadata_log: list[_MetadataLogEntry] | None = None
    statistics: list[_Statistics] | None = None

    def __post_init__(self) -> None:
        version = self.format_version
        needed = (*_SINCE_V2 * (version >= FORMAT_V2), *("next_row_id",) * (version >= FORMAT_V3))
        if lacking := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"format v{version} needs {', '.join(lacking).replace('_', '-')}")
        if version >= FORMAT_V2 and any(f.field_id is None for s in self.partition_specs or () for f in s.fields):
            raise ValueError(f"format v{version} needs the `field-id` of each partition field")
        if self.table_uuid is not None and not re.fullmatch(_UUID, self.table_uuid):
            raise ValueError(f"{self.table_uuid!r} is no `table-uuid`")
        if self.schemas is None and self.schema is None:
            raise ValueError("it has no schema")


def malformed(document: Json) -> str | None:
    """Return what the JSON of a metadata file lacks, or has of another type than the spec says."""
    try:
        msgspec.convert(document, _Shape)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)
    return None
