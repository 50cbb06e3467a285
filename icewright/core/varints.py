"""Avro's numbers of variable length: zig-zag, seven bits a byte."""

from __future__ import annotations

LAST_BYTE = 0x80  # the last byte of a number is smaller


def varint(number: int) -> bytes:
    """An Avro int or long: zig-zag, seven bits a byte."""
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value >= LAST_BYTE:
        out.append((value & 0x7F) | LAST_BYTE)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(content: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < LAST_BYTE:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
