"""Object stores: what local files can do they can do too, through a real S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import boto3
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icewright.adapters.files.buckets import Buckets
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.objects import open_bucket
from icewright.adapters.files.storage import Storages
from icewright.app.bootstrap import application, read_config
from icewright.core.errors import (
    AccessDenied,
    FaultOwner,
    FileMissing,
    IcewrightError,
    MetadataUnreadable,
    StorageUnavailable,
    UnsupportedTable,
)
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.ports import FileStat, Storage
from icewright.testing import FixedClock
from tests.adapters.writing import by_fastavro, record
from tests.faults.lakehouse import commit_manifests
from tests.nightly import nightly
from tests.s3 import s3_server, s3proxy, store, versitygw

pytestmark = pytest.mark.external
ODD = ["a b", "a+b", "100%", "a%20b", "#x", "q?x=1", "é表", "e\u0301", "a:b", "~x", "{x}", "_x", ".hidden"]


@pytest.fixture(
    scope="module",
    params=[nightly("moto"), nightly("moto-versioned"), "s3proxy", nightly("versitygw"), "versitygw-versioned"],
)
def properties(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A server with an empty bucket, for the module."""
    if request.param == "s3proxy":
        with s3proxy(tmp_path_factory.mktemp("s3proxy")) as found:
            yield found
        return
    if request.param.startswith("versitygw"):
        folder = tmp_path_factory.mktemp("versitygw")
        with versitygw(folder, versioned=request.param.endswith("versioned")) as found:
            yield found
        return
    with s3_server(versioned=request.param == "moto-versioned") as found:
        yield found


@pytest.fixture
def storage(properties: Mapping[str, str]) -> Storages:
    """All storages, S3 by the server."""
    return Storages(LocalStorage(), Buckets({"lake": ["s3://lake/"]}, {"lake": properties}))


def listed(storage: Storage, location: str) -> dict[str, dict[str, Any]]:
    """The rows of a listing by path."""
    return {row["path"]: row for batch in storage.listing(location) for row in batch.to_pylist()}


@pytest.mark.cases(59)
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("name", ODD)
def test_odd_keys(storage: Storages, scheme: str, name: str) -> None:
    """A key is written, measured, read, listed and deleted as it is spelt."""
    location = f"{scheme}://lake/odd/{len(name)}{ord(name[0])}"
    path = f"{location}/part=1/{name}"
    assert storage.size(path) is None
    storage.write(path, b"content")
    assert (storage.size(path), storage.read(path)) == (7, b"content")
    (row,) = listed(storage, location).values()
    assert (row["path"], row["bytes"]) == (path, 7)
    assert abs(datetime.now(UTC) - row["modified"]) < timedelta(minutes=5)
    assert storage.delete([path], 4).deleted == (path,)
    assert (storage.size(path), listed(storage, location)) == (None, {})


