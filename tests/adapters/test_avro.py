"""Avro containers taken apart: whatever codec and block size, and never half of a broken one."""

from __future__ import annotations

import io
import json
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import zstandard

from icewright.adapters.files import avro
from icewright.adapters.files.manifests import partition_texts

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {"name": "text", "type": ["null", "string"], "field-id": 2},
        {
            "name": "data_file",
            "type": {"type": "record", "name": "i", "fields": [{"name": "n", "type": "int", "field-id": 4}]},
        },
    ],
}
_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}


def _snappy(block: bytes) -> bytes:
    return pa.Codec("snappy").compress(block, asbytes=True) + zlib.crc32(block).to_bytes(4, "big")  # type: ignore[no-any-return]


def _deflate(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(block) + packer.flush()


def _streamed(block: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(block) + packer.flush()


CODECS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "null": ("null", lambda block: block),
    "deflate": ("deflate", _deflate),
    "snappy": ("snappy", _snappy),
    "zstandard": ("zstandard", lambda block: zstandard.ZstdCompressor().compress(block)),
    "zstandard of unknown size": ("zstandard", _streamed),  # as Java writes it
}


def _rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "id": rng.getrandbits(63) - 2**62,
            "text": rng.choice([None, "", "é" * rng.randrange(300)]),
            "data_file": {"n": i},
        }
        for i in range(count)
    ]


def container(rows: Sequence[Any], codec: str = "null", per_block: int = 7, sync: bytes = b"s" * 16) -> bytes:
    """A container put together by hand, as fastavro lacks two of the codecs here."""
    name, pack = CODECS[codec]
    schema, out = fastavro.parse_schema(SCHEMA), io.BytesIO()
    meta = {"avro.schema": json.dumps(SCHEMA).encode(), "avro.codec": name.encode(), "other": b"\x00\xff"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(_HEADER), {"magic": b"Obj\x01", "meta": meta, "sync": sync})
    for start in range(0, len(rows), per_block):
        block = io.BytesIO()
        for row in rows[start : start + per_block]:
            fastavro.schemaless_writer(block, schema, row)
        packed = pack(block.getvalue())
        for number in (len(rows[start : start + per_block]), len(packed)):
            fastavro.schemaless_writer(out, {"type": "long"}, number)
        out.write(packed + sync)
    return out.getvalue()


def _read(*contents: bytes) -> list[dict[str, Any]]:
    parsed = [avro.parse(content) for content in contents]
    frame = avro.read(parsed[0].schema, avro.decompressed(parsed), [1, 2, 4])
    return [{"id": row["1"], "text": row["2"], "data_file": {"n": row["4"]}} for row in frame.iter_rows(named=True)]


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 500])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec: str, count: int) -> None:
    """The records are those that were written, in their order, over many blocks, one or none."""
    rows = _rows(count)
    content = container(rows, codec)
    parsed = avro.parse(content)
    assert (parsed.records, parsed.meta["other"]) == (count, b"\x00\xff")
    assert _read(content) == rows


@pytest.mark.parametrize("interval", [1, 1000, 1_000_000])
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_files_of_fastavro(codec: str, interval: int) -> None:
    """What fastavro writes is read, from a block a record to one block."""
    out, rows = io.BytesIO(), _rows(300)
    fastavro.writer(out, fastavro.parse_schema(SCHEMA), rows, codec=codec, sync_interval=interval)
    assert _read(out.getvalue()) == rows


def test_files_together() -> None:
    """Containers of one schema are read as one, whatever their codecs and sync markers, empty ones among them."""
    groups = [(_rows(5, 1), "null"), (_rows(0), "deflate"), (_rows(9, 2), "snappy"), (_rows(3, 3), "zstandard")]
    contents = [container(rows, codec, 2, bytes([i]) * 16) for i, (rows, codec) in enumerate(groups)]
    assert _read(*contents) == [row for rows, _ in groups for row in rows]


