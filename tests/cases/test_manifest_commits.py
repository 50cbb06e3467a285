"""Manifests rewritten in the service: every entry is kept with its numbers, and no writer is overrun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.core.errors import CommitConflict, Refused
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due, RewriteManifests
from icewright.core.table import ManifestContent, TableMetadata
from icewright.flow.evaluate import evaluate_table
from icewright.ports import Change, StepRequest
from tests.cases.workspace import BY_PART, EXPIRE, KNOBS_OF, MANIFESTS, NAME, Workspace, ref


def entries(workspace: Workspace) -> dict[str, tuple[Any, ...]]:
    """What PyIceberg reads of each live entry: content, numbers and all that is said of the file."""
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found: dict[str, tuple[Any, ...]] = {}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            assert entry.data_file.file_path not in found
            found[entry.data_file.file_path] = (manifest.content, *_said(entry))
    return found


def _said(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.data_file
    metrics = (file.column_sizes, file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds)
    about = (file.content, file.partition, file.record_count, file.file_size_in_bytes, file.sort_order_id)
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
    return (*numbers, *about, *metrics, file.split_offsets, file.equality_ids)


@pytest.mark.cases(34, 48, 49, "T13", "T14")
def test_numbers_that_equality_deletes_count_by(workspace: Workspace) -> None:
    """Merged, appended to and merged again: each entry keeps the sequence number by which deletes find it."""
    craft = workspace.craft()
    at = [workspace.clock.now() - timedelta(hours=h) for h in (500, 400, 300, 200)]
    for number, when in enumerate(at):
        deletes = [craft.equality_deletes({"id": [number]})] if number % 2 else []
        craft.commit(when, [craft.data({"id": [number], "part": ["x"]})], deletes=deletes)
    workspace.publish(craft)
    before = entries(workspace)
    assert sorted((said[0], said[2]) for said in before.values()) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 4)]
    assert workspace.run(MANIFESTS).state is OperationState.COMMITTED
    assert entries(workspace) == before
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    table.append(pa.table({"id": [9], "part": ["y"]}))
    later = entries(workspace)
    assert {said[2] for path, said in later.items() if path not in before} == {6}
    assert workspace.run(MANIFESTS).state is OperationState.COMMITTED
    assert entries(workspace) == later
    assert all(str(s.manifest_list).startswith("file:///") for s in workspace.metadata().snapshots)


def _append(workspace: Workspace) -> None:
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    table.append(table.scan().to_arrow().slice(0, 1))


def _delete(workspace: Workspace) -> None:
    workspace.icebergs["lake"].load_table(("sales", "orders")).delete("part = 'p0'")


def _tag(workspace: Workspace) -> None:
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "late").commit()


def _drop(workspace: Workspace) -> None:
    workspace.unregister(NAME)


def _replace(workspace: Workspace) -> None:
    workspace.unregister(NAME)
    workspace.table(salt="another", hours=(50, 40))


def _rename(workspace: Workspace) -> None:
    workspace.icebergs["lake"].rename_table(("sales", "orders"), ("sales", "renamed"))


OTHERS: dict[str, Callable[[Workspace], None]] = {
    f.__name__.strip("_"): f for f in (_append, _delete, _tag, _drop, _replace, _rename)
}


@pytest.mark.cases(6, 75, 82, 84, "T1")
@pytest.mark.parametrize(
    ("other", "operation"),
    [
        *((other, MANIFESTS) for other in ("append", "delete", "replace")),
        *((other, EXPIRE) for other in ("tag", "drop", "rename")),
    ],
)
def test_a_plan_that_the_table_has_left_behind(workspace: Workspace, other: str, operation: Operation) -> None:
    """Whoever appends, deletes, tags, drops, replaces or renames after the plan: no commit of ours, no file lost."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    workspace.detect()
    runtime = workspace.runtime(KNOBS_OF[operation])
    evaluation = evaluate_table(runtime, ref(NAME), workspace.clock.now())
    verdict, base = evaluation.verdicts[operation], evaluation.facts.metadata
    assert isinstance(verdict, Due)
    job_id = runtime.store.jobs.claim(base.ref, base.table_uuid, (operation,), runtime.trigger, workspace.clock.now())
    assert job_id is not None
    OTHERS[other](workspace)
    files = workspace.files()
    with pytest.raises((CommitConflict, Refused)):  # under its new name the table reads the same files
        runtime.engine.run(StepRequest(job_id, operation, verdict.work.steps[0], base))
    assert workspace.files() == files


