"""Statistics on real files: what is written, who commits meanwhile, what expiry, orphan removal and check do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icewright.app.demo.files import WrittenFile
from icewright.core.errors import AccessDenied, CommitStateUnknown
from icewright.core.integrity import CheckLevel
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.table import ManifestContent, RefKind, SnapshotRef
from icewright.ports import RemoveSnapshots, SetRefs
from tests.cases.tampering import tamper_manifest
from tests.cases.workspace import BY_PART, EXPIRE, NAME, Workspace, edit, ref

STATISTICS = Operation.COMPUTE_STATISTICS
COMMITTED = OperationState.COMMITTED


def files_of(workspace: Workspace) -> set[Path]:
    """The statistics files that the metadata names."""
    found = workspace.metadata()
    return {Path(str(local_path(file.path))) for file in (*found.statistics, *found.partition_statistics)}


def faults(workspace: Workspace) -> list[str]:
    """What is at fault, in the check's words for files."""
    report = workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS)
    return [fault.file for fault in report.faults]


def numbers(workspace: Workspace) -> dict[int, int]:
    """The distinct values by column of the current snapshot, as PyIceberg reads the metadata."""
    table = workspace.icebergs["lake"].load_table(NAME).metadata
    (file,) = [file for file in table.statistics if file.snapshot_id == table.current_snapshot_id]
    return {blob.fields[0]: int((blob.properties or {})["ndv"]) for blob in file.blob_metadata}


def overtaken(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, first: Callable[[Any, Any], object]) -> None:
    """Let somebody else commit right before the first commit."""
    kind, once = type(workspace.app.runtime.catalogs["lake"]), [first]
    commit = kind.commit

    def committed(this: Any, base: Any, change: Any) -> Any:
        if once:
            once.pop()(commit, this)
        return commit(this, base, change)

    monkeypatch.setattr(kind, "commit", committed)


def test_a_dry_run_says_what_the_run_does(workspace: Workspace) -> None:
    """The run writes two files that PyIceberg and Parquet readers understand, and nothing else; then it is not due."""
    workspace.table(hours=(9, 3.5, 0.5), spec=BY_PART)
    files, rows = workspace.files(), workspace.read()
    planned = workspace.run(STATISTICS, dry_run=True)
    assert workspace.files() == files
    done = workspace.run(STATISTICS)
    assert done.state is COMMITTED, done
    assert planned.summary == done.summary.replace("counted", "would count", 1)
    assert {Path(p) for p in workspace.files() - files} == files_of(workspace) | {workspace.metadata_file()}
    assert (workspace.read(), numbers(workspace)) == (rows, {1: 1, 2: 1})
    path = next(path for path in files_of(workspace) if path.suffix == ".parquet")
    live = [row for row in pq.read_table(path).to_pylist() if row["data_file_count"]]
    assert [(row["partition"], row["data_record_count"]) for row in live] == [({"part": "p2"}, 1)]
    assert workspace.run(STATISTICS).state is OperationState.SKIPPED
    assert (done.metrics["columns_counted"], done.metrics["files_read"], done.metrics["rows_read"]) == (2, 1, 1)


