"""Thousands of small tables, made after one: each has a metadata file of its own, and another after one more commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from benchmarks.kit.lake import CATALOG, Lake, local
from benchmarks.kit.tables import Seed

NAMESPACES = 20
COMMITS = 30
_PATTERN = "pattern"
ROWS = sa.table(
    "iceberg_tables",
    *(sa.column(f"{name}") for name in ("catalog_name", "table_namespace", "table_name", "metadata_location")),
    sa.column("previous_metadata_location"),
)


def table_names(count: int) -> Sequence[tuple[str, str]]:
    """Namespaces and names of so many tables."""
    return [(f"s{number % NAMESPACES:02d}", f"t{number:05d}") for number in range(count)]


@dataclass(frozen=True)
class Fleet:
    """So many tables in the catalog of a lake, some of which change; their snapshots are those of the pattern."""

    lake: Lake
    count: int
    changing: Sequence[int] = ()

    @cached_property
    def names(self) -> Sequence[tuple[str, str]]:
        """Namespace and name of each."""
        return table_names(self.count)

    def create(self, layout: str) -> None:
        """Write all metadata files, and let the catalog know the tables as they were before their newest commit."""
        for space, _ in self.names[:NAMESPACES]:
            (self.lake.warehouse / space / "metadata").mkdir(parents=True)
        seed = Seed(self.lake, _PATTERN, layout)
        for commit, (commits, numbers) in enumerate(((COMMITS, range(self.count)), (1, self.changing))):
            for _ in range(commits):
                seed.commit([seed.file()])
            uri = f'"location":"file://{self.lake.folder(_PATTERN)}"'
            before, between, after = re.split(f"{uri}|{seed.uuid}", local(seed.publish()).read_text(encoding="utf-8"))
            for number in numbers:
                own = f'"location":"file://{self._folder(number)}"'
                text = f"{before}{UUID(int=number + 1)}{between}{own}{after}"
                Path(self._file(number, commit)).write_text(text, encoding="utf-8")
        columns = ("catalog_name", "table_namespace", "table_name", "metadata_location")
        rows = [
            dict(zip(columns, (CATALOG, *name, f"file://{self._file(number, 0)}"), strict=True))
            for number, name in enumerate(self.names)
        ]
        with self.engine.begin() as connection:
            connection.execute(sa.delete(ROWS))
            connection.execute(sa.insert(ROWS), rows)

    def move(self, commit: int) -> None:
        """Let the changing tables be as before (0) or after (1) their newest commit."""
        mine = (ROWS.c.table_namespace == sa.bindparam("space")) & (ROWS.c.table_name == sa.bindparam("table"))
        rows = [
            {"space": self.names[n][0], "table": self.names[n][1], "file": f"file://{self._file(n, commit)}"}
            for n in self.changing
        ]
        with self.engine.begin() as connection:
            connection.execute(sa.update(ROWS).where(mine).values(metadata_location=sa.bindparam("file")), rows)

    @cached_property
    def engine(self) -> sa.Engine:
        """The catalog's database."""
        return sa.create_engine(self.lake.catalog.url)

    def _folder(self, number: int) -> Path:
        space, name = self.names[number]
        return self.lake.warehouse / space / name

    def _file(self, number: int, commit: int) -> str:
        """One folder for all of a namespace: as many folders as tables would take longer than what is measured."""
        folder = self.lake.warehouse / self.names[number][0] / "metadata"
        return f"{folder}/{COMMITS + commit:05d}-{UUID(int=number + 1)}.metadata.json"
