"""Equality deletes become deletion vectors or position deletes: the rows stay as Spark reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from icewright.core.errors import CommitStateUnknown
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.table import TableMetadata
from icewright.flow.reconcile import reconcile_interrupted
from icewright.ports import Change
from tests.integration.bench import Bench, paths
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]
MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
KNOBS: Mapping[str, object] = {
    "rewrite_deletes.min_equality_delete_files": 1,
    "rewrite_deletes.min_delete_files": 1000,
    "rewrite_deletes.dangling": False,
}


def rows(bench: Bench, name: str) -> list[tuple[Any, ...]]:
    """All rows as Spark reads them, with their ids where they have them."""
    lineage = ", _row_id, _last_updated_sequence_number" * (bench.metadata(name).format_version > 2)
    statement = f"SELECT *{lineage} FROM {bench.lake.quoted(name)}"  # noqa: S608 - quoted
    return sorted((tuple(row) for row in bench.sql(statement)), key=repr)


def converted(bench: Bench, name: str, knobs: Mapping[str, object] = KNOBS) -> Outcome:
    """Convert by hand: no row changes, no equality delete is left, each data file has one vector at most."""
    read, live = rows(bench, name), bench.live(name)
    result = bench.run(name, Operation.REWRITE_DELETES, knobs, dry_run=True)
    assert bench.live(name) == live
    done = bench.run(name, Operation.REWRITE_DELETES, knobs)
    assert done.state is OperationState.COMMITTED, done
    assert rows(bench, name) == read
    after = bench.live(name)
    assert {path for content, path in after if content == 0} == {path for content, path in live if content == 0}
    gone = paths(path for content, path in live - after if content == 2)
    assert paths(file.path for file in result.files) == paths(file.path for file in done.files) == gone
    assert not [path for content, path in after if content == 2]
    vectors = bench.sql(
        f"SELECT referenced_data_file AS f FROM {bench.lake.quoted(name)}.delete_files "  # noqa: S608 - quoted
        "WHERE file_format = 'PUFFIN'"
    )
    assert len({row["f"] for row in vectors}) == len(vectors)
    assert bench.run(name, Operation.REWRITE_DELETES, knobs).state is OperationState.SKIPPED
    assert sorted(_python_rows(bench, name), key=repr) == sorted((row[:3] for row in read), key=repr)
    return done


def _python_rows(bench: Bench, name: str) -> list[tuple[Any, ...]]:
    """The rows as PyIceberg reads them, which knows no equality deletes."""
    table = bench.lake.catalog.load_table(name).scan().to_arrow()
    return [tuple(row.values())[:3] for row in table.to_pylist()]


COLUMNS = "id int, s string, day date, part string"


def _row(chance: random.Random, part: str | None) -> dict[str, Any]:
    values = chance.choice([None, *range(12)]), chance.choice([None, "", "a", "é", "long " * 8])
    return {
        "id": values[0],
        "s": values[1],
        "day": chance.choice([None, date(1, 1, 1), date(2026, 1, 2)]),
        "part": part,
    }


def _columns(some: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in some] for name in some[0]}


def _random_table(bench: Bench, name: str, version: int, partition: str, seed: int) -> None:
    """Commits of data with deletes by several sets of keys, of positions, and a column and a partition field more."""
    chance = random.Random(seed)
    quoted = create(bench, name, COLUMNS, partition, MERGE_ON_READ, version=version)
    insert(bench, quoted, "(0, 'a', NULL, 'a')")
    for commit in range(9):
        java = JavaTable.load(bench, name)
        data, deletes = [], []
        for part in ("a", "b", None):
            data.append(java.data(_columns([_row(chance, part) for _ in range(chance.randrange(1, 9))])))
            for keys in chance.sample((["id"], ["s"], ["id", "s"], ["day", "id"]), 2):
                deleted = _columns([_row(chance, part) for _ in range(chance.randrange(1, 4))])
                deletes.append(java.equality_deletes(deleted, keys))
        java.row_delta(data, deletes)
        if commit in (3, 6):
            bench.sql(f"DELETE FROM {quoted} WHERE id % 5 = {commit % 5} OR s = 'a'")  # noqa: S608 - quoted
        if commit == 4:
            bench.sql(f"ALTER TABLE {quoted} ADD COLUMN more int AFTER day")
            bench.sql(f"ALTER TABLE {quoted} RENAME COLUMN s TO t")
            bench.sql(f"ALTER TABLE {quoted} RENAME COLUMN t TO s")
            bench.sql(f"ALTER TABLE {quoted} ALTER COLUMN id TYPE bigint")
            bench.sql(f"ALTER TABLE {quoted} DROP COLUMN more")
        if commit == 5:
            bench.sql(f"ALTER TABLE {quoted} {'DROP' if partition else 'ADD'} PARTITION FIELD part")


@pytest.mark.cases(20, 21, 22, 24, 26)
@pytest.mark.parametrize(
    ("version", "partition", "seed"),
    [
        (2, "part", 1),
        (3, "part", 2),
        nightly(3, "", 3),
        nightly(2, "", 4),
        *(nightly(2 + s % 2, "part", s) for s in range(5, 25)),
    ],
)
def test_rows_stay(version: int, partition: str, seed: int, bench: Bench, new_name: Name) -> None:
    """Whatever keys were deleted, beside positions and in evolved tables, the rows are as Spark read them before."""
    name = new_name("converted")
    _random_table(bench, name, version, partition, seed)
    done = converted(bench, name)
    assert done.metrics["rows_marked"] > 0
    assert bench.metadata(name).snapshots[-1].operation == "overwrite"
    java = JavaTable.load(bench, name)
    java.row_delta(
        [java.data({"id": [1], "s": ["a"], "day": [None], "part": ["a"]})],
        [java.equality_deletes({"id": [1, 2, None], "part": ["a"]}, ["id"])],
    )
    converted(bench, name)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Between:
    """The catalog, with work of others right before each commit, until there is no more of it."""

    catalog: Any
    work: list[Callable[[], object]]
    after: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalog, name)

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Commit when the others are done."""
        if self.work:
            self.work.pop(0)()
        after: TableMetadata = self.catalog.commit(base, change)
        self.after()
        return after


