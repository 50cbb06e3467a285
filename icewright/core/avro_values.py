"""Encode Avro's numbers and container files, and find where values of its binary encoding end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

AVRO_MAGIC = b"Obj\x01"  # the first bytes of a container file
Schema = Any  # an Avro schema, or a part of one, as JSON
Skip = Callable[[bytes, int], int]  # from the position where a value begins to the one where it ends
Items = Callable[[bytes, int, int], int]  # takes the number of items too; returns where the last one ends

_LAST_BYTE = 0x80  # all bytes of a number but the last have this bit
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def varint(number: int) -> bytes:
    """Return an Avro int or long: zig-zag, seven bits a byte."""
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value >= _LAST_BYTE:
        out.append((value & 0x7F) | _LAST_BYTE)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _LAST_BYTE:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def container_file(meta: Mapping[str, bytes], sync: bytes, blocks: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a container file of blocks, each with the number of its records; what may be large is copied once."""
    parts = [AVRO_MAGIC, varint(len(meta))]
    for text in (part for name, value in meta.items() for part in (name.encode(), value)):
        parts += (varint(len(text)), text)
    parts += (b"\x00", sync)
    for records, content in blocks:
        parts += (varint(records), varint(len(content)), content, sync)
    return b"".join(parts)


def skipper(schema: Schema, named_types: dict[str, Schema]) -> Skip:
    """Return a function that skips a value; `named_types` collects types that later parts of the schema refer to."""
    if isinstance(schema, list):
        return _skip_union([skipper(branch, named_types) for branch in schema])
    if isinstance(schema, str):
        if schema in named_types:
            return skipper(named_types[schema], named_types)
        if schema in _FIXED:
            return _skip_bytes_of(_FIXED[schema])
        return _skip_text if schema in ("string", "bytes") else _skip_varint
    match schema["type"]:
        case "record":
            return _skip_record([skipper(f["type"], named_types) for f in schema["fields"]])
        case "array":
            return _skip_array(schema["items"], named_types)
        case "map":
            return _skip_blocks([_skip_text, skipper(schema["values"], named_types)])
        case "fixed":
            named_types[schema["name"]] = schema
            return _skip_bytes_of(schema["size"])
        case "enum":
            named_types[schema["name"]] = schema
            return _skip_varint
        case inner:
            return skipper(inner, named_types)


def _skip_varint(content: bytes, position: int) -> int:
    while content[position] >= _LAST_BYTE:
        position += 1
    return position + 1


def _skip_text(content: bytes, position: int) -> int:
    length, position = read_varint(content, position)
    if not 0 <= length <= len(content) - position:  # a negative length would lead backwards, in an endless loop
        raise ValueError(f"a length of {length} bytes at {position} makes no sense")
    return position + length


def _skip_bytes_of(size: int) -> Skip:
    return lambda _, position: position + size


def _skip_union(branches: Sequence[Skip]) -> Skip:
    return lambda content, position: branches[content[position] >> 1](content, position + 1)


def _skip_record(fields: Sequence[Skip]) -> Skip:
    def skip(content: bytes, position: int) -> int:
        for field in fields:
            position = field(content, position)
        return position

    return skip


def _skip_array(items: Schema, named_types: dict[str, Schema]) -> Skip:
    if isinstance(items, dict) and items["type"] == "record":
        return _skip_blocks([skipper(f["type"], named_types) for f in items["fields"]])
    return _skip_blocks([skipper(items, named_types)])


def _skip_blocks(item: Sequence[Skip]) -> Skip:
    """Return a function that skips an array or map: blocks of items made of these parts, and a last empty block."""
    if all(part is _skip_varint for part in item):
        items = _skip_numbers(len(item))  # most of an entry: one loop is faster than a call for each
    elif list(item) == [_skip_varint, _skip_text]:
        items = _skip_bounds
    else:
        items = _skip_items(item)

    def skip(content: bytes, position: int) -> int:
        while True:
            count, position = read_varint(content, position)
            if count == 0:
                return position
            # a negative count is followed by the block's length in bytes, encoded like the length of a text
            position = _skip_text(content, position) if count < 0 else items(content, position, count)

    return skip


def _skip_numbers(numbers_per_item: int) -> Items:
    def skip(content: bytes, position: int, count: int) -> int:
        for _ in range(count * numbers_per_item):
            while content[position] >= _LAST_BYTE:
                position += 1
            position += 1
        return position

    return skip


def _skip_bounds(content: bytes, position: int, count: int) -> int:
    for _ in range(count):
        while content[position] >= _LAST_BYTE:
            position += 1
        length = content[position + 1]
        if length < _LAST_BYTE:
            position += 2 + (length >> 1)
        else:
            position = _skip_text(content, position + 1)
    return position


def _skip_items(item: Sequence[Skip]) -> Items:
    def skip(content: bytes, position: int, count: int) -> int:
        for _ in range(count):
            for part in item:
                position = part(content, position)
        return position

    return skip
