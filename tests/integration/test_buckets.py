"""Buckets tell places apart: what lies in one is never another's, however alike the paths, and never deleted for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate

from icewright.adapters.engines.service import integrity
from icewright.app.bootstrap import Application, application, pyiceberg_catalog_properties, read_config
from icewright.core.integrity import CheckLevel
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from tests.integration.test_s3 import Later
from tests.s3 import s3_server

pytestmark = [pytest.mark.external]
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
BUCKETS = ("lake", "prod", "stage", "legal-hold")
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "s3://prod/wh"{more}}}
    allowed_locations: [{allowed}]
  vault:  # whose credentials reach the bucket
    type: sql
    properties: {{uri: "sqlite:///{home}/vault.db", warehouse: "s3://legal-hold/wh"{more}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1,
           remove_orphans.mode: delete, remove_orphans.max_delete_ratio: 1}}
"""


@dataclass
class Buckets:
    """Four buckets, a catalog over them, and Icewright days later."""

    home: Path
    properties: Mapping[str, str]
    app: Application
    catalog: Catalog

    def table(self, name: str, location: str) -> TableRef:
        """Make a table of three snapshots, each of which replaces the rows of the one before."""
        table = self.catalog.create_table(("sales", name), ROWS.schema, location=location)
        _written(table)
        return TableRef("lake", ("sales",), name)

    def run(self, ref: TableRef, operation: Operation) -> Outcome:
        """One operation by hand."""
        detect(self.app.runtime, ["lake"])
        (outcome,) = execute(self.app.runtime, Request(ref, (operation,), manual=True)).outcomes
        return outcome

    def keys(self, bucket: str) -> set[str]:
        """Every key of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {entry["Key"] for page in pages for entry in page.get("Contents", ())}

    @property
    def client(self) -> boto3.client:
        """A client of another kind than Icewright's."""
        return _client(self.properties)


def quickly_located(table: Table, location: str) -> None:
    """Set the location, as Spark would."""
    with table.transaction() as transaction:
        transaction._apply((SetLocationUpdate(location=location),))


def _body(buckets: Buckets, location: str) -> bytes:
    """The content of an object."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    body: bytes = buckets.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


def _written(table: Table) -> None:
    """Three snapshots, of which two replace what was there."""
    table.append(ROWS)
    for _ in range(2):
        table.overwrite(ROWS)


def _client(properties: Mapping[str, str]) -> boto3.client:
    return boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        aws_access_key_id="key",
        aws_secret_access_key="hush",
        region_name="us-east-1",
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Mapping[str, str]]:
    """An S3 server."""
    with s3_server() as found:
        for bucket in BUCKETS[1:]:
            _client(found).create_bucket(Bucket=bucket)
        yield found


@pytest.fixture
def buckets(tmp_path: Path, server: Mapping[str, str], request: pytest.FixtureRequest) -> Iterator[Buckets]:
    """Empty buckets; the parameter says the places in which files may be deleted."""
    for bucket in BUCKETS:
        for entry in _client(server).list_objects_v2(Bucket=bucket).get("Contents", ()):
            _client(server).delete_object(Bucket=bucket, Key=entry["Key"])
    allowed = ", ".join(
        f'"{place}"' for place in getattr(request, "param", ("s3://prod/", "s3://stage/", "s3://lake/", "s3://old/"))
    )
    file = tmp_path / "icewright.yaml"
    more = "".join(f', {k}: "{v}"' for k, v in server.items())
    file.write_text(CONFIG.format(home=tmp_path, more=more, allowed=allowed), encoding="utf-8")
    config = read_config(file)
    catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    catalog.create_namespace("sales")
    load_catalog("vault", **pyiceberg_catalog_properties(config.catalogs["vault"])).close()
    clock = Later()
    clock.ahead = Later.ahead.__class__(days=10)
    with application(config, kind="manual", clock=clock) as app:
        yield Buckets(tmp_path, server, app, catalog)
    catalog.close()


@pytest.mark.cases(100)
@pytest.mark.parametrize("buckets", [("s3://prod/wh",), ("s3a://prod/wh/",)], indirect=True)
@pytest.mark.parametrize("operation", [Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS])
def test_the_same_path_in_a_bucket_that_is_not_allowed(buckets: Buckets, operation: Operation) -> None:
    """Allowed is s3://prod/wh: of a table in s3://legal-hold/wh nothing is deleted, and the refusal says so."""
    ref = buckets.table("orders", "s3://legal-hold/wh/db/orders")
    buckets.client.put_object(Bucket="legal-hold", Key="wh/db/orders/data/lost.parquet", Body=b"x")
    before = buckets.keys("legal-hold")
    done = buckets.run(ref, operation)
    assert (done.state, "[outside_allowed_locations]" in done.reason) == (OperationState.SKIPPED, True), done
    assert buckets.keys("legal-hold") == before