def between(bench: Bench, *work: Callable[[], object], after: Callable[[], None] = lambda: None) -> Bench:
    """The bench with others that work right before each commit."""
    engine: Any = bench.runtime.engine
    catalog = Between(engine.catalogs["lake"], list(work), after)
    return replace(bench, runtime=replace(bench.runtime, engine=replace(engine, catalogs={"lake": catalog})))


def _upserts(bench: Bench, name: str, version: int) -> str:
    """A table of two files of three rows, of which three are deleted by keys; its quoted name."""
    quoted = create(bench, name, "id int, s string, day date", "", MERGE_ON_READ, version=version)
    for ids in ([1, 2, 3], [4, 5, 6]):
        java = JavaTable.load(bench, name)
        java.append(java.data({"id": ids, "s": ["a", "b", "c"], "day": [None] * 3}))
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes({"id": [1]}, ["id"]), java.equality_deletes({"s": ["c"]}, ["s"])])
    return quoted


def _old_rewrite(bench: Bench, name: str) -> Callable[[], None]:
    """A rewrite of the first data file by another tool, which began before the equality deletes were there."""
    java = JavaTable.load(bench, name)
    old = min(java.live(), key=lambda live: live.file.dataSequenceNumber()).file
    before, *_ = (s.snapshot_id for s in bench.metadata(name).snapshots)
    ids = [row["id"] for row in bench.sql(f"SELECT id FROM {bench.lake.quoted(name)} VERSION AS OF {before}")]  # noqa: S608
    new = java.data({"id": ids, "s": [" abcabc"[i] for i in ids], "day": [None] * len(ids)})
    sets = java.spark._jvm.java.util.HashSet
    removed, added = sets(), sets()
    removed.add(old)
    added.add(new)

    def commit() -> None:
        rewrite = JavaTable.load(bench, name).table.newRewrite().validateFromSnapshot(before)
        rewrite.rewriteFiles(removed, added, old.dataSequenceNumber()).commit()

    return commit


@pytest.mark.cases(144)
@pytest.mark.parametrize("version", [2, 3])
def test_writers_in_between(version: int, bench: Bench, new_name: Name) -> None:
    """What others commit in between is taken in: upserts, deletes of the same file, rewrites of before the deletes."""
    name = new_name("between")
    quoted = _upserts(bench, name, version)

    def upsert() -> None:
        java = JavaTable.load(bench, name)
        fresh = java.data({"id": [2, 7], "s": ["new", "c"], "day": [None] * 2})
        java.row_delta([fresh], [java.equality_deletes({"id": [2, 7]}, ["id"])])

    rewrite = _old_rewrite(bench, name)
    work = (upsert, lambda: bench.sql(f"DELETE FROM {quoted} WHERE id = 5"), rewrite)  # noqa: S608 - quoted
    append = lambda: insert(bench, quoted, "(10, 'a', NULL)")  # noqa: E731
    done = between(bench, *work, append).run(name, Operation.REWRITE_DELETES, KNOBS)
    assert done.state is OperationState.COMMITTED, done.reason
    assert [row[:2] for row in rows(bench, name)] == [(10, "a"), (2, "new"), (4, "a"), (7, "c")]
    assert len([path for content, path in bench.live(name) if content == 2]) == 1  # of the upsert
    converted(bench, name)


