"""Project a file's columns onto the table's current schema by field id (spec, Column Projection)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.types import FIELD_ID, Field, arrow_type, constant
from icewright.core.kernel import FOREIGN_TYPE, NO_IDS
from icewright.core.schemas import inner_fields

_INT_BITS = 32
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


class Unresolvable(Exception):
    """The file lacks a required column, or has values that the table's type cannot hold and Spark misreads."""


class UnsupportedByArrow(Exception):
    """The file is intact, but only Spark's own engine reads it."""


def beyond_memory(what: str) -> UnsupportedByArrow:
    """Return the error for something that does not fit into the memory of a task."""
    return UnsupportedByArrow(f"{what} not fit into the memory of a task (compact.task_memory_mb)")


def field_id(field: pa.Field) -> int | None:
    """Return the field id in the column's metadata; None without one."""
    raw_id = (field.metadata or {}).get(FIELD_ID)
    return None if raw_id is None else int(raw_id)


def with_ids(schema: pa.Schema, name_mapping: str | None) -> pa.Schema:
    """Return the file's schema with field ids: its own, else those of the table's name mapping.

    Raises `UnsupportedByArrow` when there are neither: Spark then finds columns by position.
    """
    if any(_has_ids(field) for field in schema) or not schema.names:
        return schema
    if name_mapping is None:
        raise UnsupportedByArrow(NO_IDS())
    return pa.schema(_with_mapped_ids(list(schema), json.loads(name_mapping)))


