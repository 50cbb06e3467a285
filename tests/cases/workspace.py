"""Two catalogs over one folder, tables written straight to disk, and Icewright over both: no Spark, a still clock."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icewright.app.bootstrap import Application
from icewright.app.config import Config
from icewright.app.demo.craft import Craft, CraftedManifest
from icewright.app.demo.lake import Lake
from icewright.core.paths import key, local_path
from icewright.core.policy import KNOBS, Operation
from icewright.core.runs import JobState, OperationState, Outcome
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.testing import FixedClock

EXPIRE, ORPHANS, MANIFESTS = Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS, Operation.REWRITE_MANIFESTS
KNOBS_OF: Mapping[Operation, Mapping[str, object]] = {
    EXPIRE: {
        "expire_snapshots.retention_hours": 24,
        "expire_snapshots.min_snapshots_to_keep": 1,
        "deletion.delay_hours": 0,
    },
    ORPHANS: {"remove_orphans.mode": "delete", "deletion.delay_hours": 0},
    MANIFESTS: {"rewrite_manifests.min_manifests": 2},
    Operation.RECOVERY_POINTS: {},
    Operation.CHECK: {},
    Operation.EXPIRE_ROWS: {"expire_rows.column": "at", "expire_rows.days": 30},
    Operation.COMPUTE_STATISTICS: {"compute_statistics.min_change": 0},
}
NAME = "sales.orders"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
CONFIG = """\
state: sqlite:///state.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/lake.db", warehouse: "file://{home}/warehouse"}}
    allowed_locations: ["file://{home}"]
  pond:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/pond.db", warehouse: "file://{home}/pond"}}
    allowed_locations: ["file://{home}"]
