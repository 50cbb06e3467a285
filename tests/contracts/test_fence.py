"""Spark's own deletion asks nobody file by file, so it is not begun when a file lies outside of the environment."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from icewright.app.bootstrap import application, read_config
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake
from icewright.core.policy import Operation
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.testing import FixedClock
from tests.contracts.bench import NOW, SCHEMA, Bench, no_spark

CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "file://{home}/warehouse"}}
    {fence}
cache: {{folder: "{home}/cache"}}
policy:
  - set:
      expire_snapshots.engine: spark
      deletion.delay_hours: 0
      expire_snapshots.retention_hours: 1
      expire_snapshots.min_snapshots_to_keep: 1
      execute.check_totals: false
"""


@pytest.mark.parametrize(
    ("fence", "said"),
    [
        ('environment: {{locations: ["file://{home}/warehouse"]}}', "environment.locations"),
        ('allowed_locations: ["file://{home}/warehouse"]', "allowed_locations"),
    ],
)
def test_spark_deletes_nothing_outside(tmp_path: Path, fence: str, said: str) -> None:
    """The job says which file, and Spark is not even started."""
    (tmp_path / "warehouse").mkdir()
    bench = Bench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse")
    craft = Craft(Lake(bench.iceberg, no_spark, bench.warehouse, NOW), "sales.orders", SCHEMA)
    file = craft.data({"id": [1]})
    away = replace(file, record={**file.record, "file_path": "file:///elsewhere/1.parquet"})
    old = craft.commit(NOW - timedelta(hours=3), [away])
    craft.commit(NOW - timedelta(hours=2), [craft.data({"id": [2]})], replaced=old)
    craft.publish()
    config = tmp_path / "icewright.yaml"
    config.write_text(CONFIG.format(home=tmp_path, fence=fence.format(home=tmp_path)))
    ref = bench.ref("sales", "orders")
    with application(read_config(config), kind="manual", clock=FixedClock(NOW)) as app:
        detect(app.runtime, ["lake"])
        result = execute(app.runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
        assert said in result.summary, result
        assert not app.pools["default"].started
    assert len(bench.catalog.load(ref).snapshots) == 2
    bench.close()
