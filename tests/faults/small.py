"""A partitioned table that compaction plans and commits by itself, its tasks run here in the place of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icewright.adapters.clock import SystemClock
from icewright.adapters.engines.arrow.rewriting import ArrowRewrite
from icewright.adapters.engines.arrow.small_table import SmallTable, small_table
from icewright.core.policy import Operation
from icewright.core.steps import Due, RewriteDataFiles, Verdict
from icewright.core.table import TableMetadata, TableRef
from icewright.core.verdicts import evaluate, thresholds
from icewright.testing import knobs
from tests.configuration import CONFIG
from tests.faults.interceptors import Hook, Intercepted, opened

NAME = "sales.orders"
REF = TableRef.parse(f"lake.{NAME}")
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p1"))
QUIET = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}
Rows = Counter[tuple[int, str | None]]


class Here:
    """A Spark session as far as rewriting asks one to run tasks: they run at once, in this process."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        self.sparkContext, self._before = self, before
        self._found: list[Any] = []

    def parallelize(self, work: Iterable[Any], _: int) -> Here:
        """Hold the work."""
        self._found = list(work)
        return self

    def mapPartitions(self, task: Callable[[Iterable[Any]], Iterator[Any]]) -> Here:  # noqa: N802 - as PySpark has it
        """Do it; what a writer does meanwhile is done after it."""
        self._found = list(task(self._found))
        if self._before is not None:
            self._before()
        return self

    def collect(self) -> list[Any]:
        """What came of it."""
        return self._found


@dataclass(frozen=True)
class Small:
    """The table in a lakehouse of its own."""

    home: Path
    runtime: Any
    has_jvm: bool = True

    @property
    def folder(self) -> Path:
        """Where the table lies."""
        return self.home / "warehouse" / "sales" / "orders"

    @property
    def base(self) -> TableMetadata:
        """The metadata as Icewright reads it now."""
        found: TableMetadata = self.runtime.catalogs["lake"].load(REF)
        return found

    def steps(self, base: TableMetadata, **said: Any) -> Sequence[RewriteDataFiles]:
        """What compaction would do."""
        verdict = self._verdict(base, said)
        assert isinstance(verdict, Due), verdict
        return [step for step in verdict.work.steps if isinstance(step, RewriteDataFiles)]

    def due(self, **said: Any) -> bool:
        """Whether there is anything to compact."""
        return isinstance(self._verdict(self.base, said), Due)

    def _verdict(self, base: TableMetadata, said: Mapping[str, Any]) -> Verdict:
        chosen = knobs(**{"compact.min_input_files": 2, "compact.hot_partitions": "include", **said})
        facts = self.runtime.files.facts(base, thresholds(chosen))
        return evaluate(facts, chosen, {}, SystemClock().now()).verdicts[Operation.COMPACT]

    def opened(self, base: TableMetadata, step: RewriteDataFiles, hook: Hook | None = None) -> SmallTable | None:
        """The table, if it is one of those that compaction plans by itself; its ports tapped when there is a hook."""
        files, catalog = self.runtime.files, self.runtime.catalogs["lake"]
        if hook is not None:
            files, catalog = Intercepted("files", files, hook), Intercepted("catalog", catalog, hook)
        return small_table(files, SystemClock(), catalog, base, step, "app-1", dict, has_jvm=self.has_jvm)

    def compact(
        self,
        meanwhile: Callable[[], None] | None = None,
        hook: Hook | None = None,
        steps: Sequence[RewriteDataFiles] = (),
        **said: Any,
    ) -> Mapping[str, int]:
        """Compact it, and count files; `meanwhile` is what a writer does between the first plan and its commit."""
        counts: Counter[str] = Counter()
        for step in steps or self.steps(self.base, **said):
            table = self.opened(self.base, step, hook)
            assert table is not None
            session: Any = Here(meanwhile)
            meanwhile = None
            counts.update(ArrowRewrite(session, table, step, "job-1", lambda: None, lambda _: None).run().row)
        return counts

    def data_files(self) -> set[str]:
        """Every data file below the table's location."""
        return {path.name for path in self.folder.rglob("*.parquet")}

    def files(self) -> set[Path]:
        """Every file below the table's location."""
        return {path for path in self.folder.rglob("*") if path.is_file()}


def rows(ids: Iterable[int]) -> pa.Table:
    """Rows of these ids in regions `a`, `b` and none, by the id."""
    said = list(ids)
    return pa.table(
        {"id": pa.array(said, pa.int64()), "region": pa.array([("a", "b/c", None)[i % 3] for i in said], pa.string())}
    )


def counted(table: pa.Table) -> Rows:
    """Rows without order."""
    return Counter((row["id"], row["region"]) for row in table.to_pylist())


@contextmanager
def table_of(home: Path) -> Iterator[Table]:
    """The table as PyIceberg has it now."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
    try:
        yield catalog.load_table(NAME)
    finally:
        catalog.close()


def read(home: Path) -> Rows:
    """What PyIceberg reads; DuckDB must read the same of the files that are live."""
    with table_of(home) as table:
        found = counted(table.scan().to_arrow())
        paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        deletes = any(task.delete_files for task in table.scan().plan_files())
    if paths and not deletes:
        with duckdb.connect() as connection:
            query = "SELECT id, region FROM read_parquet(?, hive_partitioning => false, union_by_name => true)"
            assert counted(connection.sql(query, params=[paths]).to_arrow_table()) == found
    return found


@contextmanager
def made(home: Path, *appends: Sequence[int], **properties: str) -> Iterator[Small]:
    """A table of so many commits."""
    home.mkdir()
    (home / "warehouse").mkdir()
    (home / "icewright.yaml").write_text(CONFIG.format(home=home), encoding="utf-8")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
    catalog.create_namespace("sales")
    table = catalog.create_table(NAME, SCHEMA, partition_spec=SPEC, properties={**QUIET, **properties})
    for ids in appends:
        table.append(rows(ids))
    catalog.close()
    with opened(home, SystemClock()) as app:
        yield Small(home, app.runtime)
