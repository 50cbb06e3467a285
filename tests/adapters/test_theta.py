"""Theta sketches: their bytes are those of DataSketches, their numbers true, and parts make the whole."""

from __future__ import annotations

import math
import struct
import tracemalloc
from decimal import Decimal
from typing import Any

import mmh3
import pyarrow as pa
import pytest

from icewright.adapters.engines.arrow import theta
from icewright.adapters.engines.arrow.theta import NOMINAL_ENTRIES, RewrittenSketches, ThetaSketch


def sketch(values: pa.Array) -> ThetaSketch:
    """The sketch of one column."""
    made = ThetaSketch()
    made.update(values)
    return made


@pytest.mark.parametrize(
    ("kind", "values", "serialized"),
    [
        (pa.bool_(), [True, False], [b"\1", b"\0"]),
        (pa.int32(), [5, -7], [struct.pack("<i", 5), struct.pack("<i", -7)]),
        (pa.date32(), [19723], [struct.pack("<i", 19723)]),
        (pa.int64(), [-1, 1 << 40], [struct.pack("<q", -1), struct.pack("<q", 1 << 40)]),
        (pa.timestamp("us", "UTC"), [3], [struct.pack("<q", 3)]),
        (pa.float32(), [1.5, -0.0], [struct.pack("<f", 1.5), struct.pack("<f", -0.0)]),
        (pa.float64(), [math.pi], [struct.pack("<d", math.pi)]),
        (pa.string(), ["é", "", "long " * 9], ["é".encode(), b"long " * 9]),
        (pa.binary(), [b"\0\1", b""], [b"\0\1"]),
        (pa.binary(3), [b"abc"], [b"abc"]),
        (pa.decimal128(38, 2), [Decimal("14.20"), Decimal("-1.28"), Decimal("1.28")], [b"\5\x8c", b"\x80", b"\0\x80"]),
    ],
)
def test_values_are_hashed_as_serialized(kind: pa.DataType, values: list[Any], serialized: list[bytes]) -> None:
    """Each value counts by the murmur hash of its single-value serialization; nulls and empty texts do not count."""
    found = sketch(pa.concat_arrays([pa.array([None], kind), pa.array([*values, *values, None], kind)]).slice(1))
    assert found.hashes.to_list() == sorted(mmh3.hash64(one, 9001, signed=False)[0] >> 1 for one in serialized)


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([], "01030300001ecc93"),
        ([7], "01030300001acc93e0f48bea9983c37c"),
        ([1, 2, 3], "02030300001acc93030000000000803f15f97dcbbd86a105c397fc1281709d1eba40b3c1da06695d"),
    ],
)
def test_small_sketches_are_the_bytes_of_datasketches(numbers: list[int], written: str) -> None:
    """A sketch of few values is what the Java library of Apache DataSketches writes."""
    made = sketch(pa.array(numbers, pa.int64()))
    assert made.to_bytes().hex() == written
    assert ThetaSketch.from_bytes(bytes.fromhex(written)).estimate == len(numbers)


@pytest.mark.parametrize("count", [0, 1, 2, NOMINAL_ENTRIES, NOMINAL_ENTRIES + 1, 300_000])
def test_estimates(count: int) -> None:
    """Up to the nominal entries the number is exact, beyond within four standard errors; bytes read back the same."""
    made = sketch(pa.array(range(count), pa.int64()))
    error = 0 if count <= NOMINAL_ENTRIES else 4 * count / math.sqrt(NOMINAL_ENTRIES)
    assert abs(made.estimate - count) <= error
    read = ThetaSketch.from_bytes(made.to_bytes())
    assert (read.theta, read.hashes.to_list()) == (made.theta, made.hashes.to_list())


def test_parts_make_the_whole() -> None:
    """Merged sketches of overlapping parts are the sketch of all values, whatever the order."""
    values = pa.array([f"v{i}" for i in range(30_000)])
    parts = [ThetaSketch.from_bytes(sketch(values.slice(start, 12_000)).to_bytes()) for start in (0, 9_000, 18_000)]
    merged = ThetaSketch()
    for part in reversed(parts):
        merged.merge(part)
    assert merged.to_bytes() == sketch(values).to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        sketch(pa.array([1, 2, 3])).to_bytes()[:-1],
        sketch(pa.array([1, 2, 3])).to_bytes() + b"\0",
        b"\x02\x02" + sketch(pa.array([1, 2, 3])).to_bytes()[2:],
        b"\x03\x03\x03\x00\x00\x1a\x01\x02" + sketch(pa.array([1, 2, 3])).to_bytes()[8:],
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    """What is cut, too long, of another version or of another seed is no sketch."""
    with pytest.raises(ValueError, match=r"it (is|has)"):
        ThetaSketch.from_bytes(content)


def test_what_rewrites_counted_stands_for_their_files() -> None:
    """A file that a rewrite replaced in this history is not read; one rolled back, or another type, is no help."""
    kept = RewrittenSketches()
    parts = [sketch(pa.array(values)).to_bytes() for values in ([1, 2], [2, 3])]
    kept.keep(frozenset({"a", "b"}), {(1, "long"): parts})
    known, (found,) = kept.of({"a", "c"}, {"a", "b"}, [(1, "long")])
    assert (known, found.estimate) == ({"a"}, 3)
    for replaced, column in (({"a"}, (1, "long")), ({"a", "b"}, (1, "int"))):
        known, (found,) = kept.of({"a", "c"}, replaced, [column])
        assert (known, found.estimate) == (set(), 0)


def test_the_oldest_sketches_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what was rewritten long ago is read."""
    monkeypatch.setattr(theta, "_MOST_BYTES", 70)
    kept, part = RewrittenSketches(), sketch(pa.array([1, 2])).to_bytes()
    for name in "abc":
        kept.keep(frozenset(name), {(1, "long"): [part]})
    assert kept.of(set("abc"), set("abc"), [(1, "long")])[0] == {"b", "c"}


def test_distinct_texts_become_objects_a_few_at_a_time() -> None:
    """A batch of texts that are all distinct takes little of a task's memory in Python."""
    values = pa.array([f"{number:040d}" for number in range(1 << 16)])
    tracemalloc.start()
    assert sketch(values).estimate == pytest.approx(len(values), rel=0.05)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