@pytest.mark.cases(42)
def test_specs_stay_apart(workspace: Workspace) -> None:
    """Files of two specs: each manifest that is written holds files of one, and every row is found by its partition."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    with table.update_spec() as update:
        update.remove_field("part")
    for _ in range(2):
        table.append(table.scan().to_arrow().slice(0, 2))
    rows, before = workspace.read()["main"], entries(workspace)
    assert workspace.run(MANIFESTS).state is OperationState.COMMITTED
    assert (workspace.read()["main"], entries(workspace)) == (rows, before)
    current = workspace.metadata().current_snapshot
    assert current is not None
    assert sorted(m.spec_id for m in workspace.app.runtime.files.manifests(current)) == [0, 1]
    fresh = workspace.icebergs["lake"].load_table(("sales", "orders"))
    for number in range(3):
        expected = sum(f"'p{number}'" in row for row in rows)
        assert fresh.scan(row_filter=f"part = 'p{number}'").to_arrow().num_rows == expected > 0


@pytest.mark.cases(42)
def test_manifests_without_a_live_file(workspace: Workspace) -> None:
    """Manifests of a spec whose entries are all deleted are merged into none."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    workspace.icebergs["lake"].load_table(("sales", "orders")).delete("id >= 0")
    base = workspace.metadata()
    step = RewriteManifests(
        chosen=((0, ManifestContent.DATA),), target_bytes=8 << 20, by_spark=False, use_caching=False
    )
    outcome = workspace.app.runtime.engine.run(StepRequest("job", MANIFESTS, step, base))
    assert (outcome.state, outcome.metrics["manifests_written"]) == (OperationState.COMMITTED, 0)
    current = workspace.metadata().current_snapshot
    assert current is not None
    assert workspace.app.runtime.files.manifests(current) == ()
    assert workspace.read()["main"] == []


@pytest.mark.cases(84)
def test_counts_and_files_before_are_those_after(workspace: Workspace) -> None:
    """The old snapshots and their manifests stay, totals are equal, and orphan removal finds nothing to take."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200, 100], replacing=False)
    folder = workspace.publish(craft)
    files, read, before = workspace.files(), workspace.read(), workspace.metadata()
    assert workspace.run(MANIFESTS).summary == "rewrote 4 manifests into 1 (4 entries)"
    after = workspace.metadata()
    assert files <= workspace.files()
    assert read.items() <= workspace.read().items()
    old, new = before.current_snapshot, after.current_snapshot
    assert old is not None
    assert new is not None
    totals = {k: v for k, v in old.summary.items() if k.startswith("total-")}
    assert totals
    assert totals.items() <= new.summary.items()
    assert (new.operation, new.parent_id) == ("replace", old.snapshot_id)
    workspace.grow_old(folder)
    workspace.finds([])


def test_an_unexpected_error_after_the_commit_deletes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours or of a library says nothing about the commit, so the new manifests stay: they may be in use."""
    craft = workspace.craft()
    workspace.commits(craft, [40, 30, 20, 10], replacing=False)
    workspace.publish(craft)
    before = entries(workspace)
    real = SqlCatalog.commit

    def commit(catalog: SqlCatalog, base: TableMetadata, change: Change) -> TableMetadata:
        real(catalog, base, change)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(SqlCatalog, "commit", commit)
    done = workspace.run(MANIFESTS)
    assert (done.state, "out of memory" in " ".join(done.notes)) == (OperationState.COMMITTED, True), done
    assert entries(workspace) == before


def test_a_commit_that_did_more_than_it_was_asked_for_is_told(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a catalog answers is compared with what was planned; the new manifests stay, as they may be in use."""
    craft = workspace.craft()
    workspace.commits(craft, [40, 30, 20, 10], replacing=False)
    workspace.publish(craft)
    before, real = entries(workspace), SqlCatalog.commit

    def commit(catalog: SqlCatalog, base: TableMetadata, change: Change) -> TableMetadata:
        return replace(real(catalog, base, change), table_uuid="another")

    monkeypatch.setattr(SqlCatalog, "commit", commit)
    assert "replacing manifests broke the table" in workspace.run(MANIFESTS).reason
    assert entries(workspace) == before
