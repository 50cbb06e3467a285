"""Metadata files that no catalog names: whose they are, debris, bombs, and those that Icewright itself left."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

import icewright.adapters.metadata.document
from icewright.adapters.metadata.document import decode, is_staged_by_us, next_location
from icewright.adapters.metadata.parsing import Lineage, lineage, parse
from icewright.core.errors import MetadataUnreadable
from icewright.core.table import TableRef

REF = TableRef("lake", ("sales",), "orders")
PATH = "s3://b/t/metadata/00003-x.metadata.json"
MEGABYTE = 1 << 20


def document(**more: Any) -> dict[str, Any]:
    """A metadata file with a log of two earlier ones."""
    return {
        "format-version": 2,
        "table-uuid": "u",
        "location": "s3://b/t/",
        "last-updated-ms": 3_000,
        "current-snapshot-id": 8,
        "snapshots": [{"snapshot-id": n, "timestamp-ms": n - 6, "manifest-list": "s3://b/t/l.avro"} for n in (7, 8)],
        "metadata-log": [
            {"metadata-file": "s3://b/t/metadata/00001-a.metadata.json", "timestamp-ms": 1_000},
            {"metadata-file": "s3://b/t/metadata/00002-b.metadata.json", "timestamp-ms": 2_000},
        ],
        **more,
    }


def packed(**more: Any) -> bytes:
    """The same as a file."""
    return json.dumps(document(**more)).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_the_lineage_of_a_metadata_file(pack: Any) -> None:
    """It names the table, its place, the files before it, and its snapshots."""
    log = ("s3://b/t/metadata/00001-a.metadata.json", "s3://b/t/metadata/00002-b.metadata.json")
    found = lineage(pack(packed()), PATH)
    assert found == Lineage("u", "s3://b/t", datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), log, frozenset({7, 8}), 8)


def test_the_lineage_of_a_table_that_nobody_wrote_to() -> None:
    """What is optional may be missing, null, or the -1 of older writers."""
    found = lineage(packed(**{"current-snapshot-id": -1, "snapshots": None, "metadata-log": None}), PATH)
    assert found is not None
    assert (found.log, found.snapshot_ids, found.current_snapshot_id) == ((), frozenset(), None)
    bare = lineage(b'{"format-version": 1, "location": "s3://b/t"}', PATH)
    assert bare == Lineage("", "s3://b/t", None, (), frozenset(), None)


@pytest.mark.cases(109)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        bytes(4096),
        packed()[: len(packed()) // 2],
        packed()[:-1],
        gzip.compress(packed(), mtime=0)[:40],
        b"\x1f\x8b",
        b"{}",
        b"[]",
        b"null",
        b'{"version": 1, "commitInfo": {}}',
        b"PAR1\x00\xff",
        b'{"a":' * 100_000,
    ],
)
def test_debris_has_no_lineage(content: bytes) -> None:
    """What is empty, cut or none of Iceberg's files is nobody's metadata."""
    assert lineage(content, PATH) is None


@pytest.mark.parametrize(
    "content",
    [
        b"\x28\xb5\x2f\xfd" + bytes(20),
        b"AGS1" + bytes(20),
        packed(**{"metadata-log": [7]}),
        packed(**{"table-uuid": ["u"]}),
        packed(**{"last-updated-ms": 1 << 62}),
        b'{"table-uuid": 7}',
    ],
)
def test_what_may_be_somebodys_is_no_debris(content: bytes) -> None:
    """A file of another compression, an encrypted one, or one of another shape is an error that names it."""
    with pytest.raises(MetadataUnreadable, match="00003-x"):
        lineage(content, PATH)


def test_a_view_has_a_lineage_of_its_own() -> None:
    """Its metadata file is no table's, and no debris either."""
    found = lineage(b'{"view-uuid": "v", "format-version": 1, "location": "s3://b/t", "versions": []}', PATH)
    assert found is not None
    assert found.table_uuid == "v"


@pytest.mark.parametrize(
    "read",
    [lambda content: lineage(content, PATH), lambda content: parse(REF, PATH, content)],
    ids=["lineage", "parse"],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 KB that inflate to 3 MB, beyond the least bound, are an error that names the file and its size."""
    monkeypatch.setattr(icewright.adapters.metadata.document, "MOST_INFLATED_BYTES", MEGABYTE)
    bomb = gzip.compress(b"{" + b" " * (MEGABYTE - 1), mtime=0) + gzip.compress(b" " * MEGABYTE) * 2
    with pytest.raises(MetadataUnreadable, match=rf"00003-x.*{len(bomb)} bytes inflate to more than {MEGABYTE}:"):
        read(bomb)


def test_a_large_file_that_shrinks_as_metadata_does_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the least bound a file may inflate to fifty times itself."""
    monkeypatch.setattr(icewright.adapters.metadata.document, "MOST_INFLATED_BYTES", 1000)
    content = gzip.compress(packed(properties={f"p{i}": "a value that many have" for i in range(1000)}))
    assert 30 * len(content) > len(gzip.decompress(content)) > 1000
    found = lineage(content, PATH)
    assert found is not None
    assert found.snapshot_ids == {7, 8}


def test_the_time_since_which_the_log_tells() -> None:
    """It is that of the oldest entry; a table without a log has none."""
    assert parse(REF, PATH, packed()).log_since == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert parse(REF, PATH, packed(**{"metadata-log": []})).log_since is None
    assert parse(REF, PATH, packed(**{"metadata-log": [{"metadata-file": "m"}]})).log_since is None


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_our_own_files_are_known_by_their_names(codec: str) -> None:
    """The uuid of each is a valid one of version 4, of its own, and says that Icewright wrote the file."""
    made = packed(properties={"write.metadata.compression-codec": codec})
    names = [next_location(decode(made, PATH), PATH) for _ in range(200)]
    assert all(is_staged_by_us(name) for name in names)
    uuids = [UUID(name.rpartition("/")[2].partition("-")[2].partition(".")[0]) for name in names]
    assert all(uuid.version == 4 and uuid.variant == "specified in RFC 4122" for uuid in uuids)
    assert len(set(uuids)) == 200


def test_files_of_other_writers_are_not_taken_for_ours() -> None:
    """Neither a random uuid, nor ours with any digit changed, nor any other name."""
    ours = next_location(decode(packed(), PATH), PATH)
    folder, _, name = ours.rpartition("/")
    version, _, rest = name.partition("-")
    changed = [
        f"{folder}/{version}-{rest[:i]}{'0' if rest[i] != '0' else '1'}{rest[i + 1 :]}"
        for i in range(36)
        if rest[i] != "-"
    ]
    others = [f"{folder}/00004-{uuid4()}.metadata.json" for _ in range(200)]
    odd = [
        PATH,
        "",
        folder,
        f"{folder}/v3.metadata.json",
        f"{ours}.crc",
        f"{folder}/{rest}",
        ours.replace("json", "avro"),
    ]
    assert not [name for name in [*changed, *others, *odd] if is_staged_by_us(name)]
