"""Iceberg types and JSON single values as Arrow types, with field ids, and Arrow arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from icewright.core import field_ids
from icewright.core.schemas import inner_fields

FIELD_ID = b"PARQUET:field_id"
ROW_ID = {"id": field_ids.ROW_ID, "name": "_row_id", "required": False, "type": "long"}
LAST_UPDATED = {**ROW_ID, "id": field_ids.LAST_UPDATED_SEQUENCE_NUMBER, "name": "_last_updated_sequence_number"}

Field = Mapping[str, Any]  # the spec's JSON of a field: id, name, required, type

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.uuid(),  # written with the logical type UUID
    "binary": pa.binary(),
}
_LAST_UNIT = "\uffff"  # behind it characters take two units
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")


def arrow_field(field: Field) -> pa.Field:
    """Return the Arrow field with its id. Raises `ValueError` for a type without an Arrow equivalent."""
    kind = arrow_type(field["type"])
    return pa.field(stored_name(field["name"]), kind, not field["required"], {FIELD_ID: str(field["id"]).encode()})


def stored_name(name: str) -> str:
    """Return the name by which files have a column: Iceberg's writers keep of it what Avro allows (AvroSchemaUtil)."""
    return "".join(_stored(char, is_first=not index) for index, char in enumerate(name))


def _stored(char: str, *, is_first: bool) -> str:
    """Return a character of a name, or the codes that stand for it: of Java's characters, UTF-16 units."""
    if char <= _LAST_UNIT and (char == "_" or char.isalpha() or char.isdecimal()):
        return f"_{char}" if is_first and char.isdecimal() else char
    units = char.encode("utf-16-be")
    return "".join(f"_x{int.from_bytes(units[at : at + 2]):X}" for at in range(0, len(units), 2))


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """Return the Arrow schema with field ids."""
    return pa.schema([arrow_field(field) for field in fields])


def arrow_type(kind: Any) -> pa.DataType:  # noqa: ANN401 - the spec's JSON of a type
    """Return the Arrow type of an Iceberg type. Raises `ValueError`."""
    if isinstance(kind, str):
        return _primitive(kind)
    inner = [arrow_field(field) for field in inner_fields(kind)]
    match kind["type"]:
        case "struct":
            return pa.struct(inner)
        case "list":
            return pa.list_(*inner)
        case "map":
            return pa.map_(*inner)
    raise ValueError(f"type {kind['type']} is unknown")


def _primitive(kind: str) -> pa.DataType:
    if primitive := _PRIMITIVES.get(kind):
        return primitive
    if decimal := DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if fixed := _FIXED.fullmatch(kind):
        return pa.binary(int(fixed[1]))
    raise ValueError(f"type {kind} has no equal in Arrow")


def storage_array(array: pa.Array) -> pa.Array:
    """Return the array in a type that Polars supports: extension storage; strings and fixed-size binary as binary.

    Binary values sort and compare like strings, and Polars does not validate that they are UTF-8.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    text = pa.types.is_fixed_size_binary(array.type) or pa.types.is_string(array.type)
    return array.cast(pa.binary()) if text else array


def constant(kind: Any, value: Any, length: int) -> pa.Array:  # noqa: ANN401 - JSON
    """Return an array that repeats a JSON single value (spec, Appendix D); nested types allow only null."""
    target = arrow_type(kind)
    if value is None or not isinstance(kind, str):
        if value is not None:
            raise ValueError(f"a value of {kind['type']} cannot stand for a column")
        return pa.nulls(length, target)
    if kind == "binary" or kind.startswith("fixed"):
        scalar = pa.scalar(bytes.fromhex(value), target)
    elif kind == "uuid":
        return pa.array([UUID(value).bytes] * length, pa.binary(16)).cast(target)
    elif kind == "time" and isinstance(value, str):
        scalar = pa.scalar(time.fromisoformat(value), target)
    elif isinstance(value, str):
        scalar = pc.cast(pa.scalar(value), target)
    else:
        scalar = pa.scalar(value, target)
    return pa.repeat(scalar, length)


def single_value(kind: str, value: Any) -> Any:  # noqa: ANN401 - any Avro value
    """Return a partition value of a manifest as the JSON single value that `constant` takes."""
    if not isinstance(value, bytes):
        return value
    if kind == "uuid":
        return str(UUID(bytes=value))
    if decimal := DECIMAL.fullmatch(kind):
        unscaled = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
        # built from digits: arithmetic would round to the 28 digits of Python's default context
        return f"{Decimal((unscaled.sign, unscaled.digits, -int(decimal[2]))):f}"
    return value.hex()
