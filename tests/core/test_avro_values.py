"""The end of each value is found, whatever its type."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.avro_values import read_varint, skipper, varint
from tests.examples import examples

LONG = st.integers(-(2**63), 2**63 - 1)
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "null": ("null", st.none()),
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", LONG),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "string": ("string", st.text(max_size=200)),
    "bytes": ("bytes", st.binary(max_size=200)),
    "optional": (["null", "string"], st.none() | st.text(max_size=9)),
    "fixed": ({"type": "fixed", "name": "f", "size": 7}, st.binary(min_size=7, max_size=7)),
    "enum": ({"type": "enum", "name": "e", "symbols": ["a", "b"]}, st.sampled_from(["a", "b"])),
    "longs": ({"type": "array", "items": "long"}, st.lists(LONG, max_size=90)),
    "texts": ({"type": "array", "items": "string"}, st.lists(st.text(), max_size=9)),
    "map": ({"type": "map", "values": ["null", "long"]}, st.dictionaries(st.text(max_size=3), st.none() | LONG)),
    "counts": (
        {"type": "array", "items": {"type": "record", "name": "kv", "fields": [
            {"name": "key", "type": "int"}, {"name": "value", "type": "long"}]}},
        st.lists(st.fixed_dictionaries({"key": st.integers(0, 999), "value": LONG}), max_size=90),
    ),
    "bounds": (
        {"type": "array", "items": {"type": "record", "name": "kb", "fields": [
            {"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}]}},
        st.lists(st.fixed_dictionaries({"key": st.integers(0, 999), "value": st.binary(max_size=99)}), max_size=9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_values_end_where_they_end(kind: str) -> None:
    """After any values of a type, one after the other, the position is the end of their bytes."""
    schema, values = TYPES[kind]
    skip = skipper(schema, {})

    @examples(60)
    @given(st.lists(values, min_size=1, max_size=4))
    def holds(made: list[Any]) -> None:
        out = io.BytesIO()
        for value in made:
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        position = 0
        for _ in made:
            position = skip(out.getvalue() + b"\x55" * 9, position)
        assert position == len(out.getvalue())

    holds()


def test_types_named_before() -> None:
    """A fixed type that a later field refers to by its name is known there."""
    first = {"type": "fixed", "name": "decimal_9_2", "size": 4}
    schema = {"type": "record", "name": "r", "fields": [
        {"name": "a", "type": ["null", first]}, {"name": "b", "type": ["null", "decimal_9_2"]}]}  # fmt: skip
    content = b"\x02abcd\x02efgh"
    assert skipper(schema, {})(content + b"more", 0) == len(content)


def test_blocks_that_state_their_length() -> None:
    """A block of an array may say its count negative and its bytes after it (Avro specification, Arrays)."""
    items = varint(5) + varint(-7)
    content = varint(-2) + varint(len(items)) + items + varint(1) + varint(300) + varint(0)
    assert skipper({"type": "array", "items": "long"}, {})(content + b"x", 0) == len(content)


@given(LONG)
def test_numbers(number: int) -> None:
    """A number is read back as it was written."""
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


@pytest.mark.parametrize("schema", ["string", {"type": "array", "items": "string"}])
@pytest.mark.parametrize("length", [-1, -9, 99])
def test_lengths_that_make_no_sense(schema: Any, length: int) -> None:
    """A value that would end before it begins, or after the file, is an error and no loop."""
    content = (b"" if schema == "string" else varint(2**60)) + varint(length) + b"abc"
    with pytest.raises(ValueError, match="makes no sense"):
        skipper(schema, {})(content, 0)
