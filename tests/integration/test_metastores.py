"""Glue and a Hive metastore under three clients: Spark and PyIceberg write, Icewright compacts and expires."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icewright.adapters.clock import SystemClock
from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config
from icewright.app.config import Config
from icewright.app.doctor import examine
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from tests.nightly import nightly
from tests.servers.s3_server import BUCKET

pytestmark = [pytest.mark.spark, pytest.mark.external, pytest.mark.usefixtures("own_spark")]
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
REF = TableRef("lake", ("clients",), "orders")
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: {kind}
    enabled: true
    properties: {properties}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
  - set: {{compact.hot_partitions: include, compact.min_input_files: 2}}
  - set: {{compact.engine: {kernel}}}
"""
GLUE = """{{warehouse: "s3://lake/warehouse", glue.endpoint: "{at}", s3.endpoint: "{at}", client.region: us-east-1,
      client.access-key-id: key, client.secret-access-key: hush}}"""


class Later(SystemClock):
    """Some days later, so that what was written just now is old."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        """The time then."""
        return super().now() + self.ahead


@pytest.fixture(params=[nightly("glue-spark"), "hive-arrow"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A catalog of the kind, with nothing but what users would say."""
    kind, kernel = request.param.split("-")
    if kind == "glue":
        address = request.getfixturevalue("glue_address")
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=address, **keys).create_bucket(
            Bucket=BUCKET
        )  # another test may have emptied it
        properties = GLUE.format(at=address)
    else:
        uri = request.getfixturevalue("metastore").uri
        properties = f'{{uri: "{uri}", warehouse: "file://{tmp_path}/warehouse"}}'
    file = tmp_path / "icewright.yaml"
    file.write_text(CONFIG.format(home=tmp_path, kind=kind, properties=properties, kernel=kernel))
    return read_config(file)


@pytest.mark.cases(75)
def test_three_clients_of_one_catalog(config: Config) -> None:
    """Every row is there for Spark and PyIceberg, of four files one is left, and doctor finds nothing wrong."""
    catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    warehouse = config.catalogs["lake"].properties["warehouse"]
    catalog.create_namespace("clients", {"location": f"{warehouse}/clients.db"})
    table = catalog.create_table("clients.orders", ROWS.schema)
    for _ in range(3):
        table.append(ROWS)
    clock = Later()
    with application(config, kind="manual", clock=clock) as app:
        spark = app.pools["default"].session()
        spark.sql("INSERT INTO lake.clients.orders VALUES (1)").collect()
        assert not [check for check in examine(app) if not check.ok]
        detect(app.runtime, ["lake"])
        job = execute(app.runtime, Request(REF, (Operation.COMPACT, Operation.REWRITE_MANIFESTS), manual=True))
        assert job.state is JobState.SUCCEEDED, job.summary
        assert job.outcomes[0].metrics["files_merged"] == 4
        clock.ahead = timedelta(days=10)
        job = execute(app.runtime, Request(REF, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
        assert job.state is JobState.SUCCEEDED, job.summary
        assert job.outcomes[0].metrics["files_deleted"] >= 4
        table = catalog.load_table("clients.orders")
        assert table.scan().to_arrow().num_rows == 31
        assert len(table.snapshots()) == len(table.inspect.files()) == 1
        assert spark.sql("SELECT count(*) FROM lake.clients.orders").first()[0] == 31  # type: ignore[index]
    catalog.close()
