"""Compaction beside writers that commit more often than it does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.adapters.engines.arrow.small_table import SmallTable
from icewright.core.errors import CommitConflict
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench
from tests.integration.beside import beside
from tests.integration.javacore import JavaTable
from tests.integration.tables import create
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


@pytest.mark.cases(32, 33, 75, 144)
@pytest.mark.parametrize("version", [2, 3])
def test_partitions_without_new_positions_are_compacted(
    version: int, bench: Bench, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position deletes before each commit leave one partition to the writer; upserts leave none."""
    name = new_name("stream")
    merging = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "file"}
    quoted = create(bench, name, "id int, part string", "part", merging, version=version)
    java, model = JavaTable.load(bench, name), {0: "a"}
    java.append(java.data({"id": [0], "part": ["a"]}))

    def upsert(ids: Sequence[int], part: str) -> None:
        java = JavaTable.load(bench, name)
        columns = {"id": ids, "part": [part] * len(ids)}
        java.row_delta([java.data(columns)], [java.equality_deletes(columns, ["id"])])
        model.update(dict.fromkeys(ids, part))

    for number in range(1, 16):
        beside_4 = [40] if number == 4 else []  # in one file, which a DELETE of 4 alone cannot drop whole
        upsert([number, *beside_4, *([number - 4] if number > 11 else [])], "abcd"[number % 4])
    commit, commits = IcebergTable.commit, iter(range(100, 200))

    def beside(table: IcebergTable, *groups: Any, **options: Any) -> None:
        if model.pop(4, None):
            bench.sql(f"DELETE FROM {quoted} WHERE id = 4")  # noqa: S608 - quoted
        upsert([next(commits), 1], "b")
        commit(table, *groups, **options)

    monkeypatch.setattr(IcebergTable, "commit", beside)
    before = bench.live(name)
    knobs = {"compact.min_input_files": 2, "compact.hot_partitions": "include"}
    done = bench.run(name, Operation.COMPACT, knobs)
    assert done.state is OperationState.COMMITTED, done
    assert sorted(path.key for path in done.partitions) == ['0 ["b"]', '0 ["c"]', '0 ["d"]'], done
    assert len({path for content, path in before - bench.live(name) if content == 0}) == 12
    assert any("lost a commit to a writer" in note for note in done.notes), done.notes
    found = [(row["id"], row["part"]) for row in bench.sql(f"SELECT id, part FROM {quoted}")]  # noqa: S608 - quoted
    assert sorted(found) == sorted(model.items())


KNOBS = {"compact.min_input_files": 2, "compact.delete_file_threshold": 1, "execute.max_commit_retries": 0}


@dataclass
class Upserts:
    """A table without partitions, its writer by keys, and the rows that it must have."""

    bench: Bench
    name: str
    rows: dict[int, int] = field(default_factory=dict)
    commits: int = 0

    def _java(self) -> JavaTable:
        self.commits += 1
        return JavaTable.load(self.bench, self.name)

    def append(self, *ids: int) -> None:
        """Rows without deletes."""
        java = self._java()
        java.append(java.data({"id": ids, "v": [self.commits] * len(ids)}))
        self.rows |= dict.fromkeys(ids, self.commits)

    def upsert(self, *ids: int) -> None:
        """Rows, and an equality delete of their keys, as a checkpoint of Flink commits them."""
        java = self._java()
        columns = {"id": ids, "v": [self.commits] * len(ids)}
        java.row_delta([java.data(columns)], [java.equality_deletes(columns, ["id"])])
        self.rows |= dict.fromkeys(ids, self.commits)

    def delete(self, *ids: int) -> None:
        """Equality deletes alone."""
        java = self._java()
        java.row_delta(deletes=[java.equality_deletes({"id": ids}, ["id"])])
        for one in ids:
            self.rows.pop(one, None)

    def delete_positions(self, *ids: int) -> None:
        """Position deletes, or vectors on v3, by Spark."""
        self.commits += 1
        listed = ", ".join(map(str, ids))
        self.bench.sql(f"DELETE FROM {self.bench.lake.quoted(self.name)} WHERE id IN ({listed})")  # noqa: S608 - quoted
        for one in ids:
            self.rows.pop(one, None)

    def found(self) -> list[tuple[int, int]]:
        """The rows as Spark reads them, without a cached table."""
        self.bench.sql(f"REFRESH TABLE {self.bench.lake.quoted(self.name)}")
        rows = self.bench.sql(f"SELECT id, v FROM {self.bench.lake.quoted(self.name)}")  # noqa: S608 - quoted
        return sorted((row["id"], row["v"]) for row in rows)


@pytest.fixture
def upserts(bench: Bench, new_name: Callable[[str], str]) -> Callable[[int], Upserts]:
    """Make a table of a format version."""

    def make(version: int) -> Upserts:
        name = new_name("upserts")
        merging = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "file"}
        create(bench, name, "id int, v int", "", merging, version=version)
        return Upserts(bench, name)

    return make


