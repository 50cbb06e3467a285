"""Metadata that is too large, or no regular file, is refused before it takes memory or blocks."""

from __future__ import annotations

import gzip
import json
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from obstore.store import MemoryStore

from icewright.adapters.catalogs.staging import NamedFiles
from icewright.adapters.files import avro
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifest_lists import read_lists
from icewright.adapters.files.objects import ObjectStorage
from icewright.adapters.metadata.document import inflate
from icewright.adapters.metadata.parsing import parse
from icewright.adapters.read_limits import ReadLimits, read_limits, set_read_limits
from icewright.core.errors import FaultOwner, MetadataTooLarge, MetadataUnreadable
from icewright.ports import SizeLimit
from icewright.testing import REF
from tests.adapters.test_lineage import packed
from tests.adapters.test_manifest_lists import row, write

LIMIT = 100_000
STORAGE = LocalStorage()


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    """Let this process read little."""
    before = read_limits()
    set_read_limits(ReadLimits(LIMIT, LIMIT, 5))
    yield
    set_read_limits(before)


def test_the_defaults_let_a_gigabyte_of_metadata_pass() -> None:
    """A real table's metadata.json of 1 GB, and manifests of 8 MB that inflate to 200, are within the limits."""
    limits = ReadLimits()
    limits.metadata.check("m", 1 << 30)
    limits.manifest.check("m", 200 << 20)


@pytest.mark.cases(150)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "socket"])
def test_a_path_that_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A pipe without a writer does not block, and an endless device is not read; none is the fault of the storage."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(kind)
    with pytest.raises(MetadataUnreadable, match=str(path)) as caught:
        STORAGE.read(f"file://{path}")
    assert caught.value.owner is FaultOwner.TABLE


@pytest.mark.parametrize("store", ["local", "object"])
def test_a_longer_file_than_the_limit_is_refused_by_the_setting_s_name(tmp_path: Path, store: str) -> None:
    """The length is known before the content is read: here of a sparse file of a terabyte."""
    if store == "local":
        storage: LocalStorage | ObjectStorage = STORAGE
        path, length = f"file://{tmp_path}/m", 1 << 40
        with (tmp_path / "m").open("wb") as file:
            file.truncate(length)
    else:
        storage = ObjectStorage("s3://b", MemoryStore())
        path, length = "s3://b/m", LIMIT + 1
        storage.write(path, bytes(length))
    with pytest.raises(MetadataTooLarge, match=rf"{length} bytes, more than {LIMIT}.*raise reading.max_metadata_mb"):
        storage.read(path)
    with pytest.raises(MetadataTooLarge, match=r"more than 10.*reading\.x"):
        storage.read(path, SizeLimit("reading.x", 10))


def test_a_metadata_file_that_inflates_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is seen, chunk by chunk: what it would take in the end nobody finds out."""
    monkeypatch.setattr("icewright.adapters.metadata.document._CHUNK", 1000)
    with pytest.raises(MetadataTooLarge, match=f"the file inflates to {LIMIT + 1000} bytes, more than {LIMIT}"):
        inflate(gzip.compress(bytes(2 * LIMIT)), "m")


def _deflated(records: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(records) + packer.flush()


def _streamed(records: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()  # does not write the size of the content
    return packer.compress(records) + packer.flush()


@pytest.mark.cases(150)
@pytest.mark.parametrize(
    ("codec", "block"),
    [
        ("null", bytes(LIMIT + 1)),
        ("deflate", _deflated(bytes(LIMIT + 1))),
        ("zstandard", zstandard.ZstdCompressor().compress(bytes(LIMIT + 1))),
        ("zstandard", _streamed(bytes(LIMIT + 1))),
        ("snappy", b"\xa1\x8d\x06" + b"\xfe\x01\x00" * 1600 + bytes(4)),
    ],
    ids=["null", "deflate", "zstandard", "zstandard of unknown size", "snappy"],
)
def test_blocks_that_inflate_beyond_the_limit_are_refused(codec: str, block: bytes) -> None:
    """By one block, or by blocks of several files that one task reads together."""
    with pytest.raises(avro.TooLarge):
        avro.inflated([(codec, avro.Block(1, block))])
    with pytest.raises(avro.TooLarge):
        avro.inflated([("null", avro.Block(1, bytes(LIMIT // 2 + 1)))] * 2)


@pytest.mark.parametrize("packed_by", [_deflated, _streamed, zstandard.ZstdCompressor().compress])
def test_blocks_of_exactly_the_limit_are_read(packed_by: object) -> None:
    """The limit is the last size that passes."""
    codec = "deflate" if packed_by is _deflated else "zstandard"
    assert callable(packed_by)
    assert avro.inflated([(codec, avro.Block(1, packed_by(bytes(LIMIT))))]) == bytes(LIMIT)


@pytest.mark.cases(150)
def test_a_manifest_list_that_is_a_bomb_names_itself_and_the_setting(tmp_path: Path) -> None:
    """The error is the table's, and says which file, what limit and what to do."""
    write(tmp_path / "bomb.avro", [row(1, bytes(LIMIT))])
    with pytest.raises(MetadataTooLarge, match=r"bomb\.avro.*inflate to more than.*raise reading\.max_manifest_mb"):
        read_lists(STORAGE, {f"file://{tmp_path}/bomb.avro": None})


