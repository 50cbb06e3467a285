"""Test the bytes of bounds."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from icewright.core.single_values import bound, bound_value, is_bound


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        ("int", b"\xfe\xff\xff\xff", -2),
        ("long", b"\x05\x00\x00\x00", 5),  # written before the column was promoted from int
        ("date", b"\x0a\x00\x00\x00", 10),
        ("timestamptz", (1_700_000_000_000_000).to_bytes(8, "little"), 1_700_000_000_000_000),
        ("boolean", b"\x01", 1),
        ("float", struct.pack("<f", 1.5), 1.5),
        ("double", struct.pack("<f", 1.5), 1.5),
        ("double", struct.pack("<d", -2.25), -2.25),
        ("decimal(9, 2)", b"\xff\x85", -123),
        ("string", "é".encode(), "é".encode()),
        ("fixed[2]", b"ab", b"ab"),
        ("uuid", b"0123456789abcdef", b"0123456789abcdef"),
    ],
)
def test_bounds_are_read(kind: str, content: bytes, value: Any) -> None:
    """A bound is read by its column's type, and by its own length where the column was promoted since."""
    assert bound_value(kind, content) == value


@pytest.mark.parametrize(
    ("kind", "value", "content"),
    [
        ("boolean", True, b"\x01"),
        ("int", -2, b"\xfe\xff\xff\xff"),
        ("date", 10, b"\x0a\x00\x00\x00"),
        ("long", 5, b"\x05" + bytes(7)),
        ("timestamptz_ns", 5, b"\x05" + bytes(7)),
        ("float", 1.5, struct.pack("<f", 1.5)),
        ("double", 1.5, struct.pack("<d", 1.5)),
        ("decimal(9, 2)", -123, b"\x85"),
        ("decimal(9, 2)", -128, b"\x80"),
        ("decimal(9, 2)", 128, b"\x00\x80"),
        ("string", "é", "é".encode()),
        ("uuid", b"0123456789abcdef", b"0123456789abcdef"),
    ],
)
def test_bounds_are_written(kind: str, value: Any, content: bytes) -> None:
    """A bound has the bytes of its type, a decimal as few as hold it, and reads as the value again."""
    assert bound(kind, value) == content
    assert is_bound(kind, content)
    assert bound_value(kind, content) == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize(("kind", "content"), [("int", bytes(8)), ("uuid", bytes(4)), ("decimal(9, 2)", b"")])
def test_bytes_of_another_length_are_no_bound(kind: str, content: bytes) -> None:
    """Bytes that cannot be a value of the type, now or before a promotion, are none of its bounds."""
    assert not is_bound(kind, content)
