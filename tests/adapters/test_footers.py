"""Footers of Puffin and Parquet files that are made to harm their reader are said to be unreadable."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.service.content_faults import check_content
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.footers import parquet_footer, puffin_blobs
from icewright.adapters.files.cache import Cache
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.adapters.files.tables import IcebergFiles
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable
from icewright.core.integrity import FileFaultKind

BLOB: dict[str, Any] = {"type": "t", "fields": [1], "offset": 4, "length": 2, "properties": {}}


@pytest.fixture
def files(tmp_path: Path) -> IcebergFiles:
    """The files of this machine."""
    storage = LocalStorage()
    return IcebergFiles(storage, ManifestReader(storage, Cache(tmp_path / "cache", 1 << 20, ENTRY)))


def puffin(path: Path, payload: str) -> tuple[str, int]:
    """Write a file with this footer; return its address and length."""
    body = b"PFA1xx" + b"PFA1" + payload.encode() + struct.pack("<i", len(payload)) + bytes(4) + b"PFA1"
    path.write_bytes(body)
    return f"file://{path}", len(body)


@pytest.mark.cases(150)
def test_a_puffin_footer_that_no_writer_makes_is_unreadable(tmp_path: Path, files: IcebergFiles) -> None:
    """Whatever its JSON says; the reader of a sound one gets its blobs."""
    changes: list[dict[str, Any]] = [
        {"offset": None},
        {"offset": "4"},
        {"offset": 1e400},
        {"length": -2},
        {"length": 1 << 62},
    ]
    changes += [{"type": 1}, {"fields": None}, {"properties": 1}]
    footers = ["[" * 100_000, "1", "[]", "{}", '{"blobs": {"a": 1}}', '{"blobs": [1]}']
    footers += [json.dumps({"blobs": [{**BLOB, **change}]}) for change in changes]
    for footer in footers:
        with pytest.raises(MetadataUnreadable, match=r"f\.puffin"):
            puffin_blobs(files, *puffin(tmp_path / "f.puffin", footer))
    assert puffin_blobs(files, *puffin(tmp_path / "f.puffin", json.dumps({"blobs": [BLOB]}))) == [BLOB]


@pytest.mark.parametrize(("read", "magic"), [(parquet_footer, b"PAR1"), (puffin_blobs, b"PFA1")])
def test_a_file_that_ends_after_its_first_magic(
    read: Callable[[IcebergFiles, str, int], object], magic: bytes, tmp_path: Path, files: IcebergFiles
) -> None:
    """As a writer leaves it that was stopped at once: it ends as its format does, and has no footer."""
    (tmp_path / "f").write_bytes(magic)
    with pytest.raises(MetadataUnreadable, match="does not end as its format does"):
        read(files, f"file://{tmp_path}/f", 4)


@pytest.mark.cases(150)
def test_a_footer_as_large_as_the_memory_is_not_read(tmp_path: Path, files: IcebergFiles) -> None:
    """A sparse file of four gigabytes takes no room on disk, and would take all of it in memory."""
    path, length = tmp_path / "f.parquet", 1 << 32
    with path.open("wb") as out:
        out.truncate(length - 8)
        out.seek(0, 2)
        out.write(struct.pack("<I", length - 16) + b"PAR1")
    with pytest.raises(MetadataTooLarge, match=r"f\.parquet.*raise reading\.max_manifest_mb"):
        parquet_footer(files, f"file://{path}", length)


_COLUMNS: dict[str, tuple[Sequence[pa.DataType], Sequence[pa.DataType]]] = {  # as readers take them, and as they do not
    "int": ([pa.int32(), pa.int16()], [pa.null(), pa.uint16(), pa.date32(), pa.time32("ms"), pa.list_(pa.int32())]),
    "long": ([pa.int64(), pa.int32(), pa.timestamp("us")], [pa.uint32(), pa.decimal128(18, 0)]),
    "decimal(10, 2)": ([pa.decimal128(10, 2), pa.decimal128(5, 2)], [pa.decimal128(10, 4), pa.decimal128(12, 2)]),
    "timestamp": ([pa.timestamp("us"), pa.int64()], [pa.timestamp("ns"), pa.timestamp("ms")]),
    "timestamptz": ([pa.timestamp("us", "UTC")], [pa.timestamp("ns", "UTC")]),
    "timestamp_ns": ([pa.timestamp("ns")], []),
    "date": ([pa.date32(), pa.int32()], [pa.timestamp("us")]),
    "string": ([pa.string(), pa.dictionary(pa.int8(), pa.string())], [pa.binary()]),
    "binary": ([pa.binary()], [pa.string()]),
    "struct": ([pa.struct({"a": pa.int32()})], [pa.int32(), pa.null()]),
}


@pytest.mark.parametrize("kind", _COLUMNS)
def test_a_column_is_of_a_type_that_readers_take_for_the_tables(kind: str, tmp_path: Path, files: IcebergFiles) -> None:
    """Spark fails at all others, or reads 123.45 for 1.2345, the year 55840 for nanoseconds, 0 for a required null.

    So it is with columns of files without ids, as of `add_files`, which are found by a name mapping.
    """
    path, right = tmp_path / "file.parquet", _COLUMNS[kind][0]
    column = {"type": "struct", "fields": []} if kind == "struct" else kind
    for stored in (*right, *_COLUMNS[kind][1]):
        for field, names in (
            (pa.field("c", stored, metadata={"PARQUET:field_id": "1"}), None),
            (pa.field("c", stored), '[{"field-id": 1, "names": ["c"]}]'),
        ):
            pq.write_table(pa.table([pa.array([None], stored)], schema=pa.schema([field])), path)
            one = ContentFile(
                "m.avro", 0, 1, 1, {100: str(path), 101: "PARQUET", 102: {}, 103: 1, 104: path.stat().st_size}
            )
            found = [fault for fault, _ in check_content(files, one, {1: column}, {}, {}, (), names)]
            assert found == ([] if stored in right else [FileFaultKind.WRONG_FIELDS]), stored
        if stored in right and kind != "struct":
            ((_, detail),) = check_content(files, one, {1: column}, {}, {}, (1,), names)
            assert detail == "column 1 is required, and has 1 nulls"
