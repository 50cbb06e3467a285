"""The demo's folder, its configuration, and the server that its catalog lives on while it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog

from icewright.app.bootstrap import java_of, pyiceberg_catalog_properties, read_config
from icewright.app.config import Config, user_cache
from icewright.app.demo.nessie_server import free_port, nessie_served
from icewright.app.demo.nessie_tables import NessieTables
from icewright.app.demo.rest_server import rest_host
from icewright.core.errors import UsageError

CATALOG = "lake"
MARK = ".icewright-demo"

_CONFIG = """\
# Made by `icewright demo`. Cooldowns are off and orphans are deleted at once, so that there is something to see.
state: sqlite:///{home}/icewright.db
catalogs:
  {catalog}:
    type: {kind}
    enabled: true
    properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}
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
  - {{match: "{catalog}.web", set: {{importance: high}}}}
"""


@dataclass(frozen=True)
class Place:
    """Where the demo's catalog is: a folder, and a server of its kind where there is one."""

    home: Path
    config: Config
    served: Callable[[], AbstractContextManager[None]]  # the server, as long as it is entered
    catalog: Callable[[], Catalog]  # for PyIceberg's writers


def place(directory: Path, kind: str) -> Place:
    """An empty folder with a configuration; an earlier demo's is made anew, anything else is left alone."""
    home = _emptied(directory)
    port = 0 if kind == "sql" else free_port()
    address = f"http://127.0.0.1:{port}"
    uri = {"sql": f"sqlite:///{home}/catalog.db", "rest": address, "nessie": f"{address}/api/v2"}[kind]
    said = _CONFIG.format(home=home, catalog=CATALOG, kind=kind, uri=uri)
    (home / "icewright.yaml").write_text(said, encoding="utf-8")
    config = read_config(home / "icewright.yaml")

    def by_pyiceberg() -> Catalog:
        return load_catalog(CATALOG, **pyiceberg_catalog_properties(config.catalogs[CATALOG]))

    match kind:
        case "rest":
            return Place(home, config, lambda: _rest(config, home, port), by_pyiceberg)
        case "nessie":
            return Place(home, config, lambda: _nessie(home, port), lambda: NessieTables(CATALOG, uri))
        case _:
            return Place(home, config, nullcontext, by_pyiceberg)


def _emptied(directory: Path) -> Path:
    home = directory.expanduser().resolve()
    if home.is_dir() and any(home.iterdir()):
        if not (home / MARK).is_file():
            raise UsageError(f"{home} is not empty and no earlier demo: name another folder with --dir")
        for child in home.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    (home / "warehouse").mkdir(parents=True, exist_ok=True)
    (home / "logs").mkdir()
    (home / MARK).touch()
    return home


@contextmanager
def _rest(config: Config, home: Path, port: int) -> Iterator[None]:
    """Apache's REST server over a SQLite database in the demo's folder."""
    with (
        (home / "logs" / "rest.log").open("wb") as log,
        rest_host(java_of(config), user_cache() / "rest", log) as host,
    ):
        host.serve(home / "catalog.db", f"file://{home}/warehouse", port)
        yield


@contextmanager
def _nessie(home: Path, port: int) -> Iterator[None]:
    """A Nessie server that keeps its commits in memory."""
    with nessie_served(home / "logs", user_cache() / "nessie", port=port):
        yield
