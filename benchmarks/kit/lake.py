"""A SQLite catalog and its warehouse in one folder, and tables in it that are put back after each run."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.kit.layouts import Layout
from icewright.adapters.catalogs.translate import SqlCatalogProperties, sql_catalog

CATALOG = "lake"
NAMESPACE = "bench"
_S3 = "s3.json"


@dataclass(frozen=True)
class Lake:
    """Everything of one benchmark, under `home`."""

    home: Path
    database: str = ""  # URL of the catalog's; blank: a SQLite file under `home`

    @property
    def warehouse(self) -> Path:
        """Where tables lie."""
        return self.home / "objects" / "lake" / "warehouse" if self._s3 else self.home / "warehouse"

    @property
    def properties(self) -> Mapping[str, str]:
        """The catalog as Icewright's configuration names it."""
        warehouse = "s3://lake/warehouse" if self._s3 else f"file://{self.warehouse}"
        uri = self.database or f"sqlite:///{self.home}/catalog.db"
        return {"uri": uri, "warehouse": warehouse, **self._s3}

    @property
    def _s3(self) -> Mapping[str, str]:
        """The properties of the S3 server whose objects are the files below `objects`; none: files are files."""
        said = self.home / _S3
        found: dict[str, str] = json.loads(said.read_bytes()) if said.is_file() else {}
        return found

    def serve(self, s3: Mapping[str, str]) -> None:
        """Let the tables lie on an S3 server, whoever else opens the lake too."""
        (self.home / _S3).write_text(json.dumps(dict(s3)), encoding="utf-8")

    def location(self, table: str) -> str:
        """What the table's metadata calls its place."""
        return f"{self.properties['warehouse']}/{NAMESPACE}/{table}"

    def laid(self, layout: Layout) -> Layout:
        """How the table's files are named."""
        return replace(layout, scheme="s3:/", root=str(self.home / "objects")) if self._s3 else layout

    @property
    def catalog(self) -> SqlCatalogProperties:
        """The catalog for Spark and PyIceberg."""
        return sql_catalog(CATALOG, self.properties)

    def folder(self, table: str) -> Path:
        """Where a table lies."""
        return self.warehouse / NAMESPACE / table

    def create(self) -> None:
        """Make the catalog's database and its one namespace."""
        self.warehouse.mkdir(parents=True, exist_ok=True)
        with closing(self._opened()) as catalog:
            catalog.create_namespace(NAMESPACE)

    def register(self, table: str, metadata: str) -> None:
        """Let the catalog know a table by its metadata file, which PyIceberg reads and checks."""
        with closing(self._opened()) as catalog:
            catalog.register_table((NAMESPACE, table), metadata)

    def add(self, table: str, metadata: str) -> None:
        """The same without a look at the file."""
        with self._written() as database:
            names = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
            row = (CATALOG, NAMESPACE, table, metadata, "TABLE")
            database.execute(f"insert into iceberg_tables ({names}) values (?, ?, ?, ?, ?)", row)  # noqa: S608

    def point(self, table: str, metadata: str, previous: str | None = None) -> None:
        """Let the catalog name another metadata file."""
        with self._written() as database:
            database.execute(
                "update iceberg_tables set metadata_location = ?, previous_metadata_location = ? where table_name = ?",
                (metadata, previous, table),
            )

    def forget(self, table: str) -> None:
        """Let the catalog know a table no more; its files stay."""
        with self._written() as database:
            database.execute("delete from iceberg_tables where table_name = ?", (table,))

    def pointer(self, table: str) -> tuple[str, str | None]:
        """The metadata file that the catalog names, and the one before it."""
        with closing(sqlite3.connect(self.home / "catalog.db", timeout=60)) as database:
            query = "select metadata_location, previous_metadata_location from iceberg_tables where table_name = ?"
            metadata, previous = database.execute(query, (table,)).fetchone()
        return metadata, previous

    def metadata(self, table: str) -> Mapping[str, Any]:
        """The current metadata file, read without anybody's help."""
        uri = self.pointer(table)[0]
        path = self.home / "objects" / uri.removeprefix("s3://") if self._s3 else local(uri)
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    def save(self, table: str) -> Saved:
        """Put a copy of the table aside, file by file a hard link: no writer changes a file in place."""
        copy = self.home / "saved" / table
        copy.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-al", self.folder(table), copy], check=True)  # noqa: S607
        return Saved(self, table, copy, self.pointer(table), files(copy))

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.home / "catalog.db", timeout=60)) as database, database:
            database.execute("pragma synchronous = off")  # a benchmark's catalog need not outlive the machine
            yield database

    def _opened(self) -> SqlCatalog:
        return SqlCatalog(CATALOG, **self.catalog.pyiceberg_properties())


@dataclass(frozen=True)
class Saved:
    """A copy of a table."""

    lake: Lake
    table: str
    copy: Path
    pointer: tuple[str, str | None]
    files: frozenset[str]

    def gone(self) -> frozenset[str]:
        """The files that the table has lost since."""
        return self.files - files(self.lake.folder(self.table))

    def restore(self) -> None:
        """Make the table what it was."""
        folder = self.lake.folder(self.table)
        now = files(folder)
        for name in now - self.files:
            (folder / name).unlink()
        for name in self.files - now:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(self.copy / name, folder / name)
        self.lake.point(self.table, *self.pointer)


def files(folder: Path) -> frozenset[str]:
    """The files below a folder, by their path inside it."""
    found, start = [], len(str(folder)) + 1
    for place, _, names in os.walk(folder):
        inside = place[start:] + "/" if len(place) > start else ""
        found += [inside + name for name in names]
    return frozenset(found)


def local(uri: str) -> Path:
    """The path of what PyIceberg calls `file:///x` and Spark `file:/x`."""
    return Path("/" + uri.removeprefix("file:").lstrip("/"))
