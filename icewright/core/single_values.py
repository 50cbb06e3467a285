"""Values as bounds hold them: the spec's binary single-value serialization (Appendix D)."""

from __future__ import annotations

import struct
from typing import Any

_LENGTHS = {  # in bytes, by type: those of a value that was written before a promotion, too
    "boolean": (1,),
    "uuid": (16,),
    "time": (8,),
    **dict.fromkeys(("int", "date", "float"), (4,)),
    **dict.fromkeys(("long", "double", "timestamp", "timestamptz"), (4, 8)),
}
_PACKED = {"boolean": "?", "int": "<i", "date": "<i", "float": "<f", "double": "<d"}  # all other numbers are longs
_FLOAT_BYTES = 4


def bound(kind: str, value: Any) -> bytes:  # noqa: ANN401 - a physical value
    """Return a value as a bound; decimals are given as their unscaled integers. `kind`: a type of Iceberg or Avro."""
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
    return unscaled_bytes(value) if kind.startswith("decimal") else struct.pack(_PACKED.get(kind, "<q"), value)


def unscaled_bytes(number: int) -> bytes:
    """Return the unscaled integer of a decimal, big-endian in as few bytes as hold it."""
    bits = (number if number >= 0 else ~number).bit_length()  # without the sign
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def is_bound(kind: str, content: bytes) -> bool:
    """Return whether a bound has the length of a value of the type, now or before a promotion."""
    lengths = _LENGTHS.get(kind.partition("_")[0])
    return len(content) in lengths if lengths else bool(content) or not kind.startswith("decimal")


def bound_value(kind: str, content: bytes) -> Any:  # noqa: ANN401 - a value that compares with others of the column
    """Return the value of a bound; texts stay bytes, which compare as texts do. `kind`: a type of Iceberg or Avro.

    Numbers are read by their length: it is that of the type at the time of writing, before a promotion.
    """
    if kind.startswith("decimal"):
        return int.from_bytes(content, "big", signed=True)
    if kind in ("float", "double"):
        return struct.unpack("<f" if len(content) == _FLOAT_BYTES else "<d", content)[0]
    if kind in ("string", "binary", "bytes", "uuid") or kind.startswith("fixed"):
        return content
    return int.from_bytes(content, "little", signed=True)