@pytest.mark.cases(105)
def test_the_same_path_in_two_buckets_is_no_overlap(buckets: Buckets) -> None:
    """Production and staging have the same layout, and both are cleaned, each by itself."""
    for bucket in ("prod", "stage"):
        ref = buckets.table(f"orders_{bucket}", f"s3://{bucket}/wh/db/orders")
        buckets.client.put_object(Bucket=bucket, Key="wh/db/orders/data/lost.parquet", Body=b"x")
        assert ref.name
    for bucket, other in (("prod", "stage"), ("stage", "prod")):
        elsewhere = buckets.keys(other)
        done = buckets.run(TableRef("lake", ("sales",), f"orders_{bucket}"), Operation.REMOVE_ORPHANS)
        assert [file.path for file in done.files] == [f"s3://{bucket}/wh/db/orders/data/lost.parquet"], done
        assert buckets.keys(other) == elsewhere


@pytest.mark.cases(105)
def test_a_table_at_the_root_of_a_bucket_concerns_that_bucket_alone(buckets: Buckets) -> None:
    """It overlaps every table of its own bucket, whatever scheme they are spelt with, and none of another's."""
    buckets.table("everything", "s3://stage/")
    inside = buckets.table("inside", "s3a://stage/wh/db/orders")
    ref = buckets.table("orders", "s3://prod/wh/db/orders")
    buckets.client.put_object(Bucket="prod", Key="wh/db/orders/data/lost.parquet", Body=b"x")
    assert [f.path for f in buckets.run(ref, Operation.REMOVE_ORPHANS).files] == [
        "s3://prod/wh/db/orders/data/lost.parquet"
    ]
    refused = buckets.run(inside, Operation.REMOVE_ORPHANS)
    assert (refused.state, "[shared_location]" in refused.reason) == (OperationState.SKIPPED, True), refused


@pytest.mark.cases(95, 105)
@pytest.mark.parametrize("operation", [Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS])
def test_a_table_that_moved_to_the_same_path_of_another_bucket(buckets: Buckets, operation: Operation) -> None:
    """Its old bucket may be gone, and a version of an unseen catalog in the new one is found all the same."""
    buckets.client.create_bucket(Bucket="old")
    ref = TableRef("lake", ("sales",), "moved")
    table = buckets.catalog.create_table("sales.moved", ROWS.schema, location="s3://old/wh/db/moved")
    quickly_located(table, "s3://prod/wh/db/moved")
    table = buckets.catalog.load_table("sales.moved")
    _written(table)
    for key in buckets.keys("old"):
        buckets.client.delete_object(Bucket="old", Key=key)
    buckets.client.delete_bucket(Bucket="old")
    location = table.metadata_location
    document = json.loads(_body(buckets, location))
    document |= {"last-updated-ms": document["last-updated-ms"] + 1}
    document["metadata-log"].append({"metadata-file": location, "timestamp-ms": document["last-updated-ms"]})
    newer = "wh/db/moved/metadata/00099-11111111-1111-4111-8111-111111111111.metadata.json"
    buckets.client.put_object(Bucket="prod", Key=newer, Body=json.dumps(document).encode())
    refused = buckets.run(ref, operation)
    assert (refused.state, "[successor]" in refused.reason) == (OperationState.SKIPPED, True), refused


def test_data_at_the_same_path_of_another_bucket_is_the_tables_own(buckets: Buckets) -> None:
    """A write path is told from the location by its bucket too: expired data goes, and orphans are found there."""
    properties = {"write.data.path": "s3://stage/wh/db/spread/data"}
    location = "s3://prod/wh/db/spread"
    table = buckets.catalog.create_table(("sales", "spread"), ROWS.schema, location, properties=properties)
    _written(table)
    ref = TableRef("lake", ("sales",), "spread")
    buckets.client.put_object(Bucket="stage", Key="wh/db/spread/data/lost.parquet", Body=b"x")
    assert buckets.run(ref, Operation.EXPIRE_SNAPSHOTS).state is OperationState.COMMITTED
    assert len(buckets.keys("stage")) == 2
    done = buckets.run(ref, Operation.REMOVE_ORPHANS)
    assert [file.path for file in done.files] == ["s3://stage/wh/db/spread/data/lost.parquet"], done
    assert buckets.catalog.load_table("sales.spread").scan().to_arrow().num_rows == 10


