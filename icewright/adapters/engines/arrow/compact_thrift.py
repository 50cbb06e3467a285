"""Structs in Thrift's compact protocol, in which Parquet has footers and page headers: their fields by number."""

from __future__ import annotations

from typing import Any

_STOP = 0  # the end of a struct in Thrift's compact protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12  # its types
_LONG_LIST = 15  # in place of the count of a list whose count follows


def read_struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct in Thrift's compact protocol by number, and where it ends.

    Raises `IndexError` where the bytes end before it, `ValueError` for types that no page header has.
    """
    fields: dict[int, Any] = {}
    number = 0
    while data[at] != _STOP:
        step, kind = data[at] >> 4, data[at] & 0xF
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in (_I16, _I32, _I64):
        return _integer(data, at)
    if kind == _STRUCT:
        return read_struct(data, at)
    if kind == _LIST:
        count, element = data[at] >> 4, data[at] & 0xF
        count, at = _varint(data, at + 1) if count == _LONG_LIST else (count, at + 1)
        element = _BYTE if element in (_TRUE, _FALSE) else element  # in a list a truth value takes a byte
        items = []
        for _ in range(count):
            item, at = _value(data, at, element)
            items.append(item)
        return items, at
    if kind == _BINARY:
        length, at = _varint(data, at)
        return None, at + length
    if kind in (_BYTE, _DOUBLE):
        return None, at + (1 if kind == _BYTE else 8)
    raise ValueError(kind)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | data[at] << shift, at + 1
