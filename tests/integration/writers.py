"""What writers do to a table: PyIceberg on format v1 and v2, Spark, and Iceberg's Java core, on a shared catalog.

Each step takes a number by which it chooses among what there is, and says whether it could do anything.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IntegerType, StringType

from icewright.app.demo.files import local, millis
from icewright.core.table import MAIN
from tests.integration.bench import Bench, hours_ago
from tests.integration.javacore import JavaTable

HOUR_MS = 3_600_000
_PARTS = ("a", "b c", "é", None, "x/y=%")


class Writers:
    """A table of columns `id`, `part` and `n` and those of `column`, and its writers."""

    def __init__(self, bench: Bench, name: str, version: int) -> None:
        self.bench, self.name, self.version = bench, name, version
        self.quoted = bench.lake.quoted(name)
        self.number = 0
        self.equality_deletes = False

    @property
    def table(self) -> Table:
        """The table now, by PyIceberg."""
        return self.bench.lake.catalog.load_table(self.name)

    @property
    def java(self) -> JavaTable:
        """The table now, by Iceberg's Java core."""
        return JavaTable.load(self.bench, self.name)

    def columns(self, pick: int) -> dict[str, list[Any]]:
        """Two rows of one partition that no other step writes, as columns of the current schema."""
        self.number += 1
        ids = [self.number * 10, self.number * 10 + 1]
        made: dict[str, list[Any]] = {}
        for field in self.table.schema().fields:
            match field.name, field.field_type:
                case "part", _:
                    made[field.name] = [_PARTS[pick % len(_PARTS)]] * 2
                case "n", _:
                    made[field.name] = [pick % 3] * 2
                case _, StringType():
                    made[field.name] = [f"s{number}" for number in ids]
                case _:
                    made[field.name] = list[Any](ids)
        return made

    def _arrow(self, pick: int) -> pa.Table:
        one, other = self.columns(pick), self.columns(pick + 1)
        both = {name: [*one[name], *other[name]] for name in one}
        return pa.Table.from_pydict(both, schema=self.table.schema().as_arrow())

    def _values(self, pick: int) -> str:
        rows = zip(*self.columns(pick).values(), strict=True)
        return ", ".join(f"({', '.join('NULL' if v is None else repr(v) for v in row)})" for row in rows)

    def append(self, pick: int, branch: str = MAIN) -> bool:
        """Rows by PyIceberg where it can write the format, else by Java."""
        if self.version < 3:
            self.table.append(self._arrow(pick), branch=branch)
        else:
            java = self.java
            java.append(java.data(self.columns(pick)), branch, fast=pick % 4 > 0)
        return True

    def insert(self, pick: int, branch: str = MAIN) -> bool:
        """Rows by Spark."""
        into = self.quoted if branch == MAIN else f"{self.quoted}.`branch_{branch}`"
        self.bench.sql(f"INSERT INTO {into} VALUES {self._values(pick)}")  # noqa: S608 - quoted
        return True

    def overwrite(self, pick: int) -> bool:
        """One partition by PyIceberg, or everything by Spark."""
        if self.version < 3 and not self.equality_deletes:
            self.table.overwrite(self._arrow(pick), "part = 'a'")
        else:
            self.bench.sql(f"INSERT OVERWRITE {self.quoted} VALUES {self._values(pick)}")  # noqa: S608 - quoted
        return True

    def delete_rows(self, pick: int) -> bool:
        """Copy-on-write by PyIceberg, which knows no equality deletes and writes no v3."""
        if self.version == 3 or self.equality_deletes:
            return False
        self.table.delete(f"id < {(pick + 1) * self.number // 12}")
        return True

    def delete_file(self, pick: int) -> bool:
        """A whole file, by Java."""
        java = self.java
        if found := java.live():
            java.table.newDelete().deleteFile(found[pick % len(found)].file).commit()
        return bool(found)

    def readd(self, pick: int) -> bool:
        """A file goes and comes back, in a later commit or in the same one."""
        java = self.java
        found = [live.file for live in java.live() if not live.deleted]
        if not found:
            return False
        file = found[pick % len(found)]
        if pick % 2:
            java.table.newOverwrite().deleteFile(file).addFile(file).commit()
        else:
            java.table.newDelete().deleteFile(file).commit()
            java.append(file)
        return True

    def merge_on_read(self, pick: int) -> bool:
        """Position deletes or deletion vectors by Spark; on v1 copy-on-write."""
        self.bench.sql(f"DELETE FROM {self.quoted} WHERE id % 5 = {pick % 5}")  # noqa: S608 - quoted
        return True

    def equality(self, pick: int) -> bool:
        """An upsert as Flink writes it: rows, and an equality delete of older ones with the same keys."""
        if self.version == 1:
            return False
        java, columns = self.java, self.columns(pick)
        older = [self.number * 10 - 10, self.number * 10 - 20]
        keys = java.equality_deletes({**columns, "id": older}, ["id"])
        java.row_delta([java.data(columns)], [keys], self._some_branch(pick) if pick % 3 == 0 else MAIN)
        self.equality_deletes = True
        return True

    def vectors(self, pick: int) -> bool:
        """Deletion vectors of up to three data files in one Puffin file, by Java."""
        if self.version < 3:
            return False
        java = self.java
        found = [live for live in java.live() if not live.deleted][: 1 + pick % 3]
        if found:
            java.row_delta(deletes=java.vectors({live: [pick % live.rows] for live in found}))
        return bool(found)

    def tag(self, pick: int) -> bool:
        """A tag of any snapshot, with or without an age of its own; by PyIceberg where it can."""
        name, age = self._ref_name("tag"), (None, None, 5, 30)[pick % 4]
        if self.version < 3:
            with self.table.manage_snapshots() as manage:
                manage.create_tag(self._any_snapshot(pick), name, age and age * HOUR_MS)
        else:
            update = self.java.table.manageSnapshots().createTag(name, self._any_snapshot(pick))
            (update if age is None else update.setMaxRefAgeMs(name, age * HOUR_MS)).commit()
        return True

    def branch(self, pick: int) -> bool:
        """A branch from any snapshot, with any retention, by Java."""
        name = self._ref_name("branch")
        update = self.java.table.manageSnapshots().createBranch(name, self._any_snapshot(pick))
        if count := (None, 1, 3, 5)[pick % 4]:
            update.setMinSnapshotsToKeep(name, count)
        if age := (None, 12, 40)[pick % 3]:
            update.setMaxSnapshotAgeMs(name, age * HOUR_MS)
        if age := (None, None, 30)[pick // 7 % 3]:
            update.setMaxRefAgeMs(name, age * HOUR_MS)
        update.commit()
        return True

    def branch_write(self, pick: int) -> bool:
        """Rows on a branch."""
        branch = self._some_branch(pick)
        return branch != MAIN and (self.insert if pick % 4 == 0 else self.append)(pick, branch)

    def drop_ref(self, pick: int) -> bool:
        """A tag or branch is removed; its snapshots stay."""
        refs = sorted(name for name in self.table.metadata.refs if name != MAIN)
        if refs:
            name = refs[pick % len(refs)]
            manage = self.java.table.manageSnapshots()
            (manage.removeTag if name.startswith("tag") else manage.removeBranch)(name).commit()
        return bool(refs)

    def rollback(self, pick: int) -> bool:
        """Back to an ancestor of main, by PyIceberg where it can."""
        older = self._ancestors()[1:]
        if not older:
            return False
        chosen = older[min(pick % 4, len(older) - 1)]
        if self.version < 3:
            with self.table.manage_snapshots() as manage:
                manage.rollback_to_snapshot(chosen)
        else:
            self.java.table.manageSnapshots().rollbackTo(chosen).commit()
        return True

    def switch(self, pick: int) -> bool:
        """Main becomes any snapshot, as when a branch is published."""
        self.java.table.manageSnapshots().setCurrentSnapshot(self._any_snapshot(pick)).commit()
        return True

    def stage(self, pick: int) -> bool:
        """An append that waits for its publication, by Spark or Java."""
        conf, wap = self.bench.lake.spark().conf, f"wap{self.number}"
        if self.version > 1 and pick % 4:
            java = self.java
            file = java.data(self.columns(pick))
            java.table.newAppend().appendFile(file).set("wap.id", wap).stageOnly().commit()
            return True
        conf.set("spark.wap.id", wap)
        try:
            return self.insert(pick)
        finally:
            conf.unset("spark.wap.id")

    def cherrypick(self, pick: int) -> bool:
        """Publish something staged."""
        said = {s.snapshot_id: s.summary for s in self.table.metadata.snapshots if s.summary}
        published = {about.get("published-wap-id") for about in said.values()}
        gone = {*self._ancestors()}
        staged = [i for i, about in said.items() if i not in gone and about.get("wap.id") not in {None, *published}]
        if staged:
            self.java.table.manageSnapshots().cherrypick(staged[pick % len(staged)]).commit()
        return bool(staged)

    def forget(self, pick: int) -> bool:
        """An expiry that crashed after its commit: parents are gone, their files are orphans."""
        before = len(self.table.metadata.snapshots)
        (late,) = (millis(at) for at in hours_ago(-1))
        update = self.java.table.expireSnapshots().retainLast(2 + pick % 4).expireOlderThan(late)
        update.cleanExpiredFiles(False).commit()
        return len(self.table.metadata.snapshots) < before

    def column(self, pick: int) -> bool:
        """A column comes, goes, gets another name or a wider type, by Java."""
        java, schema = self.java, self.table.schema()
        types, update = java.java.types.Types, java.table.updateSchema()
        extra = [field.name for field in schema.fields if field.name[0] == "c"]
        match pick % 4:
            case 0 if extra:
                update.deleteColumn(extra[0])
            case 1 if extra:
                update.renameColumn(extra[-1], self._ref_name("c"))
            case 2 if isinstance(schema.find_field("id").field_type, IntegerType):
                update.updateColumn("id", types.LongType.get())
            case _:
                kind = types.IntegerType if pick % 8 < 4 else types.StringType
                update.addColumn(self._ref_name("c"), kind.get())
        update.commit()
        return True

    def spec(self, pick: int) -> bool:
        """A partition field comes or goes, by Java; on v1 one goes once, as a void one keeps its name."""
        source, specs = ("part", "n")[pick % 2], self.table.specs().values()
        if any(isinstance(field.transform, VoidTransform) for spec in specs for field in spec.fields):
            return False
        update = self.java.table.updateSpec()
        known = any(field.name == source for field in self.table.spec().fields)
        (update.removeField if known else update.addField)(source).commit()
        return True

    def upgrade(self, _: int) -> bool:
        """The next format version."""
        if self.version == 3:
            return False
        self.version += 1
        update = self.java.table.updateProperties().set("format-version", str(self.version))
        update.set("write.delete.mode", "merge-on-read").commit()
        return True

    def compact(self, pick: int) -> bool:
        """All files anew, by Spark."""
        options = "'rewrite-all', 'true', 'remove-dangling-deletes', 'true'" if pick % 2 else "'rewrite-all', 'true'"
        self.bench.call("rewrite_data_files", self.name, f"options => map({options})")
        return True

    def merge_deletes(self, _: int) -> bool:
        """All position deletes anew, by Spark."""
        if self.version > 1:
            self.bench.call("rewrite_position_delete_files", self.name, "options => map('rewrite-all', 'true')")
        return self.version > 1

    def spark_manifests(self, _: int) -> bool:
        """Manifests rewritten by Spark."""
        self.bench.call("rewrite_manifests", self.name, "use_caching => false")
        return True

    def statistics(self, pick: int) -> bool:
        """A statistics file of one snapshot or of several, new or there already, by Java."""
        java, table = self.java, self.table
        known = [one.statistics_path for one in table.metadata.statistics]
        path = known[0] if known and pick % 4 == 0 else f"{table.metadata.location}/metadata/{pick}-{self.number}.stats"
        local(path).write_bytes(b"a Puffin file would stand here")
        nothing, update = java.spark._jvm.java.util.ArrayList(), java.table.updateStatistics()
        for snapshot in {self._any_snapshot(pick), *self._ancestors()[: pick % 5]}:
            update.setStatistics(java.java.GenericStatisticsFile(snapshot, path, 30, 10, nothing))
        update.commit()
        return True

    def computed(self, pick: int) -> bool:
        """Statistics and partition statistics by Spark."""
        partitioned = any(not isinstance(f.transform, VoidTransform) for f in self.table.spec().fields)
        self.bench.call("compute_table_stats" if pick % 2 or not partitioned else "compute_partition_stats", self.name)
        return True

    def _ancestors(self) -> list[int]:
        table = self.table
        return [s.snapshot_id for s in ancestors_of(table.current_snapshot(), table.metadata)]

    def _any_snapshot(self, pick: int) -> int:
        snapshots = self.table.metadata.snapshots
        return snapshots[pick * 7 % len(snapshots)].snapshot_id

    def _some_branch(self, pick: int) -> str:
        branches = sorted(name for name in self.table.metadata.refs if name.startswith("branch"))
        return branches[pick % len(branches)] if branches else MAIN

    def _ref_name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"
