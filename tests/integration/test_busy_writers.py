"""Compaction beside writers that commit more often than it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create

pytestmark = pytest.mark.spark


@pytest.mark.cases(32, 33, 75)
@pytest.mark.parametrize("version", [2, 3])
def test_partitions_that_no_writer_touched_are_compacted(
    version: int, bench: Bench, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes in one partition and upserts in another before each commit leave the two others to compaction."""
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
        upsert([number, number - 4] if number > 11 else [number], "abcd"[number % 4])
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
    assert sorted(path.key for path in done.partitions) == ['0 ["c"]', '0 ["d"]'], done
    assert len({path for content, path in before - bench.live(name) if content == 0}) == 8
    assert any("lost a commit to a writer" in note for note in done.notes), done.notes
    found = [(row["id"], row["part"]) for row in bench.sql(f"SELECT id, part FROM {quoted}")]  # noqa: S608 - quoted
    assert sorted(found) == sorted(model.items())