def _has_ids(field: pa.Field) -> bool:
    return field_id(field) is not None or any(_has_ids(child) for child in children(field.type))


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a struct, the two of a map or the one of a list; none of other types."""
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def with_inner(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """Yield fields, each before those inside of it."""
    for field in fields:
        yield field
        yield from with_inner(children(field.type))


def stored(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """Yield the columns that Parquet stores of fields, in their order."""
    return (field for field in with_inner(fields) if not children(field.type))


def _is_list(kind: pa.DataType) -> bool:
    return isinstance(kind, _LISTS)


def _with_mapped_ids(fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]]) -> list[pa.Field]:
    """Return the fields with the ids that the name mapping gives; unmapped fields have no id."""
    by_name = {name: mapped for mapped in mapping for name in mapped.get("names", ())}
    result = []
    for field in fields:
        mapped = by_name.get(field.name)
        if mapped is not None and mapped.get("field-id") is not None:  # the spec lets a mapping leave it out
            kind = _mapped_type(field.type, mapped.get("fields") or ())
            index = str(mapped["field-id"]).encode()
            result.append(pa.field(field.name, kind, field.nullable, {FIELD_ID: index}))
        else:
            result.append(field)
    return result


def _mapped_type(kind: pa.DataType, mapping: Sequence[Mapping[str, Any]]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_with_mapped_ids(children(kind), mapping))
    if pa.types.is_map(kind):
        key, value = children(kind)
        named = _with_mapped_ids([key.with_name("key"), value.with_name("value")], mapping)
        return pa.map_(*named)
    if _is_list(kind):
        return pa.list_(_with_mapped_ids([kind.value_field.with_name("element")], mapping)[0])
    return kind


def resolved(
    batch: pa.RecordBatch,
    file_fields: Sequence[pa.Field],
    fields: Sequence[Field],
    constants: Mapping[int, Any],
    codes: AbstractSet[int] = frozenset(),
) -> list[pa.Array]:
    """Return the fields' columns from a batch whose columns are `file_fields`.

    `constants` are identity partition values, which take precedence over the file. Those that are read as codes stay
    codes where their ids are among `codes`. Raises `Unresolvable`.
    """
    index_by_id = {field_id(field): index for index, field in enumerate(file_fields)}
    columns = []
    for field in fields:
        if field["id"] in constants:
            columns.append(constant(field["type"], constants[field["id"]], batch.num_rows))
        elif (index := index_by_id.get(field["id"])) is not None:
            array = batch.column(index)
            stays = pa.types.is_dictionary(array.type) and field["id"] in codes
            stays = stays and array.type == pa.dictionary(pa.int32(), arrow_type(field["type"]))
            columns.append(array if stays else _project(array, file_fields[index], field))
        else:
            columns.append(_default_column(field, batch.num_rows))
    return columns


def _default_column(field: Field, length: int) -> pa.Array:
    default = field.get("initial-default")
    if default is None and field["required"]:
        raise Unresolvable(f"it has no column {field['name']}, which is required and has no initial default")
    return constant(field["type"], default, length)


def _project(array: pa.Array, file_field: pa.Field, field: Field) -> pa.Array:
    kind = field["type"]
    wanted = arrow_type(kind)
    # a name mapping calls all lists one type
    if file_field.type.equals(wanted, check_metadata=True) and array.type.equals(wanted):
        return array
    if isinstance(kind, str):
        return _cast(array, wanted)
    match kind["type"]:
        case "struct":
            return _project_struct(array, file_field.type, kind)
        case "list":
            array = array if pa.types.is_list(array.type) else _list_array(array)
            values = _project(array.values, file_field.type.value_field, *inner_fields(kind))
            return _with_values(array, wanted, values)
        case _:
            key, value = inner_fields(kind)
            keys = _project(array.keys, file_field.type.key_field, key)
            items = _project(array.items, file_field.type.item_field, value)
            entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
            return _with_values(array, wanted, entries)


def _project_struct(array: pa.Array, file_field: pa.DataType, kind: Mapping[str, Any]) -> pa.Array:
    index_by_id = {field_id(child): index for index, child in enumerate(children(file_field))}
    if index_by_id.keys() == {None}:  # the name mapping has none of its fields: Spark then reads null for the struct
        raise UnsupportedByArrow(FOREIGN_TYPE(f"{file_field} for {arrow_type(kind)}"))
    arrays = []
    for field in kind["fields"]:
        index = index_by_id.get(field["id"])
        if index is None:
            arrays.append(_default_column(field, len(array)))
        else:
            arrays.append(_project(array.field(index), file_field.field(index), field))
    fields = arrow_type(kind)
    mask = array.is_null() if array.null_count else None
    if not arrays:
        return pa.array([None if null else {} for null in array.is_null().to_pylist()], fields)
    return pa.StructArray.from_arrays(arrays, fields=children(fields), mask=mask)


def _list_array(array: pa.Array) -> pa.Array:
    """Return the lists of an array of another list type, which its writer noted in the file's Arrow schema."""
    if not isinstance(array.type, pa.ListViewType | pa.LargeListViewType):
        return array.cast(pa.list_(array.type.value_field))
    lengths = pc.list_value_length(array).cast(pa.int32()).fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _with_values(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return the list or map with its child values replaced by as many others."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children=[values])


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values as another type.

    Raises `UnsupportedByArrow` where Spark may read others, or none, and `Unresolvable` where Spark reads others than
    every other engine, and would write them: moments of other units, and decimals by their digits.
    """
    array = plain_values(array)
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not _keeps_values(array.type, stored):
        raise UnsupportedByArrow(FOREIGN_TYPE(f"{array.type} for {kind}"))
    try:
        if stored is not kind:
            return pa.ExtensionArray.from_storage(kind, array.cast(stored))
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type) and kind.tz != array.type.tz:
            array = array.cast(pa.timestamp(array.type.unit, kind.tz))
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        if pa.types.is_timestamp(array.type) or pa.types.is_decimal(array.type):
            raise Unresolvable(
                f"it has values of {array.type} that {kind} cannot hold, and Spark reads others in their place"
            ) from error
        raise UnsupportedByArrow(FOREIGN_TYPE(f"{array.type} for {kind}: {error}")) from error


def plain_values(array: pa.Array) -> pa.Array:
    """Return the values of codes and of extension types, such as a file's Arrow schema may name."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _keeps_values(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast gives the values that were written: wider numbers, or another form of the same ones."""
    if pa.types.is_floating(kind):
        return bool(pa.types.is_floating(wanted) and kind.bit_width <= wanted.bit_width)
    if pa.types.is_unsigned_integer(kind) and kind.bit_width >= _INT_BITS:
        return False
    if _is_number(kind) and _is_number(wanted) and kind.bit_width == wanted.bit_width:
        return True
    return kind == wanted or pa.types.is_null(kind) or any(same(kind) and same(wanted) for same in _SAME)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


_BYTES = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_fixed_size_binary),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_SAME = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_time, _is_bytes)
