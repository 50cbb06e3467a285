"""What integration tests do with a table: run Icewright or Spark on it, save and restore it, look at its files."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icewright.app.bootstrap import Application
from icewright.app.demo.lake import Lake
from icewright.core.paths import key, local_path
from icewright.core.policy import KNOBS, Operation
from icewright.core.predicates import quoted
from icewright.core.runs import Outcome
from icewright.core.table import TableMetadata, TableRef
from icewright.core.verdicts import Evaluation
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_table
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime

if TYPE_CHECKING:
    from pyspark.sql import Row

# of the session's catalog, with a state store and a cache under `home`
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{catalog}", warehouse: "{warehouse}"}}
cache: {{folder: "{home}/cache"}}
"""
Reading = Mapping[str, tuple[int, Any]]  # rows and checksum by snapshot id, tag or branch


@dataclass(frozen=True)
class Saved:
    """A byte copy of a table's folder and its row in the catalog; hard links, as no writer changes a file in place."""

    folder: Path
    copy: Path
    catalog: Path
    key: tuple[str, str]
    row: tuple[str, str | None]

    def restore(self) -> None:
        """Make the table what it was, file by file."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder, copy_function=os.link)
        with sqlite3.connect(self.catalog) as connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
                "WHERE table_namespace = ? AND table_name = ?",
                (*self.row, *self.key),
            )
        connection.close()


@dataclass(frozen=True)
class Bench:
    """Icewright's world over the session's catalog and Spark, with a state store of its own."""

    lake: Lake
    app: Application
    runtime: Runtime
    catalog: Path
    scratch: Path

    def ref(self, name: str) -> TableRef:
        """The full name of `namespace.table`."""
        *namespace, table = name.split(".")
        return TableRef("lake", tuple(namespace), table)

    def metadata(self, name: str) -> TableMetadata:
        """The table as the catalog has it."""
        return self.runtime.catalogs["lake"].load(self.ref(name))

    def folder(self, name: str) -> Path:
        """Where the table lies, as its metadata says."""
        location = local_path(self.metadata(name).location)
        assert location
        return Path(location)

    def with_knobs(self, knobs: Mapping[str, Any]) -> Runtime:
        """The world as `--set` makes it."""
        unknown = knobs.keys() - KNOBS.keys()
        assert not unknown, unknown
        policy = replace(self.runtime.policy(), command=dict(knobs))
        return replace(self.runtime, policy=lambda: policy)

    def run(
        self, name: str, operation: Operation, knobs: Mapping[str, Any], *, dry_run: bool = False, manual: bool = True
    ) -> Outcome:
        """One operation by hand, or by itself, with these knobs."""
        request = Request(self.ref(name), (operation,), manual=manual, dry_run=dry_run)
        runtime = self.with_knobs(knobs)
        detect(runtime, ["lake"])  # a table that the store does not know cannot be claimed
        result = execute(runtime, request)
        assert len(result.outcomes) == 1, result
        return result.outcomes[0]

    def evaluate(self, name: str, knobs: Mapping[str, Any]) -> Evaluation:
        """All verdicts on the table now, by what its history says too."""
        return evaluate_table(self.with_knobs(knobs), self.ref(name), datetime.now(UTC))

    def sql(self, statement: str) -> list[Row]:
        """Run a statement on Spark; `{}` takes no part, so braces are as they are."""
        return self.lake.spark().sql(statement).collect()

    def call(self, procedure: str, name: str, arguments: str = "") -> list[Row]:
        """One of Iceberg's procedures, as Spark runs it."""
        table = self.lake.quoted(name).replace("'", "\\'")
        return self.sql(f"CALL lake.system.{procedure}(table => '{table}'{', ' * bool(arguments)}{arguments})")

    def save(self, name: str) -> Saved:
        """Put a copy of the table aside."""
        *namespace, table = name.split(".")
        row_key = (".".join(namespace), table)
        folder = self.folder(name)
        copy = self.scratch / f"saved-{len(list(self.scratch.iterdir()))}"
        shutil.copytree(folder, copy, copy_function=os.link)
        with sqlite3.connect(self.catalog) as connection:
            row = connection.execute(
                "SELECT metadata_location, previous_metadata_location FROM iceberg_tables "
                "WHERE table_namespace = ? AND table_name = ?",
                row_key,
            ).fetchone()
        connection.close()
        return Saved(folder, copy, self.catalog, row_key, row)

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """What happens to the table inside the block is undone at its end."""
        saved = self.save(name)
        try:
            yield
        finally:
            saved.restore()

    def files(self, name: str) -> frozenset[str]:
        """The files below the table's location, without Hadoop's checksums."""
        return frozenset(str(p) for p in self.folder(name).rglob("*") if p.is_file() and not p.name.endswith(".crc"))

    def versions(self, name: str) -> list[str]:
        """Every snapshot id, tag and branch."""
        metadata = self.metadata(name)
        return [str(s.snapshot_id) for s in metadata.snapshots] + [r.name for r in metadata.refs]

    def read(self, name: str, versions: Iterable[str] = ("main",)) -> Reading:
        """What Spark reads of each version: the number of rows and a sum over every value of each."""
        table = self.lake.quoted(name)
        parts = []
        for version in versions:
            at = version if version.isdecimal() else f"'{version}'"
            parts.append(
                f"SELECT '{version}' AS v, count(*) AS n, sum(CAST(xxhash64(to_json(struct(*), "  # noqa: S608 - quoted
                f"map('ignoreNullFields', 'false'))) AS decimal(38, 0))) AS s FROM {table} VERSION AS OF {at}"
            )
        return {row["v"]: (row["n"], row["s"]) for row in self.sql(" UNION ALL ".join(parts))}

    def live(self, name: str) -> frozenset[tuple[int, str]]:
        """Content (0 data, 1 position deletes, 2 equality deletes) and path of the live files."""
        rows = self.sql(f"SELECT content, file_path FROM {self.lake.quoted(name)}.files")  # noqa: S608
        return frozenset((row["content"], row["file_path"]) for row in rows)


def spark_time(moment: datetime) -> str:
    """A time as an argument of a procedure."""
    return f"timestamp'{moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')}'"


def paths(found: Iterable[str]) -> frozenset[str]:
    """Paths in one spelling: Spark's `file:/x`, PyIceberg's `file:///x` and the file system's `/x` are one."""
    return frozenset(key(path) for path in found)


def snapshot_ids(metadata: TableMetadata) -> frozenset[int]:
    """The ids of the snapshots that are left."""
    return frozenset(s.snapshot_id for s in metadata.snapshots)


def hours_ago(*hours: float) -> list[datetime]:
    """Times as `backdate` takes them."""
    now = datetime.now(UTC)
    return [now - timedelta(hours=h) for h in hours]


def make_old(folder: Path, days: float = 10, *, only: Sequence[str] = ()) -> None:
    """Let the files below a folder, or those of these names, look as if last written days ago."""
    at = (datetime.now(UTC) - timedelta(days=days)).timestamp()
    for path in folder.rglob("*"):
        if path.is_file() and (not only or path.name in only):
            os.utime(path, (at, at))


def columns(names: Iterable[str]) -> str:
    """A list of quoted names."""
    return ", ".join(quoted(name) for name in names)