@pytest.mark.cases(150)
def test_counts_that_no_bytes_stand_for_are_refused() -> None:
    """The decoder takes memory for as many records as a block says, or counts them for days."""
    path, empty = {"name": "p", "type": "string", "field-id": 500}, {"type": "record", "name": "r", "fields": []}
    schema = {"type": "record", "name": "manifest_file", "fields": [path, {"name": "partition", "type": empty}]}
    with pytest.raises(ValueError, match="1125899906842624 records do not fit in 2 bytes"):
        avro.read(json.dumps(schema).encode(), [avro.Block(1 << 50, b"\x02x")], [500])
    assert avro.read(json.dumps(schema).encode(), [avro.Block(1, b"\x02x")], [500]).rows() == [("x",)]
    array = {"type": "array", "items": empty}
    for kind in (array, ["null", array], {"type": "map", "values": array}):
        schema["fields"] = [path, {"name": "a", "type": kind}]
        with pytest.raises(ValueError, match="an array whose items take no bytes"):
            avro.read(json.dumps(schema).encode(), [avro.Block(1, b"\x02x\x00")], [500])


@pytest.mark.cases(150)
def test_too_many_snapshots_are_refused_before_they_are_objects() -> None:
    """The error names the number, the limit and the setting."""
    snapshots = [{"snapshot-id": n, "timestamp-ms": n, "manifest-list": "m"} for n in range(6)]
    with pytest.raises(MetadataTooLarge, match=r"6 snapshots, more than 5.*raise reading\.max_snapshots"):
        parse(REF, "file:/m", packed(snapshots=snapshots))
    assert len(parse(REF, "file:/m", packed(snapshots=snapshots[1:])).snapshots) == 5


@pytest.mark.cases(150)
@pytest.mark.parametrize("local", ["file:///dev/zero", "file:/dev/zero", "/dev/zero", "FILE:///dev/zero"])
def test_metadata_in_an_object_store_names_no_local_file(tmp_path: Path, local: str) -> None:
    """Neither the metadata file nor a manifest list leads from a bucket to this machine."""
    snapshots = [{"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": local}]
    with pytest.raises(MetadataUnreadable, match=f"names a local file, {local}"):
        parse(REF, "s3://b/m.json", packed(snapshots=snapshots))
    assert parse(REF, f"file://{tmp_path}/m.json", packed(snapshots=snapshots)).snapshots

    storage = ObjectStorage("s3://b", MemoryStore())
    write(tmp_path / "list.avro", [row(1) | {"manifest_path": local}])
    storage.write("s3://b/list.avro", (tmp_path / "list.avro").read_bytes())
    with pytest.raises(MetadataUnreadable, match=f"names a local file, {local}"):
        read_lists(storage, {"s3://b/list.avro": None})


def test_a_catalog_of_object_stores_reads_no_local_metadata(tmp_path: Path) -> None:
    """The error names the catalog's setting that would allow the place."""
    (tmp_path / "m.json").write_text(json.dumps({}), encoding="utf-8")
    files = NamedFiles(STORAGE, "lake", remote=True)
    with pytest.raises(MetadataUnreadable, match=r"catalogs\.lake\.allowed_locations"):
        files.read(f"file://{tmp_path}/m.json")