cache: {{folder: "{home}/cache"}}
"""


@dataclass(frozen=True)
class Ground:
    """What houses are built on: their folder, configuration and catalogs, and the state store that they begin with."""

    home: Path
    config: Config
    icebergs: Mapping[str, SqlCatalog]
    store: Path


@dataclass
class Workspace:
    """A folder with two catalogs `lake` and `pond`, and Icewright open over them."""

    home: Path
    clock: FixedClock
    app: Application
    seed: int
    icebergs: Mapping[str, SqlCatalog]

    def lake(self, catalog: str = "lake", place: str = "warehouse") -> Lake:
        """Where tables are made: their folder is `place/namespace/table`, their entry in the catalog of that name."""
        return Lake(self.icebergs[catalog], no_spark, self.home / place, self.clock.now(), self.seed)

    def craft(
        self,
        name: str = NAME,
        *,
        catalog: str = "lake",
        place: str = "warehouse",
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        schema: Schema = SCHEMA,
        salt: str = "",
        **properties: str,
    ) -> Craft:
        """The history of a new table, still to be written; `_` in the names of properties stands for a dot."""
        lake = self.lake(catalog, place)
        lake.identifier(name)
        said = {f.replace("__", "-").replace("_", "."): v for f, v in properties.items()}
        return Craft(lake, name, schema, spec, said, salt)

    def table(self, name: str = NAME, hours: Sequence[float] = (400, 300, 200, 100), **how: Any) -> Path:
        """Make a table of a commit for each age in hours, the file of each taking the place of the one before."""
        craft = self.craft(name, **how)
        self.commits(craft, hours)
        return self.publish(craft)

    def commits(self, craft: Craft, hours: Iterable[float], *, replacing: bool = True) -> list[CraftedManifest]:
        """One commit of one file for each age in hours."""
        made: list[CraftedManifest] = []
        for number, ago in enumerate(hours):
            partition = {"part": f"p{number}"} if craft.spec.fields else {}
            file = craft.data({"id": [number], "part": [f"p{number}"]}, **partition)
            old = made[-1] if made and replacing else None
            made.append(craft.commit(self.clock.now() - timedelta(hours=ago), [file], replaced=old))
        return made

    def publish(self, craft: Craft, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
        """Write and register the table, its metadata changed as a writer of another kind would have left it."""
        path = craft.publish(register=False)
        if change is not None:
            edit(path, change)
        self.register(craft.name, f"file://{path}", craft.lake.catalog.name)
        self.grow_old(craft.folder)
        return craft.folder

    def register(self, name: str, location: str, catalog: str = "lake") -> None:
        """Register a metadata file as any client may, in whatever spelling."""
        namespace, _, table = name.rpartition(".")
        columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
        statement = f"INSERT INTO iceberg_tables ({columns}) VALUES (?, ?, ?, ?, 'TABLE')"  # noqa: S608 - a constant
        quickly(self.home / f"{catalog}.db", statement, catalog, namespace, table, location)

    def unregister(self, name: str, catalog: str = "lake") -> None:
        """Drop a table from its catalog; its files stay, or are gone already."""
        namespace, _, table = name.rpartition(".")
        statement = "DELETE FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
        quickly(self.home / f"{catalog}.db", statement, namespace, table)

    def metadata_file(self, name: str = NAME, catalog: str = "lake") -> Path:
        """The current metadata file."""
        path = local_path(self.metadata(name, catalog).metadata_location)
        assert path is not None
        return Path(path)

    def metadata(self, name: str = NAME, catalog: str = "lake") -> TableMetadata:
        """The table as the catalog has it."""
        return self.app.runtime.catalogs[catalog].load(ref(name, catalog))

    def runtime(self, knobs: Mapping[str, object] | None = None) -> Runtime:
        """Icewright's world as `--set` makes it."""
        said = dict(knobs or {})
        assert said.keys() <= KNOBS.keys(), said.keys() - KNOBS.keys()
        policy = replace(self.app.runtime.policy(), command=said)
        return replace(self.app.runtime, policy=lambda: policy)

    def detect(self) -> None:
        """Let the store know every table: one that it does not know cannot be claimed."""
        detect(self.app.runtime, list(self.icebergs))

    def job(
        self, *operations: Operation, name: str = NAME, catalog: str = "lake", dry_run: bool = False, **knobs: object
    ) -> JobResult:
        """One job by hand under the knobs of `KNOBS_OF` and these, whose names stand with `__` for the dot."""
        said = {k: v for operation in operations for k, v in KNOBS_OF[operation].items()}
        runtime = self.runtime(said | {k.replace("__", "."): v for k, v in knobs.items()})
        if not dry_run:
            self.detect()
        return execute(runtime, Request(ref(name, catalog), operations, manual=True, dry_run=dry_run))

    def run(self, operation: Operation, **how: Any) -> Outcome:
        """One operation by hand."""
        (outcome,) = self.job(operation, **how).outcomes
        return outcome

    def refused(self, operation: Operation, *words: str, **how: Any) -> None:
        """The operation is skipped as refused, for a reason that holds the words, and every file stays."""
        files = self.files()
        result = self.run(operation, dry_run=True, **how)
        done = self.run(operation, **how) if result.state is OperationState.COMMITTED else result
        assert done.state is OperationState.SKIPPED, done  # had it run, the files would be gone by now
        assert done.reason.startswith("refused: "), done
        assert all(word in done.reason for word in words), done.reason
        assert self.files() == files

    def faulty(self, operation: Operation, name: str, value: str) -> None:
        """A table property of this value is a fault that stops the table; no job is started and every file stays."""
        edit(self.metadata_file(), lambda document: document["properties"].update({name: value}))
        files = self.files()
        job = self.job(operation)
        assert (job.state, job.job_id, job.outcomes) == (JobState.FAILED, None, ()), (value, job)
        assert name in job.reason
        assert self.files() == files

    def finds(self, expected: Iterable[Path], **how: Any) -> Outcome:
        """Orphan removal would remove exactly these files."""
        result = self.run(ORPHANS, dry_run=True, **how)
        assert result.state is OperationState.COMMITTED, result
        assert {key(f.path) for f in result.files} == {key(str(p)) for p in expected}
        return result

    def removes(self, expected: Iterable[Path], **how: Any) -> Outcome:
        """Of all files of the house exactly these go as orphans."""
        before, gone = self.files(), frozenset(expected)
        done = self.run(ORPHANS, **how)
        assert done.state is OperationState.COMMITTED, done
        assert before - self.files() == gone, done
        assert {key(f.path) for f in done.files} == {key(str(p)) for p in gone}
        return done

    def files(self, folder: Path | None = None) -> frozenset[Path]:
        """Every file of the house that belongs to tables, or of a folder."""
        found: list[Path] = []
        for place in [folder] if folder else [p for p in self.home.iterdir() if p.is_dir() and p.name != "cache"]:
            for above, _, names in os.walk(place):
                found += [Path(above, name) for name in names]
        return frozenset(found)

    def grow_old(self, folder: Path, days: float = 30) -> None:
        """Let all files of a folder look as if last written days ago."""
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.age(path, days)

    def age(self, path: Path, days: float) -> Path:
        """Let a file look as if last written days ago, by Icewright's clock."""
        at = (self.clock.now() - timedelta(days=days)).timestamp()
        os.utime(path, (at, at))
        return path

    def plant(self, folder: Path, *relative: str, content: bytes = b"x", days: float = 30) -> set[Path]:
        """Leave files as failed writes would have."""
        made = {folder / one for one in relative}
        for path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self.age(path, days)
        return made

    def read(self, name: str = NAME, catalog: str = "lake") -> dict[str, list[Any]]:
        """The rows that PyIceberg reads of each snapshot, tag and branch."""
        table = self.icebergs[catalog].load_table(tuple(name.split(".")))
        found = {str(s.snapshot_id): table.scan(snapshot_id=s.snapshot_id) for s in table.metadata.snapshots}
        found |= {name: table.scan(snapshot_id=held.snapshot_id) for name, held in table.metadata.refs.items()}
        return {version: sorted(map(str, scan.to_arrow().to_pylist())) for version, scan in found.items()}


def quickly(database: Path, statement: str, *values: str) -> None:
    """Run one statement, without waiting for the disk."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(statement, values)
        connection.commit()


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a metadata file in place, as if its writer had written it so."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def ref(name: str, catalog: str = "lake") -> TableRef:
    """The full name of `namespace.table`."""
    *namespace, table = name.split(".")
    return TableRef(catalog, tuple(namespace), table)


def no_spark() -> NoReturn:
    """Spark is not wanted here."""
    raise AssertionError