@pytest.mark.parametrize("length", [0, 5, (12 << 20) + 1])
def test_files_are_copied_within_a_store_and_between_stores(
    storage: Storages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """By the store itself, or in parts through the process; a file of another length is no copy, nor part of one."""
    monkeypatch.setattr("icewright.adapters.files.storage._PART", 1 << 20)
    content = Random(7).randbytes(length)
    local, first, second = (f"{place}/copied/{length}" for place in (tmp_path, "s3://lake/a", "s3a://lake/b"))
    storage.write(local, content)
    monkeypatch.setattr("icewright.adapters.files.objects._MAX_COPIED", 6 << 20)
    for source, target in ((local, first), (first, second), (second, f"{local}-back"), (local, f"{local}-beside")):
        storage.copy(source, target, length)
        assert storage.read(target) == content
        for other in {length + 1, max(length - 1, 0)} - {length}:
            with pytest.raises((MetadataUnreadable, StorageUnavailable)):
                storage.copy(source, f"{target}-cut", other)
            assert storage.size(f"{target}-cut") is None
        with pytest.raises((MetadataUnreadable, StorageUnavailable)):
            storage.copy(f"{source}-none", f"{target}-none", max(length, 1))
        assert storage.size(f"{target}-none") is None


@pytest.mark.cases(62)
def test_listings_end_at_the_location(storage: Storages) -> None:
    """Siblings whose names begin alike are not listed; more keys than a page holds are."""
    for number in range(1100):
        storage.write(f"s3://lake/orders/{number}", b"")
    storage.write("s3://lake/orders_archive/x", b"")
    assert len(listed(storage, "s3://lake/orders")) == 1100
    assert listed(storage, "s3://lake/orders/").keys() == listed(storage, "s3://lake/orders").keys()
    gone = [f"s3://lake/orders/{number}" for number in range(1101)]  # the last one never was
    report = storage.delete(gone, 2)
    assert (report.deleted, dict(report.failures)) == (tuple(gone), {})
    assert listed(storage, "s3://lake/orders") == {}
    assert len(listed(storage, "s3://lake/orders_archive")) == 1


def test_what_fails_is_told(storage: Storages, properties: Mapping[str, str]) -> None:
    """A missing object, a missing bucket, a server that is away and a scheme that nobody serves have their errors."""
    with pytest.raises(MetadataUnreadable, match="s3://lake/none is missing"):
        storage.read("s3://lake/none")
    with pytest.raises(StorageUnavailable, match="s3://other/t could not be listed: there are no credentials"):
        list(storage.listing("s3://other/t"))
    with pytest.raises(UnsupportedTable, match="only local files, S3, Google"):
        storage.read("hdfs://lake/x")
    report = storage.delete(["s3://lake/none", "hdfs://lake/x"], 2)
    assert (report.deleted, list(report.failures)) == (("s3://lake/none",), ["hdfs://lake/x"])
    assert "hush" not in str(properties.keys())


@pytest.mark.cases(101, 112)
def test_stat_agrees_with_the_listing(storage: Storages) -> None:
    """Length and time are the same to the second, one by one, by many and in a listing; the clock is the server's."""
    paths = [f"s3://lake/stat/{number:02}" for number in range(20)]
    for path in paths:
        storage.write(path, b"content")
    rows = {path: FileStat(row["bytes"], row["modified"]) for path, row in listed(storage, "s3://lake/stat").items()}
    assert rows.keys() == {*paths}
    assert storage.stat(paths, 4) == rows
    assert storage.stat([paths[3], "s3://lake/stat"], 4) == {paths[3]: rows[paths[3]], "s3://lake/stat": None}
    assert timedelta(0) <= storage.time("s3://lake/stat") - listed(storage, "s3://lake/stat")[paths[-1]]["modified"]
    assert listed(storage, "s3://lake/stat").keys() == {*paths}


@pytest.mark.cases(59, 69, 108)
def test_keys_that_cannot_be_said(storage: Storages, properties: Mapping[str, str]) -> None:
    """A key with an empty part, or the marker of a directory, cannot be read or deleted; a listing leaves it out."""
    for ask in (storage.read, storage.size):
        with pytest.raises(UnsupportedTable, match="cannot be asked for: let the table's engine"):
            ask("s3://lake/bad//key")
    sign = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=properties["s3.endpoint"], **sign)
    for key, content in {"bad//key": b"x", "bad/data/": b"", "bad/data/x": b"x", "bad/a\tb": b"x"}.items():
        client.put_object(Bucket="lake", Key=key, Body=content)
    keys = {one["Key"] for one in client.list_objects_v2(Bucket="lake", Prefix="bad/")["Contents"]}
    odd = {"bad//key", "bad/data/", "bad/a\tb"} & keys  # a server over a file system has no empty parts
    told: list[str] = []
    rows = [row for batch in storage.listing("s3://lake/bad", told.append) for row in batch.to_pylist()]
    assert {row["path"] for row in rows} == {f"s3://lake/{key}" for key in keys - odd}
    assert set(told) == {f"s3://lake/{key}".replace("\t", "\\t") for key in odd}
    report = storage.delete(["s3://lake/bad//key", "s3://lake/bad/data/"], 2)
    assert report.deleted == ()
    assert {one["Key"] for one in client.list_objects_v2(Bucket="lake", Prefix="bad/")["Contents"]} == keys


@pytest.fixture
def home(tmp_path: Path, properties: Mapping[str, str]) -> Path:
    """A configuration whose warehouse is the bucket."""
    said = "".join(f', "{key}": "{value}"' for key, value in properties.items())
    (tmp_path / "icewright.yaml").write_text(
        f"state: sqlite:///{tmp_path}/state.db\n"
        "catalogs: {lake: {type: sql, enabled: true, properties: "
        f'{{uri: "sqlite:///{tmp_path}/catalog.db", warehouse: "s3://lake/warehouse"{said}}}}}}}\n'
        f'cache: {{folder: "{tmp_path}/cache"}}\n'
        "policy: [{set: {deletion.delay_hours: 0, rewrite_deletes.min_equality_delete_files: 1}}]\n"
    )
    return tmp_path