def before_commits(monkeypatch: pytest.MonkeyPatch, *works: Callable[[], object]) -> None:
    """Do each work once, right before one attempt of compaction to commit."""
    left = list(works)
    for table in (IcebergTable, SmallTable):

        def beside(table: Any, *groups: Any, commit: Any = table.commit, **options: Any) -> None:
            if left:
                left.pop(0)()
            commit(table, *groups, **options)

        monkeypatch.setattr(table, "commit", beside)


@pytest.mark.cases(144)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("deletes", [False, True])
def test_upserts_of_the_rewritten_rows(
    version: int, deletes: bool, upserts: Callable[[int], Upserts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction commits beside upserts of the rows that it rewrites, whether the table had deletes before or not."""
    table = upserts(version)
    for first in range(0, 9, 3):
        table.append(first, first + 1, first + 2)
    if deletes:
        table.upsert(0, 20)
    before_commits(monkeypatch, lambda: table.upsert(1, 2, 9), lambda: table.upsert(2, 3, 10))
    before = table.bench.live(table.name)
    done = table.bench.run(table.name, Operation.COMPACT, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert len([path for content, path in before - table.bench.live(table.name) if content == 0]) == 3 + deletes
    assert table.found() == sorted(table.rows.items())
    table.upsert(4, 9)
    assert table.bench.run(table.name, Operation.COMPACT, KNOBS).state is OperationState.COMMITTED
    assert table.found() == sorted(table.rows.items())


@pytest.mark.cases(144)
@pytest.mark.parametrize(("version", "state"), [(2, OperationState.COMMITTED), (3, OperationState.DEFERRED)])
def test_deletes_older_than_all_other_rows(
    version: int, state: OperationState, upserts: Callable[[int], Upserts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equality deletes that came alone, before rows, keep their effect, though Iceberg's own commit would drop them."""
    table = upserts(version)
    for first in range(0, 9, 3):
        table.append(first, first + 1, first + 2)

    def delete() -> None:
        table.delete(1)
        table.append(30)

    before_commits(monkeypatch, delete)
    done = table.bench.run(table.name, Operation.COMPACT, KNOBS)
    assert table.found() == sorted(table.rows.items())
    assert done.state is state


@pytest.mark.cases(144)
@pytest.mark.nightly
@pytest.mark.parametrize("version", [2, 3])
def test_a_stream_of_upserts(version: int, upserts: Callable[[int], Upserts]) -> None:
    """Most of six compactions commit beside a writer that upserts the whole time, and each row is as written last."""
    table = upserts(version)
    for first in range(0, 60, 3):
        table.append(first, first + 1, first + 2)
    stop, written, states = threading.Event(), threading.Semaphore(0), list[OperationState]()

    def stream() -> None:
        for number in count(1):
            table.upsert(number % 60, 100 + number)
            written.release()
            if stop.wait(0.3):
                return

    with beside(stop, stream) as errors:
        for _ in range(6):
            while written.acquire(blocking=False):
                pass  # Commits that the last compaction may have merged.
            assert written.acquire(timeout=60)
            states.append(table.bench.run(table.name, Operation.COMPACT, KNOBS).state)
    assert not errors
    assert states.count(OperationState.COMMITTED) > 3, states
    assert table.found() == sorted(table.rows.items())


@pytest.mark.cases(144)
def test_deletes_that_dangle_and_cannot_go_now(
    upserts: Callable[[int], Upserts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite that is committed stays so when a writer is faster than the removal of its dangling deletes."""
    table = upserts(3)
    table.append(1, 2)
    table.upsert(1, 3)

    def lost(_: IcebergTable) -> None:
        raise CommitConflict("a writer was faster")

    monkeypatch.setattr(IcebergTable, "remove_dangling_deletes", lost)
    done = table.bench.run(table.name, Operation.COMPACT, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert "lost a commit to a writer: a writer was faster" in done.notes
    assert table.found() == sorted(table.rows.items())


@pytest.mark.cases(144)
@pytest.mark.parametrize("seed", [0, 1, *map(nightly, range(2, 40))])
def test_random_writers_at_every_commit(
    seed: int, upserts: Callable[[int], Upserts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes before each attempt to commit, and whatever was there, the rows are those that were written."""
    pick = random.Random(seed)
    table = upserts(2 + seed % 2)
    table.append(*range(10))

    def write(*, by_position: bool) -> None:
        ids = sorted(pick.sample(range(30), pick.randint(1, 4)))
        kinds = [table.upsert, table.delete, lambda *ids: table.append(*(100 * table.commits + one for one in ids))]
        pick.choice([*kinds, table.delete_positions] if by_position else kinds)(*ids)

    for _ in range(2):
        for _ in range(pick.randint(2, 5)):
            write(by_position=True)
        with monkeypatch.context() as patched:
            before_commits(patched, *[lambda: write(by_position=pick.random() < 0.2)] * pick.randint(1, 3))
            done = table.bench.run(table.name, Operation.COMPACT, KNOBS)
        assert done.state in (OperationState.COMMITTED, OperationState.DEFERRED), done
        assert table.found() == sorted(table.rows.items()), done
