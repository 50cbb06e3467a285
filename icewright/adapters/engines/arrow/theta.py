"""Theta sketches of distinct values, as blobs of type `apache-datasketches-theta-v1` (Puffin spec) hold them.

A sketch holds the least hashes of the values that it saw, so sketches of parts make one of the whole. The binding of
DataSketches takes no bytes, and the spec hashes values by their single-value serialization, so both are done here: the
hash for whole columns at once where values have a fixed width.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import repeat

import mmh3
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.types import storage_array
from icewright.core.single_values import unscaled_bytes

NOMINAL_ENTRIES = 1 << 12  # the default of DataSketches: a standard error of 1.6 %
_SEED, _SEED_HASH = 9001, 37836  # the default of DataSketches, and its short hash
_ALL = (1 << 63) - 1  # the theta of a sketch that holds every hash
_VERSION, _COMPACT = 3, 3  # of the serialization; the family of compact sketches
_READ_ONLY, _EMPTY, _IS_COMPACT, _ORDERED = 2, 4, 8, 16  # flags
_PENDING = 16 * NOMINAL_ENTRIES  # hashes that wait for the next trim
_OBJECTS = 1 << 13  # values of Python that are hashed at a time: those of a whole batch take tens of megabytes
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_MOST_BYTES = 64 << 20  # of the sketches that are kept for later
ColumnType = tuple[int, str]  # the id of a column, and its type: values of another type have other hashes
_MIX = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


@dataclass
class ThetaSketch:
    """The distinct hashes below theta, at most `NOMINAL_ENTRIES` of them."""

    theta: int = _ALL
    _kept: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.UInt64))
    _pending: list[pa.UInt64Array] = field(default_factory=list)
    _waiting: int = 0

    def update(self, values: pa.Array) -> None:
        """Add the values of a column; nulls and empty texts do not count, as in DataSketches."""
        for hashes in _hashes(storage_array(values).drop_null()):
            self._add(hashes)

    def merge(self, other: ThetaSketch) -> None:
        """Add what another sketch has seen."""
        self.theta = min(self.theta, other.theta)
        self._add(other.hashes.to_arrow())

    @property
    def hashes(self) -> pl.Series:
        """Return the distinct hashes below theta, ascending."""
        self._trim()
        return self._kept

    @property
    def estimate(self) -> int:
        """Return the number of distinct values: exact up to `NOMINAL_ENTRIES`."""
        retained = len(self.hashes)
        return retained if self.theta == _ALL else int(retained * (float(1 << 63) / self.theta))

    def to_bytes(self) -> bytes:
        """Return the compact and ordered form that DataSketches writes."""
        hashes = self.hashes
        flags = _READ_ONLY | _IS_COMPACT | _ORDERED
        if self.theta == _ALL and len(hashes) <= 1:  # a sketch of no value, and of one, has no counts
            longs, flags, numbers = 1, flags | (0 if len(hashes) else _EMPTY), b""
        else:
            longs = 2 if self.theta == _ALL else 3
            numbers = struct.pack("<If", len(hashes), 1.0)
            numbers += b"" if self.theta == _ALL else struct.pack("<Q", self.theta)
        start = struct.pack("<6BH", longs, _VERSION, _COMPACT, 0, 0, flags, _SEED_HASH)
        return start + numbers + struct.pack(f"<{len(hashes)}Q", *hashes)

    @classmethod
    def from_bytes(cls, content: bytes) -> ThetaSketch:
        """Return the sketch of a compact form. Raises `ValueError` for any other."""
        try:
            longs, version, family, _, _, flags, seed = struct.unpack_from("<6BH", content)
            if (version, family, seed) != (_VERSION, _COMPACT, _SEED_HASH) or longs not in (1, 2, 3):
                raise ValueError("it is no compact theta sketch of the default seed")
            count = struct.unpack_from("<I", content, 8)[0] if longs > 1 else int(not flags & _EMPTY)
            theta = struct.unpack_from("<Q", content, 16)[0] if longs > 2 else _ALL  # noqa: PLR2004 - with a theta
            hashes = struct.unpack_from(f"<{count}Q", content, 8 * longs)
        except struct.error as error:
            raise ValueError(f"it is cut short: {error}") from error
        if len(content) != 8 * (longs + count):
            raise ValueError(f"it has {len(content)} bytes, not {8 * (longs + count)}")
        return cls(theta, pl.Series(hashes, dtype=pl.UInt64).sort())

    def _add(self, hashes: pa.UInt64Array) -> None:
        least = hashes.filter(pc.and_(pc.less(hashes, _word(self.theta)), pc.greater(hashes, _word(0))))
        self._pending.append(least)
        self._waiting += len(least)
        if self._waiting > _PENDING:
            self._trim()

    def _trim(self) -> None:
        """Keep the least of the distinct hashes, and lower theta to the first that is left out."""
        if not self._pending:
            return
        arrived = [pl.Series(pl.from_arrow(hashes), dtype=pl.UInt64) for hashes in self._pending]
        self._pending, self._waiting = [], 0
        distinct = pl.concat([self._kept, *arrived]).unique().sort()
        distinct = distinct.filter(distinct < self.theta)
        if len(distinct) > NOMINAL_ENTRIES:
            self.theta = int(distinct[NOMINAL_ENTRIES])
            distinct = distinct[:NOMINAL_ENTRIES]
        self._kept = distinct


class RewrittenSketches:
    """Sketches of the rows of data files as rewrites of this process read them: the newest, in bounded memory."""

    def __init__(self) -> None:
        self._groups: deque[tuple[frozenset[str], Mapping[ColumnType, bytes]]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, paths: frozenset[str], sketches: Mapping[ColumnType, Sequence[bytes]]) -> None:
        """Keep the sketches of all rows of these files, after the commit that replaced them; parts are merged."""
        merged = {column: _merged(map(ThetaSketch.from_bytes, parts)).to_bytes() for column, parts in sketches.items()}
        with self._lock:
            self._groups.append((paths, merged))
            self._bytes += _size(merged)
            while self._bytes > _MOST_BYTES:
                self._bytes -= _size(self._groups.popleft()[1])

    def of(
        self, paths: AbstractSet[str], replaced: AbstractSet[str], columns: Sequence[ColumnType]
    ) -> tuple[AbstractSet[str], list[ThetaSketch]]:
        """Return which of the files need not be read, with a sketch for each column of what was read with them.

        Only groups count all of whose files were `replaced` in the history in question: a rewrite that was rolled back
        may have read rows that the table has no more.
        """
        with self._lock:
            groups = [
                (group, by_column)
                for group, by_column in self._groups
                if group & paths and group <= replaced and by_column.keys() >= set(columns)
            ]
        sketches = [_merged(ThetaSketch.from_bytes(by_column[column]) for _, by_column in groups) for column in columns]
        return paths & {path for group, _ in groups for path in group}, sketches


def _merged(sketches: Iterable[ThetaSketch]) -> ThetaSketch:
    whole = ThetaSketch()
    for sketch in sketches:
        whole.merge(sketch)
    return whole


def _size(sketches: Mapping[ColumnType, bytes]) -> int:
    return sum(map(len, sketches.values()))


def _hashes(values: pa.Array) -> Iterator[pa.UInt64Array]:
    """Yield the hashes of values by their single-value serialization (spec, Appendix D)."""
    kind = values.type
    if pa.types.is_decimal(kind) or pa.types.is_binary(kind):
        distinct = pc.unique(values)
        for start in range(0, len(distinct), _OBJECTS):
            part = distinct.slice(start, _OBJECTS)
            yield _hashes_of(_decimals(part) if pa.types.is_decimal(kind) else filter(None, part.to_pylist()))
    elif pa.types.is_boolean(kind):
        yield _murmur(values.cast(pa.uint64()), 1)
    else:
        width = kind.bit_width // 8
        yield _murmur(values.view(pa.uint32() if width == 4 else pa.uint64()).cast(pa.uint64()), width)  # noqa: PLR2004


def _hashes_of(values: Iterable[bytes]) -> pa.UInt64Array:
    digests = b"".join(map(mmh3.mmh3_x64_128_digest, values, repeat(_SEED)))  # of two words each
    words = pa.Array.from_buffers(pa.uint64(), len(digests) // 8, [None, pa.py_buffer(digests)])
    return pc.shift_right(pl.Series(words).gather_every(2).to_arrow(), _word(1))


def _decimals(values: pa.Array) -> Iterable[bytes]:
    """Yield unscaled values, big-endian in as few bytes as hold them."""
    width = values.type.byte_width
    raw, first = memoryview(values.buffers()[1] or b""), values.offset
    for at in range(first, first + len(values)):
        unscaled = int.from_bytes(raw[at * width : (at + 1) * width], "little", signed=True)
        yield unscaled_bytes(unscaled)


def _murmur(words: pa.UInt64Array, length: int) -> pa.UInt64Array:
    """Return half the first word of MurmurHash3 (x64, 128 bits) of values of at most 8 bytes, little-endian."""
    tail = _times(words, _C1)
    tail = _times(pc.bit_wise_or(pc.shift_left(tail, _word(31)), pc.shift_right(tail, _word(33))), _C2)
    start = _SEED ^ length
    first = pc.add(pc.bit_wise_xor(tail, _word(start)), _word(start))
    second = _finished(pc.add(first, _word(start)))
    return pc.shift_right(pc.add(_finished(first), second), _word(1))


def _finished(words: pa.UInt64Array) -> pa.UInt64Array:
    for factor in _MIX:
        words = _times(pc.bit_wise_xor(words, pc.shift_right(words, _word(33))), factor)
    return pc.bit_wise_xor(words, pc.shift_right(words, _word(33)))


def _times(words: pa.UInt64Array, factor: int) -> pa.UInt64Array:
    return pc.multiply(words, _word(factor))


def _word(value: int) -> pa.UInt64Scalar:
    return pa.scalar(value, pa.uint64())
