"""Branches besides main on real tables: compacted where a policy asks, main and its snapshots as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.core.branches import on_branch
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import NotDue
from icewright.core.table import TableMetadata
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

KNOBS = {"compact.min_input_files": 2, "compact.delete_file_threshold": 1, "compact.branches": "b*"}


def _rows(bench: Bench, quoted: str, branch: str) -> list[tuple[int, int]]:
    found = bench.sql(f"SELECT id, v FROM {quoted} VERSION AS OF '{branch}'")  # noqa: S608 - quoted
    return sorted((row["id"], row["v"]) for row in found)


def _heads(metadata: TableMetadata) -> dict[str, int]:
    return {ref.name: ref.snapshot_id for ref in metadata.refs}


@pytest.mark.cases(143)
@pytest.mark.parametrize(("version", "engine"), [(2, "auto"), nightly(2, "spark"), (3, "auto"), nightly(3, "spark")])
def test_a_branch_is_compacted_beside_its_writers(
    version: int, engine: str, bench: Bench, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files and deletes go in one commit to it, beside upserts of its own; no other ref moves; then it rests."""
    name = new_name("branches")
    merging = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "file"}
    quoted = create(bench, name, "id int, v int", "", merging, version=version)
    bench.sql(f"INSERT INTO {quoted} SELECT CAST(id AS int), 0 FROM range(0, 6, 1, 1)")  # noqa: S608 - quoted
    for branch in ("b1", "other"):
        bench.sql(f"ALTER TABLE {quoted} CREATE BRANCH {branch}")
        insert(bench, quoted, "(10, 1)", "(11, 1)", "(12, 1)", branch=branch)
        bench.sql(f"DELETE FROM {quoted}.branch_{branch} WHERE id IN (1, 10)")  # noqa: S608 - quoted
    expected = {10: None, 1: None, 0: 0, 2: 0, 3: 0, 4: 0, 5: 0, 11: 1, 12: 1}
    before, commit = bench.metadata(name), IcebergTable.commit
    written: list[int] = []

    def beside(table: IcebergTable, *groups: Any, **options: Any) -> None:
        if not written:
            java = JavaTable.load(bench, name)
            columns = {"id": [2, 20], "v": [7, 7]}
            java.row_delta([java.data(columns)], [java.equality_deletes(columns, ["id"])], "b1")
            written.extend(columns["id"])
        commit(table, *groups, **options)

    monkeypatch.setattr(IcebergTable, "commit", beside)
    knobs = {**KNOBS, "compact.engine": engine}
    result = bench.run(name, Operation.COMPACT, knobs, dry_run=True)
    assert len([f for f in result.files if f.kind == "data"]) == 4
    done = bench.run(name, Operation.COMPACT, knobs)
    assert done.state is OperationState.COMMITTED, done
    assert [change.branch for change in done.partitions] == ["b1"]
    expected |= dict.fromkeys(written, 7)
    after = bench.metadata(name)
    assert {**_heads(after), "b1": None} == {**_heads(before), "b1": None}
    assert _rows(bench, quoted, "b1") == sorted((k, v) for k, v in expected.items() if v is not None)
    assert _rows(bench, quoted, "main") == [(n, 0) for n in range(6)]
    files = bench.runtime.files.facts(on_branch(after, "b1"), bench.evaluate(name, knobs).facts.thresholds)
    assert files.data_files == (2 if written else 1)
    assert not [p for p in files.partitions if p.position_delete_files or p.deletion_vectors]
    again = bench.run(name, Operation.COMPACT, knobs)  # what the upsert deleted of the outputs
    assert again.state is (OperationState.COMMITTED if written else OperationState.SKIPPED), again
    assert _rows(bench, quoted, "b1") == sorted((k, v) for k, v in expected.items() if v is not None)
    verdict = bench.evaluate(name, knobs).verdicts[Operation.COMPACT]
    assert isinstance(verdict, NotDue), verdict
    assert [note for note in verdict.notes if "branch other has 4 data files" in note], verdict


@pytest.mark.cases(143)
def test_a_branch_that_is_dropped_or_moved_meanwhile(
    bench: Bench, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit goes to the branch that was planned on, or to none: a fast-forward or a drop is a conflict."""
    name = new_name("moved")
    quoted = create(bench, name, "id int, v int")
    insert(bench, quoted, "(1, 0)")
    commit, works = IcebergTable.commit, [f"ALTER TABLE {quoted} DROP BRANCH b1", None]

    def beside(table: IcebergTable, *groups: Any, **options: Any) -> None:
        if (work := works[0]) is not None:
            bench.sql(work)
            works[0] = None
        commit(table, *groups, **options)

    monkeypatch.setattr(IcebergTable, "commit", beside)
    for work in (works[0], f"ALTER TABLE {quoted} REPLACE BRANCH b1"):
        bench.sql(f"ALTER TABLE {quoted} CREATE OR REPLACE BRANCH b1")
        insert(bench, quoted, "(2, 0)", "(3, 0)", branch="b1")
        works[0] = work
        head = bench.metadata(name).current_snapshot_id
        done = bench.run(name, Operation.COMPACT, {**KNOBS, "execute.max_commit_retries": 0})
        assert done.state in (OperationState.DEFERRED, OperationState.FAILED, OperationState.SKIPPED), done
        after = bench.metadata(name)
        assert after.current_snapshot_id == head
        assert _heads(after).get("b1") in (None, head)
