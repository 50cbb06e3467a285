"""Columns of a file as the table's schema has them now, found by field id (spec, Column Projection)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from icewright.adapters.engines.arrow.types import (
    FIELD_ID,
    Field,
    arrow_field,
    arrow_type,
    constant,
    list_element,
    map_key,
    map_value,
)


class Unresolvable(Exception):
    """The file does not hold what the schema asks for."""


class Unfit(Exception):
    """Nothing is wrong with the file, but it is not read here."""


def field_id(field: pa.Field) -> int | None:
    """Return the id that the writer gave the column."""
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def with_ids(schema: pa.Schema, name_mapping: str | None) -> pa.Schema:
    """The file's schema with field ids: its own, else those of the table's name mapping for files that have none.

    Raises `Unfit` when there are neither: then columns are found by their position, which Spark does.
    """
    if any(_has_ids(field) for field in schema) or not schema.names:
        return schema
    if name_mapping is None:
        raise Unfit("there are files without field ids, and no name mapping (schema.name-mapping.default)")
    return pa.schema(_mapped(list(schema), json.loads(name_mapping)))


def _has_ids(field: pa.Field) -> bool:
    return field_id(field) is not None or any(_has_ids(child) for child in _children(field.type))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListType | pa.LargeListType)


def _mapped(fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]]) -> list[pa.Field]:
    """Return the fields with ids by their names; those that nothing maps have none."""
    by_name = {name: one for one in mapping for name in one["names"]}
    result = []
    for field in fields:
        one = by_name.get(field.name)
        if one is not None:
            kind = _mapped_type(field.type, one.get("fields", ()))
            number = str(one["field-id"]).encode()
            result.append(pa.field(field.name, kind, field.nullable, {FIELD_ID: number}))
        else:
            result.append(field)
    return result


def _mapped_type(kind: pa.DataType, mapping: Sequence[Mapping[str, Any]]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_mapped(_children(kind), mapping))
    if pa.types.is_map(kind):
        key, value = _children(kind)
        named = _mapped([key.with_name("key"), value.with_name("value")], mapping)
        return pa.map_(*named)
    if _is_list(kind):
        return pa.list_(_mapped([kind.value_field.with_name("element")], mapping)[0])
    return kind


def resolved(
    batch: pa.RecordBatch, file_fields: Sequence[pa.Field], wanted: Sequence[Field], constants: Mapping[int, Any]
) -> list[pa.Array]:
    """Return the wanted columns of a batch whose columns are `file_fields`, with ids.

    `constants`: identity partition values, which hold whatever the file says. Raises `Unresolvable`.
    """
    own = {field_id(field): number for number, field in enumerate(file_fields)}
    columns = []
    for field in wanted:
        if field["id"] in constants:
            columns.append(constant(field["type"], constants[field["id"]], batch.num_rows))
        elif (number := own.get(field["id"])) is not None:
            columns.append(_column(batch.column(number), file_fields[number], field))
        else:
            columns.append(_missing(field, batch.num_rows))
    return columns


def _missing(field: Field, length: int) -> pa.Array:
    default = field.get("initial-default")
    if default is None and field["required"]:
        raise Unresolvable(f"it has no column {field['name']}, which is required and has no initial default")
    return constant(field["type"], default, length)


def _column(array: pa.Array, had: pa.Field, field: Field) -> pa.Array:
    wanted = arrow_field(field)
    if had.type.equals(wanted.type, check_metadata=True):
        return array
    kind = field["type"]
    if isinstance(kind, str):
        return _cast(array, wanted.type)
    match kind["type"]:
        case "struct":
            return _struct(array, had.type, kind)
        case "list":
            if pa.types.is_large_list(array.type):
                array = array.cast(pa.list_(had.type.value_field))
            values = _column(array.values, had.type.value_field, list_element(kind))
            return _rebuilt(array, wanted.type, values)
        case _:
            keys = _column(array.keys, had.type.key_field, map_key(kind))
            items = _column(array.items, had.type.item_field, map_value(kind))
            entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.type.key_field, wanted.type.item_field])
            return _rebuilt(array, wanted.type, entries)


def _struct(array: pa.Array, had: pa.DataType, kind: Mapping[str, Any]) -> pa.Array:
    own = {field_id(child): number for number, child in enumerate(_children(had))}
    children = []
    for field in kind["fields"]:
        number = own.get(field["id"])
        if number is None:
            children.append(_missing(field, len(array)))
        else:
            children.append(_column(array.field(number), had.field(number), field))
    wanted = arrow_type(kind)
    mask = array.is_null() if array.null_count else None
    if not children:
        return pa.array([None if null else {} for null in array.is_null().to_pylist()], wanted)
    return pa.StructArray.from_arrays(children, fields=_children(wanted), mask=mask)


def _rebuilt(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return the list or map with other values, of which there are as many."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children=[values])


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    try:
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type) and kind.tz != array.type.tz:
            array = array.cast(pa.timestamp(array.type.unit, kind.tz))
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise Unresolvable(f"a column of {array.type} does not become {kind}: {error}") from error