@pytest.mark.cases(144)
@pytest.mark.parametrize("version", [2, 3])
def test_a_rewrite_of_before_the_deletes_that_commits_afterwards(version: int, bench: Bench, new_name: Name) -> None:
    """Another tool that would bring deleted rows back sees the positions, and its commit fails."""
    name = new_name("afterwards")
    _upserts(bench, name, version)
    rewrite = _old_rewrite(bench, name)
    converted(bench, name)
    read = rows(bench, name)
    with pytest.raises(Py4JJavaError, match="found new position delete for replaced data file"):
        rewrite()
    assert rows(bench, name) == read


@pytest.mark.cases(144)
def test_equality_deletes_that_come_again_after_a_rollback(bench: Bench, new_name: Name) -> None:
    """What was planned before a rollback is planned again: the same file of keys may be newer by then."""
    name = new_name("rollback")
    create(bench, name, "id int, s string, day date", "", MERGE_ON_READ, version=2)
    java = JavaTable.load(bench, name)
    java.append(java.data({"id": [1, 2], "s": ["a", "b"], "day": [None] * 2}))
    (first,) = bench.metadata(name).snapshots
    java = JavaTable.load(bench, name)
    deletes, later = java.equality_deletes({"id": [1]}, ["id"]), java.data({"id": [1], "s": ["c"], "day": [None]})
    java.row_delta(deletes=[deletes])

    def roll_back() -> None:
        bench.call("rollback_to_snapshot", name, f"snapshot_id => {first.snapshot_id}")
        JavaTable.load(bench, name).append(later)
        JavaTable.load(bench, name).row_delta(deletes=[deletes])

    done = between(bench, roll_back).run(name, Operation.REWRITE_DELETES, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert [row[:2] for row in rows(bench, name)] == [(2, "b")]
    assert {content for content, _ in bench.live(name)} == {0, 1}


@pytest.mark.cases(60, 61, 63)
def test_a_process_that_dies_at_the_commit(bench: Bench, new_name: Name) -> None:
    """A death right before the commit leaves the table as it was; a lost reply to it is looked up; both end well."""
    name = new_name("dies")
    _upserts(bench, name, 3)
    read, live = rows(bench, name), bench.live(name)

    def die() -> None:
        raise Killed

    def lose_reply() -> None:
        raise CommitStateUnknown("no reply came")

    with pytest.raises(Killed):
        between(bench, die).run(name, Operation.REWRITE_DELETES, KNOBS)
    assert (rows(bench, name), bench.live(name)) == (read, live)
    reconcile_interrupted(bench.runtime)
    done = between(bench, after=lose_reply).run(name, Operation.REWRITE_DELETES, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert rows(bench, name) == read
    assert {content for content, _ in bench.live(name)} == {0, 1}


@pytest.mark.cases(144)
def test_a_writer_that_is_always_faster(bench: Bench, new_name: Name) -> None:
    """A commit that is lost ten times leaves no file behind; what another tool took away is planned again."""
    name = new_name("faster")
    _upserts(bench, name, 3)
    files = bench.files(name)

    def append() -> None:
        java = JavaTable.load(bench, name)
        java.append(java.data({"id": [9], "s": ["a"], "day": [None]}))

    knobs = {**KNOBS, "execute.max_commit_retries": 0}
    lost = between(bench, *[append] * 10).run(name, Operation.REWRITE_DELETES, knobs)
    assert lost.state is OperationState.DEFERRED, lost
    assert not [path for path in bench.files(name) - files if "icewright" in path]
    compaction = lambda: bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true')")  # noqa: E731
    assert between(bench, compaction).run(name, Operation.REWRITE_DELETES, KNOBS).state is OperationState.SKIPPED
    assert not [path for content, path in bench.live(name) if content]


def test_what_cannot_be_converted(bench: Bench, new_name: Name) -> None:
    """Equality deletes that apply to files that are not Parquet, or to rows without ids, stay with the reason."""
    name = new_name("refused")
    quoted = create(bench, name, "id int, s string", "", {"write.format.default": "orc"})
    insert(bench, quoted, "(1, 'a'), (2, 'b')")
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('write.format.default' = 'parquet')")
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes({"id": [1]}, ["id"])])
    live = bench.live(name)
    refused = bench.run(name, Operation.REWRITE_DELETES, KNOBS)
    assert "not all files there are Parquet" in refused.reason
    assert bench.live(name) == live

    name = new_name("idless")
    _upserts(bench, name, 2)
    quoted = bench.lake.quoted(name)
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('format-version' = '3')")
    refused = bench.run(name, Operation.REWRITE_DELETES, KNOBS)
    assert (refused.state, "[equality_deletes_unsupported]" in refused.reason) == (OperationState.SKIPPED, True)
    insert(bench, quoted, "(8, 'a', NULL)")
    converted(bench, name)