def test_only_empty_files() -> None:
    """No record at all is an empty frame with the columns that were asked for."""
    frame = avro.read(json.dumps(SCHEMA).encode(), [avro.Block(0, b"")], [4, 1])
    assert (frame.height, frame.columns) == (0, ["4", "1"])


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("others", [["int"], []])
def test_fields_of_type_null(others: Sequence[str], count: int) -> None:
    """Partition fields are of this type where their source column is dropped: nulls at their places."""
    kinds = {"gone": "null", **{f"k{place}": kind for place, kind in enumerate(others)}, "last": "null"}
    record = {"type": "record", "name": "r102", "fields": [{"name": n, "type": kind} for n, kind in kinds.items()]}
    top = [{"name": "status", "type": "int", "field-id": 0}, {"name": "partition", "type": record, "field-id": 102}]
    schema = {"type": "record", "name": "row", "fields": top}
    values = dict.fromkeys(kinds) | {name: 7 for name, kind in kinds.items() if kind == "int"}
    block = io.BytesIO()
    for _ in range(count):
        fastavro.schemaless_writer(block, fastavro.parse_schema(schema), {"status": 1, "partition": values})
    frame = avro.read(json.dumps(schema).encode(), [avro.Block(count, block.getvalue())], [102])
    assert frame["102"].to_list() == [values] * count
    assert partition_texts(frame["102"]).to_list() == [json.dumps([*values.values()], separators=(",", ":"))] * count


def test_fields_are_chosen_by_their_ids() -> None:
    """A field is found by its id, at the top or inside of `data_file`; one that the writer lacks is null."""
    parsed = avro.parse(container(_rows(3)))
    frame = avro.read(parsed.schema, avro.decompressed([parsed]), [4, 99, 1])
    assert frame.columns == ["4", "99", "1"]
    assert frame["4"].to_list() == [0, 1, 2]
    assert frame["99"].to_list() == [None] * 3


@pytest.mark.parametrize(
    "content", [b"", b"O", b"Obj", b"Obj\x01", b"Obj\x02" + b"x" * 99, b"PAR1" * 20, b"{}", b"\x00" * 64]
)
def test_what_is_not_avro(content: bytes) -> None:
    """An empty or foreign file is a `ValueError`."""
    with pytest.raises(ValueError, match="Avro"):
        avro.parse(content)


def test_an_unknown_codec() -> None:
    """A codec that cannot be read is named."""
    content = container(_rows(3)).replace(b"\x08null", b"\x08lzma")
    with pytest.raises(ValueError, match="lzma"):
        avro.parse(content).body()


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_anywhere(codec: str) -> None:
    """A file cut short is a `ValueError`, unless it ends with a block, where Avro itself cannot tell."""
    content = container(_rows(9), codec, per_block=3)
    whole = [content.find(b"s" * 16) + 16]
    while whole[-1] < len(content):
        whole.append(content.find(b"s" * 16, whole[-1]) + 16)
    taken = []
    for length in set(range(len(content))) - set(whole):
        try:
            parsed = avro.parse(content[:length])
            parsed.body()
            taken.append((length, parsed.records))
        except ValueError:
            continue
    assert not taken, f"lengths and records of truncated files that were taken for whole; blocks end at {whole}"


@pytest.mark.parametrize("length", [-1, -40, 2**40])
def test_a_length_in_the_header_that_makes_no_sense(length: int) -> None:
    """It is an error at once, and no way back to where the header was read before."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "long"}, 2**60)
    fastavro.schemaless_writer(out, {"type": "long"}, length)
    with pytest.raises(ValueError, match="Avro"):
        avro.parse(b"Obj\x01" + out.getvalue() + b"\x02" * 100)


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_byte(codec: str) -> None:
    """Whatever byte is wrong, the file is read or a `ValueError`, and a block's end is always looked for."""
    content = container(_rows(12), codec, per_block=4)
    for position in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(content)
            broken[position] ^= flip
            try:
                parsed = avro.parse(bytes(broken))
                parsed.body()
            except ValueError:
                continue
            assert parsed.records == 12 or position < content.find(b"s" * 16) + 16 * 12


def test_checksums_of_snappy_hold() -> None:
    """The checksum behind each snappy block (Avro specification, Required Codecs) is looked at."""
    content = bytearray(container(_rows(3), "snappy"))
    content[-17] ^= 0x01
    with pytest.raises(ValueError, match="Avro"):
        avro.parse(bytes(content)).body()


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "zstandard of unknown size"])
def test_half_a_compressed_block(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block whose compressed content ends early is an error, though its markers are all in place."""
    name, pack = CODECS[codec]
    monkeypatch.setitem(CODECS, "half", (name, lambda block: pack(block)[: len(pack(block)) // 2]))
    with pytest.raises(ValueError, match="Avro"):
        avro.parse(container(_rows(2000), "half", 2000)).body()
