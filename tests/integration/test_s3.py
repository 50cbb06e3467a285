"""Tables on S3: both kernels compact them, then expiry and orphan removal clean up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from icewright.adapters.clock import SystemClock
from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config
from icewright.app.config import Config
from icewright.core.policy import Operation
from icewright.core.runs import JobState, Outcome
from icewright.core.table import TableRef
from icewright.flow.copy import copy_table
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.register import register
from tests.s3 import s3_server, store

pytestmark = [pytest.mark.spark, pytest.mark.external, pytest.mark.usefixtures("own_spark")]
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "s3://lake/warehouse"{more}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1,
           expire_snapshots.min_snapshots_to_keep: 1, remove_orphans.mode: delete}}
  - set: {{compact.hot_partitions: include, remove_orphans.max_delete_ratio: 1.0}}
  - {{match: lake.sales.by_spark, set: {{compact.engine: spark}}}}
"""


class Later(SystemClock):
    """Some days later, so that what was written just now is old."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        """The time then."""
        return super().now() + self.ahead


@pytest.fixture(scope="module")
def properties() -> Iterator[Mapping[str, str]]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


@pytest.fixture
def config(tmp_path: Path, properties: Mapping[str, str]) -> Config:
    """A catalog whose warehouse is the bucket; Spark's words for it come from the same properties."""
    file = tmp_path / "icewright.yaml"
    file.write_text(CONFIG.format(home=tmp_path, more="".join(f', {k}: "{v}"' for k, v in properties.items())))
    return read_config(file)


def test_both_kernels_on_s3(config: Config, properties: Mapping[str, str]) -> None:
    """Every row is read as before by PyIceberg, one file is left of eight, what was lost is gone."""
    catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    catalog.create_namespace("sales")
    clock = Later()
    with application(config, kind="manual", clock=clock) as app:
        for name in ("by_arrow", "by_spark"):
            _written(catalog, name, properties)
        detect(app.runtime, ["lake"])
        for name in ("by_arrow", "by_spark"):
            ref = TableRef("lake", ("sales",), name)
            compacted = _done(execute(app.runtime, Request(ref, (Operation.COMPACT,), manual=True)).outcomes)
            assert compacted.metrics["files_merged"] == 8
        clock.ahead = timedelta(days=10)
        for name in ("by_arrow", "by_spark"):
            ref = TableRef("lake", ("sales",), name)
            job = execute(
                app.runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS), manual=True)
            )
            assert job.state is JobState.SUCCEEDED, job.summary
            assert job.outcomes[0].metrics["files_deleted"] >= 8
            assert [f.path.rpartition("/")[2] for f in job.outcomes[1].files] == ["lost.parquet"]
            table = catalog.load_table(("sales", name))
            assert table.scan().to_arrow().num_rows == 80
            assert len(table.inspect.files()) == 1
    catalog.close()


def _written(catalog: Catalog, name: str, properties: Mapping[str, str]) -> None:
    table = catalog.create_table(("sales", name), ROWS.schema)
    for _ in range(8):
        table.append(ROWS)
    store(properties).put(f"{table.location().removeprefix('s3://lake/')}/data/lost.parquet", b"x")


def _done(outcomes: tuple[Outcome, ...]) -> Outcome:
    (outcome,) = outcomes
    assert outcome.reason == "", outcome
    return outcome


@pytest.mark.nightly
def test_spark_reads_and_writes_a_copy_in_the_bucket(config: Config) -> None:
    """With deletes that name data files, after the table itself is gone, purged."""
    with application(config, kind="manual") as app:
        (pool,) = app.pools.values()
        sql = pool.session().sql
        sql("CREATE NAMESPACE IF NOT EXISTS lake.copied")
        properties = "'format-version' = '2', 'write.delete.mode' = 'merge-on-read'"
        sql(f"CREATE TABLE lake.copied.orders (id bigint) USING iceberg TBLPROPERTIES ({properties})")
        sql("INSERT INTO lake.copied.orders SELECT id FROM range(100)")
        sql("DELETE FROM lake.copied.orders WHERE id < 40")
        detect(app.runtime, ["lake"])
        ref, place = TableRef("lake", ("copied",), "orders"), "s3://lake/copies/orders"
        copy_table(app.runtime, ref, place)
        sql("DROP TABLE lake.copied.orders PURGE")
        register(app.runtime, TableRef("lake", ("copied",), "copy"), place)
        assert [row.id for row in sql("SELECT id FROM lake.copied.copy ORDER BY id").collect()] == list(range(40, 100))
        sql("DELETE FROM lake.copied.copy WHERE id = 99")
        files = sql("SELECT file_path FROM lake.copied.copy.all_files").collect()
        assert all(row.file_path.startswith(place) for row in files)
        assert sql("SELECT * FROM lake.copied.copy").count() == 59
