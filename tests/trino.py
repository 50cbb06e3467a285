"""Trino 476 in a JVM of its own over a SQLite catalog, for tests: its archive is fetched once and kept (821 MB).

It needs Java 24 or newer: that of TRINO_JAVA, else one that the machine's packages installed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.engines.spark.java import java_version
from tests.rest import CACHE
from tests.servers.fetching import fetched, opened_archive
from tests.servers.jvm import LIGHT
from tests.servers.loopback import free_port, process
from tests.servers.rest_jars import JARS

_ARCHIVE = (
    "io/trino/trino-server/476/trino-server-476.tar.gz",
    "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f",
)
_SQLITE = next(jar for jar in JARS if "sqlite" in jar[0])
_OLDEST_JAVA = 24
_JAVA_OPTIONS = (
    *("-Xmx900m", *LIGHT, "-Dfile.encoding=UTF-8"),
    *("--sun-misc-unsafe-memory-access=allow", "--add-modules=jdk.incubator.vector"),
)


@dataclass(frozen=True)
class Trino:
    """The server, whose catalog `lake` is the SQLite database."""

    address: str

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises `ValueError` with what Trino refused."""
        headers = {"X-Trino-User": "tests", "X-Trino-Catalog": "lake"}
        request: Any = urllib.request.Request(f"{self.address}/v1/statement", statement.encode(), headers)  # noqa: S310
        rows: list[tuple[Any, ...]] = []
        while request is not None:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
                page = json.load(answer)
            if "error" in page:
                raise ValueError(page["error"]["message"])
            rows += [tuple(row) for row in page.get("data", ())]
            request = page.get("nextUri")
        return rows


@contextmanager
def trino(database: Path, warehouse: Path, folder: Path) -> Iterator[Trino]:
    """Start the server for as long as the block lasts; the tables of the catalog have to be there already."""
    java, home, port = _java(), _home(), free_port()
    (folder / "catalog").mkdir(parents=True)
    address = f"http://127.0.0.1:{port}"
    settings = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "discovery.uri": address,
        "query.max-memory-per-node": "200MB",
    }
    catalog = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.driver-class": "org.sqlite.JDBC",
        "iceberg.jdbc-catalog.connection-url": f"jdbc:sqlite:{database}?busy_timeout=60000",
        "iceberg.jdbc-catalog.catalog-name": "lake",
        "iceberg.jdbc-catalog.schema-version": "V1",
        "iceberg.jdbc-catalog.default-warehouse-dir": f"file://{warehouse}",
        "fs.hadoop.enabled": "true",
    }
    for file, values in (("config.properties", settings), ("catalog/lake.properties", catalog)):
        (folder / file).write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    said = {
        "config": folder / "config.properties",
        "catalog.config-dir": folder / "catalog",
        "plugin.dir": home / "plugin",
        "node.data-dir": folder / "data",
        "node.environment": "tests",
        "node.id": "tests",
    }
    options = (*_JAVA_OPTIONS, *(f"-D{name}={value}" for name, value in said.items()))
    command = [str(java / "bin" / "java"), "-cp", f"{home}/lib/*", *options, "io.trino.server.TrinoServer"]
    with process(command, port, "/v1/info", folder / "trino.log"):
        server = Trino(address)
        _wait_for(server)
        yield server


def _wait_for(server: Trino) -> None:
    """Return when the server takes statements: it answers before that, and refuses them."""
    for _ in range(120):
        try:
            server.rows("SELECT node_id FROM system.runtime.nodes")  # which a node reads
        except (ValueError, OSError):
            time.sleep(1)
        else:
            return
    raise AssertionError(server)


def _java() -> Path:
    """Return a Java home that is new enough; without one the test is skipped."""
    homes = [Path(home) for home in (os.environ.get("TRINO_JAVA"),) if home] or sorted(Path("/usr/lib/jvm").glob("*"))
    for home in homes:
        if (java_version(home) or 0) >= _OLDEST_JAVA:
            return home
    pytest.skip("Trino needs Java 24: TRINO_JAVA names none")


def _home() -> Path:
    """Return the server's folder, with its Iceberg connector alone: of the archive that is a tenth."""
    home = CACHE / "trino" / "476"
    if home.is_dir():
        return home
    archive = fetched(CACHE / "trino", *_ARCHIVE)
    fresh = home.with_name(f"fresh-{os.getpid()}")
    with opened_archive(archive) as content:
        members = {member.name.partition("/")[2]: member for member in content.getmembers()}
    needed = {name: m for name, m in members.items() if name.startswith(("lib/", "plugin/iceberg/"))}
    links = {m.linkname for m in needed.values() if m.islnk()}  # a jar is stored in the first plugin that has it
    with opened_archive(archive) as content:
        for member in content:
            if member.name.partition("/")[2] in needed or member.name in links:
                content.extract(member, fresh)
    (unpacked,) = fresh.iterdir()
    for plugin in (unpacked / "plugin").iterdir():
        if plugin.name != "iceberg":
            shutil.rmtree(plugin)
    shutil.copy(fetched(CACHE / "rest", *_SQLITE), unpacked / "plugin" / "iceberg")
    unpacked.rename(home)
    fresh.rmdir()
    return home