def test_many_files_under_other_keys_are_missing(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a b` and `a%20b` are two files, also where so many are missing that all are looked at once more."""
    monkeypatch.setattr(integrity, "_FEW", 0)
    location = "s3://prod/wh/db/renamed"
    properties = {"write.data.path": f"{location}/da ta"}
    _written(buckets.catalog.create_table(("sales", "renamed"), ROWS.schema, location, properties=properties))
    data = {key for key in buckets.keys("prod") if key.endswith(".parquet")}
    for key in data:
        source = {"Bucket": "prod", "Key": key}
        buckets.client.copy_object(Bucket="prod", Key=key.replace(" ", "%20"), CopySource=source)
        buckets.client.delete_object(**source)
    faults = buckets.app.runtime.engine.check(TableRef("lake", ("sales",), "renamed"), CheckLevel.EXISTS).faults
    assert {fault.path.removeprefix("s3://prod/") for fault in faults} == data


def test_an_expiry_across_buckets(buckets: Buckets) -> None:
    """Data in a write path of another bucket is the table's own and goes with its snapshots; lists have bytes."""
    table = buckets.catalog.create_table(
        ("sales", "spread"), ROWS.schema, "s3://prod/wh/db/spread", properties={"write.data.path": "s3://stage/pool"}
    )
    _written(table)
    before = buckets.keys("stage")
    done = buckets.run(TableRef("lake", ("sales",), "spread"), Operation.EXPIRE_SNAPSHOTS)
    assert done.state is OperationState.COMMITTED, done
    assert len(before) - len(buckets.keys("stage")) == 2
    assert all(file.bytes for file in done.files)
    assert buckets.catalog.load_table("sales.spread").scan().to_arrow().num_rows == 10


TWO_STORES = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake: {{type: sql, enabled: true, properties: {{uri: "sqlite:///{home}/lake.db", warehouse: "s3://lake/wh"{lake}}}}}
  pond: {{type: sql, enabled: true, properties: {{uri: "sqlite:///{home}/pond.db", warehouse: "s3://lake/wh"{pond}}}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1,
           rewrite_manifests.min_manifests: 2}}
"""


def _keys(server: Mapping[str, str]) -> set[str]:
    """Every key of the bucket `lake`."""
    return {entry["Key"] for entry in _client(server).list_objects_v2(Bucket="lake").get("Contents", ())}


def test_one_name_of_a_bucket_in_two_stores(tmp_path: Path, server: Mapping[str, str]) -> None:
    """Each table is read, rewritten and expired in the store of its own catalog, though all paths begin alike."""
    with s3_server() as other:
        said = {n: "".join(f', {k}: "{v}"' for k, v in s.items()) for n, s in (("lake", server), ("pond", other))}
        file = tmp_path / "icewright.yaml"
        file.write_text(TWO_STORES.format(home=tmp_path, **said), encoding="utf-8")
        config = read_config(file)
        stores = {"lake": server, "pond": other}
        before, tables = {}, {}
        for name, place in (("lake", server), ("pond", other)):
            catalog = load_catalog(name, **pyiceberg_catalog_properties(config.catalogs[name]))
            catalog.create_namespace("sales")
            tables[name] = catalog.create_table(("sales", "orders"), ROWS.schema)
            _written(tables[name])
            tables[name].append(ROWS)
            before[name] = _keys(place)
        clock = Later()
        clock.ahead = Later.ahead.__class__(days=10)
        with application(config, kind="manual", clock=clock) as app:
            detect(app.runtime, ["lake", "pond"])
            for name in ("pond", "lake"):
                ref = TableRef(name, ("sales",), "orders")
                operations = (Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS)
                outcomes = execute(app.runtime, Request(ref, operations, manual=True)).outcomes
                assert [one.state for one in outcomes] == [OperationState.COMMITTED] * 2, outcomes
        for name, place in stores.items():
            assert tables[name].refresh().scan().to_arrow().num_rows == 20
            assert len(tables[name].metadata.snapshots) == 1
            named = {p.removeprefix("s3://lake/") for p in _files_of(tables[name])}
            assert named <= _keys(place), "all that the table names lies in its own store"
            gone = before[name] - _keys(place)
            assert len([key for key in gone if key.endswith(".parquet")]) == 2, gone
            other_tables = set().union(*(before[n] for n in stores if n != name))
            assert not other_tables & _keys(place), "nothing of the other one"


def _files_of(table: Table) -> set[str]:
    """The paths that the current snapshot names, and its metadata file."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    paths = {table.metadata_location, snapshot.manifest_list, *(m.manifest_path for m in manifests)}
    return paths | {entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(table.io)}