@pytest.mark.cases(19, 66, 74)
def test_a_table_on_s3_is_maintained(home: Path, properties: Mapping[str, str]) -> None:
    """Expiry, orphan removal and manifest rewriting on objects: what is kept is read as before, what is not is gone."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse="s3://lake/warehouse", **properties)
    catalog.create_namespace("sales")
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    table = catalog.create_table("sales.orders", rows.schema)
    for _ in range(8):
        table.append(rows)
    table.overwrite(rows)
    store(properties).put(f"{table.location().removeprefix('s3://lake/')}/data/lost.parquet", b"x")
    ref, later = TableRef("lake", ("sales",), "orders"), datetime.now(UTC) + timedelta(days=30)
    with application(read_config(home / "icewright.yaml"), kind="manual", clock=FixedClock(later)) as app:
        detect(app.runtime, ["lake"])
        operations = (Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS)
        results = {op: execute(app.runtime, Request(ref, (op,), manual=True)) for op in operations}
        (found,) = results[Operation.REMOVE_ORPHANS].outcomes
    assert {r.state for r in results.values()} <= {JobState.SUCCEEDED, JobState.SKIPPED}, results
    assert results[Operation.EXPIRE_SNAPSHOTS].outcomes[0].metrics["files_deleted"] > 0
    assert [f.path.rpartition("/")[2] for f in found.files] == ["lost.parquet"]
    assert catalog.load_table("sales.orders").scan().to_arrow().num_rows == 5
    left = {m["path"] for page in obstore.list(store(properties), "warehouse/") for m in page}
    reached = {f for s in catalog.load_table("sales.orders").snapshots() for f in reached_by(catalog, s.snapshot_id)}
    assert {f"s3://lake/{p}" for p in left if p.endswith(".parquet")} == reached | {found.files[0].path}
    catalog.close()


@pytest.mark.cases(144)
def test_equality_deletes_on_s3_become_positions(home: Path, properties: Mapping[str, str]) -> None:
    """The service reads data and keys of a bucket, small files whole and large ones in ranges, and writes there."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse="s3://lake/warehouse", **properties)
    catalog.create_namespace("sales")
    ids = pa.array(Random(24).sample(range(2**62), 1_200_000), pa.int64())
    table = catalog.create_table("sales.upserts", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": ids}))
    table.append(pa.table({"id": ids[:3]}))
    _delete_by_id(table, home, ids[1:4])
    table.append(pa.table({"id": ids[1:2]}))
    with application(read_config(home / "icewright.yaml"), kind="manual") as app:
        detect(app.runtime, ["lake"])
        ref = TableRef("lake", ("sales",), "upserts")
        (done,) = execute(app.runtime, Request(ref, (Operation.REWRITE_DELETES,), manual=True)).outcomes
    assert done.metrics["rows_marked"] == 5, done
    found = catalog.load_table("sales.upserts").scan().to_arrow()["id"]
    assert sorted(found.to_pylist()) == sorted([*ids[:1].to_pylist(), *ids[4:].to_pylist(), *ids[:2].to_pylist()])
    catalog.close()


def _delete_by_id(table: Table, folder: Path, ids: pa.Array) -> None:
    """Commit an equality delete file, as Flink does and PyIceberg does not."""
    fields = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table([ids], fields), buffer)
    content, path = buffer.getvalue().to_pybytes(), f"{table.location()}/data/keys.parquet"
    about: dict[str, Any] = {
        "content": 2,
        "equality_ids": [1],
        "key_metadata": None,
        "lower_bounds": None,
        "upper_bounds": None,
    }
    entry = record(path, [], record_count=len(ids), file_size_in_bytes=len(content), **about)
    new, sequence = table.metadata.new_snapshot_id(), table.metadata.next_sequence_number()
    deletes = by_fastavro(folder, table.spec(), table.schema(), 2, [entry], (new, sequence))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    earlier, manifest = snapshot.manifests(table.io), Path(deletes.manifest_path.removeprefix("file://"))
    deletes[0] = f"{table.location()}/metadata/{manifest.name}"  # its path
    for place, bytes_ in ((path, content), (deletes.manifest_path, manifest.read_bytes())):
        with table.io.new_output(place).create() as stream:
            stream.write(bytes_)
    commit_manifests(table, new, [deletes, *earlier], len(content))


def reached_by(catalog: SqlCatalog, snapshot_id: int) -> set[str]:
    """The data files of one snapshot, by PyIceberg."""
    scan = catalog.load_table("sales.orders").scan(snapshot_id=snapshot_id)
    return {task.file.file_path for task in scan.plan_files()}


