"""The demo's folder, its configuration, and the servers that its catalog and files live on while it runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog

from icewright.app.bootstrap import java_of, pyiceberg_catalog_properties, read_config
from icewright.app.config import Config, user_cache
from icewright.app.demo.loopback import free_port
from icewright.app.demo.nessie_server import nessie_served
from icewright.app.demo.nessie_tables import NessieTables
from icewright.app.demo.rest_server import S3_FILE_IO, rest_host
from icewright.app.demo.s3_server import BUCKET, objects, s3_properties, s3_served
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
    type: {kind}
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
    """Where the demo's catalog and files are: a folder, and servers where there are any."""

    home: Path
    config: Config
    warehouse: Path  # the folder of the files, whoever serves them
    uri: str  # that the warehouse is served under; blank: its path
    served: Callable[[], AbstractContextManager[None]]  # the servers, as long as it is entered
    catalog: Callable[[], Catalog]  # for PyIceberg's writers


def place(directory: Path, kind: str, storage: str) -> DemoLocation:
    """Return an empty folder with a configuration; an earlier demo's is made anew, anything else is left alone."""
    home = _emptied(directory)
    port, s3_port = free_port(), free_port()
    on_s3 = s3_properties(s3_port) if storage == "s3" else {}
    folder = (objects(home / "s3") if on_s3 else home) / "warehouse"
    uri = f"s3://{BUCKET}/warehouse" if on_s3 else ""
    folder.mkdir(parents=True)
    address = f"http://127.0.0.1:{port}"
    named = {"sql": f"sqlite:///{home}/catalog.db", "rest": address, "nessie": f"{address}/api/v2"}[kind]
    properties = {"uri": named, "warehouse": uri or f"file://{folder}", **on_s3}
    said = _CONFIG.format(home=home, catalog=CATALOG, kind=kind, properties=json.dumps(properties), undone=UNDONE)
    (home / "icewright.yaml").write_text(said, encoding="utf-8")
    config = read_config(home / "icewright.yaml")

    @contextmanager
    def served() -> Iterator[None]:
        with ExitStack() as stack:
            if on_s3:
                stack.enter_context(s3_served(java_of(config), home / "s3", user_cache() / "s3", s3_port))
            if kind == "rest":
                stack.enter_context(_rest(config, home, port, properties["warehouse"], on_s3))
            if kind == "nessie":
                stack.enter_context(nessie_served(home / "logs", user_cache() / "nessie", port=port))
            yield

    def catalog() -> Catalog:
        known = pyiceberg_catalog_properties(config.catalogs[CATALOG])
        return NessieTables(CATALOG, named, **known) if kind == "nessie" else load_catalog(CATALOG, **known)

    return DemoLocation(home, config, folder, uri, served, catalog)


def _emptied(directory: Path) -> Path:
    home = directory.expanduser().resolve()
    if home.is_dir() and any(home.iterdir()):
        if not (home / MARK).is_file():
            raise UsageError(f"{home} is not empty and no earlier demo: name another folder with --dir")
        for child in home.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    (home / "logs").mkdir(parents=True)
    (home / MARK).touch()
    return home


@contextmanager
def _rest(config: Config, home: Path, port: int, warehouse: str, on_s3: Mapping[str, str]) -> Iterator[None]:
    """Apache's REST server over a SQLite database in the demo's folder."""
    with (
        (home / "logs" / "rest.log").open("wb") as log,
        rest_host(java_of(config), user_cache() / "rest", log, s3=bool(on_s3)) as host,
    ):
        opened = {"io-impl": S3_FILE_IO, **on_s3} if on_s3 else {}
        host.serve(home / "catalog.db", warehouse, port, **opened)
        yield