def test_who_commits_meanwhile_keeps_what_he_did(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag set just before the commit stays, and the statistics come on top of it, without a second reading."""
    workspace.table(hours=(9, 3.5))
    base = workspace.metadata()
    tag = SnapshotRef("theirs", RefKind.TAG, base.snapshots[0].snapshot_id)
    overtaken(workspace, monkeypatch, lambda commit, this: commit(this, base, SetRefs((tag,))))
    done = workspace.run(STATISTICS)
    assert (done.state, done.metrics["files_read"]) == (COMMITTED, 1)
    assert tag in workspace.metadata().refs
    assert len(files_of(workspace)) == 1


def test_a_snapshot_that_goes_meanwhile(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a writer rolls back and drops the snapshot, its statistics go too, and those of the one before are made."""
    workspace.table(hours=(9, 3.5))
    base = workspace.metadata()
    first, second = (s.snapshot_id for s in base.snapshots)

    def roll_back(commit: Any, this: Any) -> None:
        back = commit(this, base, SetRefs((SnapshotRef("main", RefKind.BRANCH, first),)))
        commit(this, back, RemoveSnapshots(frozenset({second}), frozenset()))

    overtaken(workspace, monkeypatch, roll_back)
    assert workspace.run(STATISTICS).state is COMMITTED
    assert [file.snapshot_id for file in workspace.metadata().statistics] == [first]
    assert {path for path in workspace.files() if path.suffix == ".stats"} == files_of(workspace)


def test_a_lost_reply(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose reply was lost counts when the table shows it; its files stay."""
    workspace.table(hours=(9, 3.5))
    kind = type(workspace.app.runtime.catalogs["lake"])
    commit = kind.commit

    def lost(this: Any, base: Any, change: Any) -> Any:
        commit(this, base, change)
        raise CommitStateUnknown("the reply was lost")

    monkeypatch.setattr(kind, "commit", lost)
    done = workspace.run(STATISTICS)
    assert done.state is COMMITTED, done
    assert len(files_of(workspace)) == 1
    assert all(path.is_file() for path in files_of(workspace))


@pytest.mark.parametrize(("error", "left"), [(AccessDenied("no"), 0), (RuntimeError("a bug"), 1)])
def test_a_failed_commit(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception, left: int) -> None:
    """What was written goes when the commit was refused, and stays while nobody knows whether it landed."""
    workspace.table(hours=(9, 3.5))
    files = workspace.files()

    def failing(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(type(workspace.app.runtime.catalogs["lake"]), "commit", failing)
    done = workspace.run(STATISTICS)
    assert done.state in (OperationState.FAILED, OperationState.DEFERRED), done
    assert len(workspace.files() - files) == left


def test_expiry_and_orphan_removal_know_them(workspace: Workspace) -> None:
    """Statistics go with their snapshot, and those that are named are no orphans however old they look."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (400, 300))
    folder = workspace.publish(craft)
    assert workspace.run(STATISTICS).state is COMMITTED
    workspace.grow_old(folder)
    old = files_of(workspace)
    workspace.finds(())
    assert faults(workspace) == []
    base = workspace.metadata()
    first, second = (s.snapshot_id for s in base.snapshots)
    catalog = workspace.app.runtime.catalogs["lake"]
    catalog.commit(base, SetRefs((SnapshotRef("main", RefKind.BRANCH, first),)))
    assert workspace.run(STATISTICS).state is COMMITTED
    assert len(files_of(workspace)) == 4
    catalog.commit(workspace.metadata(), SetRefs((SnapshotRef("main", RefKind.BRANCH, second),)))
    done = workspace.run(EXPIRE)
    assert (done.state, done.metrics["snapshots_expired"]) == (COMMITTED, 1), done
    assert files_of(workspace) == old
    assert all(path.is_file() for path in old)
    assert {path for path in workspace.files() if path.suffix == ".stats" or "partition-stats" in path.name} == old


def test_a_broken_file_is_not_gone_on_from(workspace: Workspace) -> None:
    """A statistics file that was cut is a fault to the check, and the next statistics read all rows."""
    craft = workspace.craft()
    workspace.commits(craft, (9, 3.5, 0.5), replacing=False)
    workspace.publish(craft)
    assert workspace.run(STATISTICS).metrics["files_read"] == 3
    (path,) = files_of(workspace)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert faults(workspace) == ["statistics"]
    edit(workspace.metadata_file(), _forget_the_newest)
    done = workspace.run(STATISTICS)
    assert (done.state, done.metrics["files_read"]) == (COMMITTED, 3)


def _forget_the_newest(document: dict[str, Any]) -> None:
    """Let the statistics be those of the snapshot before the current one."""
    document["statistics"][0]["snapshot-id"] = document["snapshots"][-2]["snapshot-id"]


@pytest.mark.parametrize("wrong", ["", "type", "summary", "operation"])
def test_when_new_files_are_enough(workspace: Workspace, wrong: str) -> None:
    """Only appended files are read; all are where a column had another type, or a snapshot is not what it should be."""
    craft = workspace.craft()
    workspace.commits(craft, (9, 3.5, 0.5), replacing=False)
    workspace.publish(craft)
    assert workspace.run(STATISTICS).metrics["files_read"] == 3
    (path,) = files_of(workspace)
    if wrong == "type":
        path.write_bytes(path.read_bytes().replace(b'"icewright.type": "long"', b'"icewright.type": "date"'))

    def change(document: dict[str, Any]) -> None:
        _forget_the_newest(document)
        if wrong == "summary":
            document["snapshots"][-1]["summary"]["added-data-files"] = "2"
        if wrong == "operation":
            document["snapshots"][-1]["summary"]["operation"] = "overwrite"

    edit(workspace.metadata_file(), change)
    done: Outcome = workspace.run(STATISTICS)
    assert done.metrics["files_read"] == (3 if wrong else 1), json.dumps(dict(done.metrics))
    assert numbers(workspace) == {1: 3, 2: 3}


@pytest.mark.parametrize("alike", [True, False])
def test_deletes_whose_partitions_cannot_be_compared(workspace: Workspace, *, alike: bool) -> None:
    """Deleted rows do not count; where manifests of deletes encode partitions otherwise than those of data, none do."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (9,))
    keys = craft.data({"id": [0], "part": ["p0"]}, part="p0")
    keys = WrittenFile(keys.path, {**keys.record, "content": 2, "equality_ids": [1]})
    craft.commit(workspace.clock.now(), [craft.data({"id": [7], "part": ["p0"]}, part="p0")], deletes=[keys])
    workspace.publish(craft)
    base = workspace.metadata()
    listed = workspace.app.runtime.files.manifests(base.by_id[base.snapshots[-1].snapshot_id])
    (path,) = (Path(str(local_path(m.path))) for m in listed if m.content is ManifestContent.DELETES)
    if not alike:
        tamper_manifest(path.parent, path, schema=_without_null)
    done = workspace.run(STATISTICS)
    if alike:
        assert (done.state, numbers(workspace)) == (COMMITTED, {1: 1, 2: 1})
    else:
        assert "manifests of spec 0 store partition values differently" in done.reason, done


def _without_null(schema: dict[str, Any]) -> None:
    """Let partition values be texts that are never null."""
    data_file = next(field["type"] for field in schema["fields"] if field["name"] == "data_file")
    partition = next(field["type"] for field in data_file["fields"] if field["name"] == "partition")
    partition["fields"] = [{"name": "part", "type": "string", "field-id": 1000}]
