"""The demo's folder with its configuration, and the catalog and warehouse that its tables are created in."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, load_catalog

from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.config import Config
from icewright.core.errors import UsageError
from icewright.core.table import TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"
UNDONE = f"{CATALOG}.ops.metrics"  # the table whose expiry is undone
MARK = ".icewright-demo"
_CONFIG = """\
# Made by `icewright demo`. Cooldowns are off and files are deleted at once, so that there is something to see; of one
# table they wait, so that its expiry can be undone.
state: sqlite:///{home}/icewright.db
catalogs:
  {catalog}:
    type: sql
    enabled: true
    properties: {properties}
cache: {{folder: "{home}/cache"}}
detect: {{interval_seconds: 3}}
pools:
  default:
    conf: {{spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}}  # quick to start
policy:
  - set:
      evaluate.cooldown_minutes: 0
      compact.cooldown_minutes: 0
      rewrite_deletes.cooldown_minutes: 0
      rewrite_manifests.cooldown_minutes: 0
      expire_snapshots.cooldown_minutes: 0
      remove_orphans.mode: delete
      deletion.delay_hours: 0
  - {{match: {undone}, set: {{deletion.delay_hours: 24}}}}
  - {{match: "{catalog}.web", set: {{importance: high}}}}
"""


@dataclass(frozen=True, slots=True)
class Rot:
    """The name of a table and what is wrong with it."""

    name: str
    story: str


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog that PyIceberg and Spark share, and the folder that its tables lie in.

    `now` is in UTC and never later than the real time, as Spark commits with its own clock.
    """

    catalog: Catalog
    spark: Callable[[], SparkSession]
    warehouse: Path
    now: datetime
    seed: int = 7

    def identifier(self, name: str) -> tuple[str, ...]:
        """Return the parts of `namespace.table`; the namespace is made when it is new."""
        parts = tuple(name.split("."))
        self.catalog.create_namespace_if_not_exists(parts[:-1])
        return parts

    def folder(self, name: str) -> Path:
        """Return the folder of the table `namespace.table`."""
        return self.warehouse.joinpath(*name.split("."))

    def point(self, name: str, metadata_location: str) -> None:
        """Make the catalog name another metadata file of the table `namespace.table`."""
        identifier = self.identifier(name)
        self.catalog.drop_table(identifier)  # the catalog's row alone
        self.catalog.register_table(identifier, metadata_location)

    def quoted(self, name: str) -> str:
        """Return the full name of `namespace.table` as Spark's SQL takes it."""
        return ".".join("`" + part.replace("`", "``") + "`" for part in (self.catalog.name, *name.split(".")))

    def random(self, name: str) -> random.Random:
        """Return the table's own random generator, so that its rows do not depend on other tables."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - made-up data

    def rot(self, name: str, story: str) -> Rot:
        """Return the description of what is wrong with `namespace.table`."""
        *namespace, table = name.split(".")
        return Rot(str(TableRef(self.catalog.name, tuple(namespace), table)), story)


@dataclass(frozen=True)
class DemoLocation:
    """The folder of a demo, with its configuration and warehouse."""

    home: Path
    config: Config
    warehouse: Path  # the folder of the files

    def catalog(self) -> Catalog:
        """Load the catalog for PyIceberg's writers."""
        return load_catalog(CATALOG, **pyiceberg_catalog_properties(self.config.catalogs[CATALOG]))


def create_location(directory: Path) -> DemoLocation:
    """Return an empty folder with a configuration; the folder of an earlier demo is emptied. Raises `UsageError`."""
    try:
        home = _empty_folder(directory)
    except OSError as error:
        raise UsageError(f"--dir {directory}: {error.strerror}; name another folder") from error
    folder = home / "warehouse"
    folder.mkdir(parents=True)
    properties = {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{folder}"}
    text = _CONFIG.format(home=home, catalog=CATALOG, properties=json.dumps(properties), undone=UNDONE)
    (home / "icewright.yaml").write_text(text, encoding="utf-8")
    return DemoLocation(home, read_config(home / "icewright.yaml"), folder)


def _empty_folder(directory: Path) -> Path:
    home = directory.expanduser().resolve()
    if home.is_dir() and any(home.iterdir()):
        if not (home / MARK).is_file():
            raise UsageError(f"{home} is not empty and no earlier demo: name another folder with --dir")
        for child in home.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    (home / "logs").mkdir(parents=True)
    (home / MARK).touch()
    return home
