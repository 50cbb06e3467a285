"""A catalog and a state store in PostgreSQL: Spark, PyIceberg and Icewright on the same table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.adapters.catalogs.translate import sql_catalog
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.store.database import open_database
from icewright.adapters.store.revisions import newest_revision
from icewright.app.bootstrap import application, open_store, read_config
from icewright.app.demo.proof import fingerprint
from icewright.core.errors import ConfigError
from icewright.core.runs import JobState
from icewright.flow.cycle import run_cycle

_CONFIG = """\
state: {url}
catalogs:
  pg: {{type: sql, enabled: true, properties: {{uri: "{url}", warehouse: "file://{home}/warehouse"}}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
"""


@pytest.mark.spark
@pytest.mark.external
def test_a_catalog_in_postgresql(tmp_path: Path, postgres_url: str, spark_pool: SparkPool) -> None:
    """Files that Spark and PyIceberg wrote side by side are compacted; both read the same rows before and after.

    The first start makes the store; one of an older shape is left to `icewright db upgrade`.
    """
    file = tmp_path / "icewright.yaml"
    file.write_text(_CONFIG.format(url=postgres_url, home=tmp_path))
    properties = sql_catalog("pg", {"uri": postgres_url, "warehouse": f"file://{tmp_path}/warehouse"})
    spark = spark_pool.session()
    for key, value in properties.spark_conf().items():
        spark.conf.set(key, value)
    catalog = SqlCatalog("pg", **properties.pyiceberg_properties())
    catalog.create_namespace_if_not_exists("shop")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    table = catalog.create_table("shop.both", rows.schema)
    for _ in range(3):
        table.refresh().append(rows)
        spark.sql("INSERT INTO pg.shop.both VALUES (3, 'c'), (4, 'd')")
    before = fingerprint(spark, "pg.shop.both")
    config = read_config(file)
    with ThreadPoolExecutor(3) as processes:  # that start at once make the store once
        list(processes.map(lambda _: open_store(config).engine.dispose(), range(3)))
    with application(config, kind="tests") as app:
        engine = replace(app.engines, spark=replace(app.engines.spark, pools={"pg": spark_pool}))
        result = run_cycle(replace(app.runtime, engine=engine), ["pg"])
        assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}, result
        assert "files into 1 in 1 group" in " ".join(job.summary for job in result.jobs)
    assert fingerprint(spark, "pg.shop.both") == before
    assert table.refresh().scan().to_arrow().num_rows == before.rows == 12
    assert len(list(table.scan().plan_files())) == 1
    catalog.close()
    _set_revision(postgres_url, "0001")
    with pytest.raises(ConfigError, match="icewright db upgrade"), application(config, kind="tests"):
        pass
    _set_revision(postgres_url, newest_revision())


def _set_revision(url: str, revision: str) -> None:
    engine = open_database(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"update alembic_version set version_num = '{revision}'")  # noqa: S608 - ours
    engine.dispose()
