"""A hundred and twenty small tables on PostgreSQL, all of them due for something, and the truth about their rows."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

COMMITS = 9
ROWS = 3  # of each commit
NAMESPACE = "fleet"
SCHEMA = Schema(NestedField(1, "id", LongType()))

_CONFIG = """\
state: {state}
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "{catalog}", warehouse: "file://{home}/warehouse"}}
    detect_interval_seconds: 2
limits:
  global: 12
  per_operation: {{rewrite_manifests: 12, expire_snapshots: 12, remove_orphans: 12}}
  max_jobs_per_detection: 1000
cache: {{folder: "{home}/cache"}}
server: {{port: 0}}
policy:
  - set:
      evaluate.cooldown_minutes: 0
      compact.enabled: false
      rewrite_manifests.cooldown_minutes: 0
      expire_snapshots.cooldown_minutes: 0
      deletion.delay_hours: 0
      expire_snapshots.retention_hours: 24
      expire_snapshots.min_snapshots_to_keep: 1
      remove_orphans.mode: delete
      remove_orphans.older_than_hours: 24
"""


@dataclass(frozen=True)
class Fleet:
    """A folder with configuration, warehouse and tables."""

    home: Path

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.home / "icewright.yaml"

    def catalog(self) -> SqlCatalog:
        """PyIceberg's client of the catalog."""
        return SqlCatalog("lake", **json.loads((self.home / "catalog.json").read_text(encoding="utf-8")))

    def orphans(self) -> list[Path]:
        """Files that no table ever named, as they lie there still."""
        return sorted(self.home.glob("warehouse/*/*/data/lost-*.parquet"))


def make_fleet(home: Path, state: str, catalog: str, tables: int) -> Fleet:
    """Tables with days of commits behind them, each a manifest and a snapshot, and an old orphan in every fifth."""
    (home / "warehouse").mkdir(parents=True)
    fleet = Fleet(home)
    properties = {"uri": catalog, "warehouse": f"file://{home}/warehouse"}
    (home / "catalog.json").write_text(json.dumps(properties), encoding="utf-8")
    fleet.config.write_text(_CONFIG.format(home=home, state=state, catalog=catalog), encoding="utf-8")
    from icewright.app.demo.craft import Craft  # the writers, who load this module too, need none of it
    from icewright.app.demo.lake import Lake

    now = datetime.now(UTC)
    client = fleet.catalog()
    lake = Lake(client, _no_spark, home / "warehouse", now)
    for number in range(tables):
        craft = Craft(lake, f"{NAMESPACE}.t{number:03d}", SCHEMA)
        for commit in range(COMMITS):
            ids = range(commit * ROWS, (commit + 1) * ROWS)
            craft.commit(now - timedelta(days=10 - commit), [craft.data({"id": list(ids)})])
        craft.publish()
        if number % 5 == 0:
            _lose(craft.folder / "data" / f"lost-{number}.parquet", now - timedelta(days=1.5))
    client.close()
    return fleet


def _lose(path: Path, at: datetime) -> None:
    path.write_bytes(b"nobody names this file")
    os.utime(path, (at.timestamp(), at.timestamp()))


def _no_spark() -> NoReturn:
    raise AssertionError