@contextmanager
def refusing_store(status: int, code: str = "", reply: bytes = b"") -> Iterator[tuple[Storage, list[str]]]:
    """A bucket whose server answers every request so, and the requests that came."""
    asked: list[str] = []

    class No(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.command)
            body = f"<Error><Code>{code}</Code></Error>".encode() if code and self.command != "HEAD" else reply
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - likewise

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), No) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        keys = {"s3.access-key-id": "key", "s3.secret-access-key": "hush", "s3.region": "us-east-1"}
        endpoint = {"s3.endpoint": f"http://127.0.0.1:{server.server_port}", **keys}
        yield open_bucket("s3://lake", endpoint), asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("code", ["", "AccessDenied"])
def test_what_may_not_be_read_is_told_from_what_is_missing(code: str) -> None:
    """A store that knows who asks and says no is not one that is down."""
    with refusing_store(403, code) as (opened, _):
        with pytest.raises(AccessDenied, match="may not be read"):
            opened.read("s3://lake/a")
        with pytest.raises(AccessDenied, match="may not be looked at"):
            opened.size("s3://lake/a")
        with pytest.raises(AccessDenied, match="may not be looked at"):
            opened.stat([f"s3://lake/{number}" for number in range(20)], 2)
        with pytest.raises(AccessDenied, match=r"clock-\w+ may not be written"):
            opened.time("s3://lake")
        with pytest.raises(AccessDenied, match="may not be listed"):
            list(opened.listing("s3://lake/t"))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, ""),
        (403, "InvalidAccessKeyId"),
        (403, "RequestTimeTooSkewed"),
        (403, "ExpiredToken"),
        (400, "ExpiredToken"),
    ],
)
def test_credentials_that_a_store_does_not_take_are_no_fault_of_a_table(status: int, code: str) -> None:
    """The store is unavailable for all tables alike, which wait; none is paused by failures of its own."""
    with refusing_store(status, code) as (opened, asked):
        for call in (
            lambda: opened.read("s3://lake/a"),
            lambda: opened.size("s3://lake/a"),
            lambda: opened.write("s3://lake/a", b""),
            lambda: list(opened.listing("s3://lake/t")),
        ):
            with pytest.raises(StorageUnavailable, match="does not take the credentials") as caught:
                call()
            assert caught.value.owner is FaultOwner.STORAGE
        asked.clear()
        assert opened.delete([f"s3://lake/{number}" for number in range(20)], 2).deleted == ()
    assert len(asked) == 2, "no request for each object"


@pytest.mark.parametrize(
    ("status", "code", "message", "error"),
    [
        (403, "AccessDenied", r"may not be read \(the key is disabled\): give the", AccessDenied),
        (403, "InvalidObjectState", "may not be read: the store has archived it: restore it there", AccessDenied),
        (409, "BlobArchived", "may not be read: the store has archived it: restore it there", AccessDenied),
        (400, "AuthorizationHeaderMalformed", "Malformed: the key is disabled: set s3.region", StorageUnavailable),
        (404, "NoSuchBucket", "there is no such bucket", FileMissing),
    ],
)
def test_why_a_store_refuses_is_told(status: int, code: str, message: str, error: type[IcewrightError]) -> None:
    """By its own words where they tell more, and with the remedy; a file that is written is never missing."""
    reply = b"<?xml?>\n<Error><Code>%b</Code><Message>the key is disabled</Message></Error>" % code.encode()
    with refusing_store(status, reply=reply) as (opened, _):
        with pytest.raises(error, match=message):
            opened.read("s3://lake/a")
        with pytest.raises(StorageUnavailable if error is FileMissing else error):
            opened.write("s3://lake/a", b"")


def test_a_store_that_asks_to_slow_down_gets_no_request_for_each_object() -> None:
    """Where the deletion of one object was repeated in vain too, the others are not tried, and stay for later."""
    with refusing_store(503, "SlowDown") as (opened, asked):
        paths = [f"s3://lake/{number}" for number in range(20)]
        report = opened.delete(paths, 2)
    assert report.deleted == ()
    assert report.failures.keys() == set(paths)
    assert len(asked) <= 2 * 9, "both requests, each with eight repetitions"


def test_a_reply_about_a_key_that_was_not_asked_for() -> None:
    """As of a gateway that encodes keys anew: obstore panics, and whether the objects are gone is not known."""
    error = b"<Error><Key>t/other</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
    with refusing_store(200, reply=b"<DeleteResult>%b</DeleteResult>" % error) as (opened, asked):
        report = opened.delete(["s3://lake/t/a", "s3://lake/t/b"], 2)
    assert report.deleted == ()
    assert report.failures.keys() == {"s3://lake/t/a", "s3://lake/t/b"}
    assert asked == ["POST"] * 3
