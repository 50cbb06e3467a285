"""Creates the demo's folder and its configuration."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog

from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.config import Config
from icewright.core.errors import UsageError

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
    conf: {{spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1"}}  # a short life: less time in the compiler
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
    home = _empty_folder(directory)
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
