"""Snapshot expiry on real files: what goes, what stays, and what each kept snapshot reads afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from icewright.adapters.store import database
from icewright.app.demo.craft import Craft
from icewright.core.errors import Refused
from icewright.core.paths import local_path
from icewright.core.runs import JobState, OperationState
from icewright.core.steps import ExpireSnapshots
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.ports import StepRequest
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, Workspace, edit, ref

COMMITTED, SKIPPED, FAILED = OperationState.COMMITTED, OperationState.SKIPPED, OperationState.FAILED


def ids(craft: Craft) -> list[int]:
    """The snapshots in the order of their commits."""
    return [s["snapshot-id"] for s in craft.snapshots]


@pytest.mark.cases(1, 2, 3, 4, 7, 19)
def test_refs_keep_what_they_need_and_read_it(workspace: Workspace) -> None:
    """By count, by age and by tag; refs past their age go; each version that is left reads what it read before."""
    craft = workspace.craft()
    workspace.commits(craft, [900, 800, 700, 600, 500, 400, 300, 10, 5])
    made, day = ids(craft), 86_400_000
    craft.refs |= {
        "tag": {"snapshot-id": made[0], "type": "tag"},
        "outlived": {"snapshot-id": made[1], "type": "tag", "max-ref-age-ms": day},
        "gone": {"snapshot-id": made[1], "type": "branch", "max-ref-age-ms": day},
        "counts": {"snapshot-id": made[3], "type": "branch", "min-snapshots-to-keep": 2},
        "ages": {"snapshot-id": made[6], "type": "branch", "max-snapshot-age-ms": 17 * day},
        "main": {"snapshot-id": made[8], "type": "branch", "max-ref-age-ms": 1},
    }
    workspace.publish(craft)
    before = workspace.read()
    assert workspace.run(EXPIRE).state is COMMITTED
    after = workspace.read()
    assert after == {version: before[version] for version in after}
    kept = {str(made[i]) for i in (0, 2, 3, 5, 6, 7, 8)}
    assert after.keys() == kept | {"tag", "counts", "ages", "main"}


@pytest.mark.cases(5)
@pytest.mark.parametrize("kind", ["tag", "branch", "main"])
def test_an_explicit_snapshot_that_a_ref_holds(workspace: Workspace, kind: str) -> None:
    """A step that names a held snapshot is refused with the holder; nothing is committed or deleted, now or later."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200])
    if kind != "main":
        craft.refs["holder"] = {"snapshot-id": ids(craft)[0], "type": kind}
    workspace.publish(craft)
    workspace.detect()
    base, files, runtime = workspace.metadata(), workspace.files(), workspace.runtime()
    job_id = runtime.store.jobs.claim(base.ref, base.table_uuid, (EXPIRE,), runtime.trigger, workspace.clock.now())
    assert job_id is not None
    held = ids(craft)[-1 if kind == "main" else 0]
    step = ExpireSnapshots((held, ids(craft)[1]), (), True, 4, False)
    with pytest.raises(Refused, match="main" if kind == "main" else "holder"):
        runtime.engine.run(StepRequest(job_id, EXPIRE, step, base))
    assert (workspace.metadata(), workspace.files()) == (base, files)
    reconcile_interrupted(replace(runtime, process_has_ended=lambda _: True))
    assert workspace.files() == files
    assert not runtime.store.ledger.unfinished(runtime.clock.now())


@pytest.mark.cases(7, 8)
def test_a_staged_snapshot_has_its_own_grace(workspace: Workspace) -> None:
    """Pending publication it stays while it is young, whatever the count, files and all; when it is old it goes."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300])
    staged = craft.commit(workspace.clock.now() - timedelta(hours=20), [craft.data({"id": [9], "part": ["staged"]})])
    pending, head = craft.snapshots[-1], craft.snapshots[-2]["snapshot-id"]
    pending["summary"]["wap.id"] = "audit"

    def unpublished(document: dict[str, Any]) -> None:
        document |= {"current-snapshot-id": head, "refs": {"main": {"snapshot-id": head, "type": "branch"}}}

    workspace.publish(craft, unpublished)
    before = workspace.read()
    (pin,) = [p for p in workspace.run(EXPIRE, dry_run=True).retained if p.snapshot_id == pending["snapshot-id"]]
    assert pin.by == "staged as audit, not published yet, younger than the retention"
    done = workspace.run(EXPIRE)
    assert done.metrics["snapshots_expired"] == 1, done
    assert workspace.read()[str(pending["snapshot-id"])] == before[str(pending["snapshot-id"])]
    workspace.clock.advance(hours=5)
    assert workspace.run(EXPIRE).metrics["snapshots_expired"] == 1
    assert not staged.files[0].path.exists()
    assert workspace.read()["main"] == before["main"]


@pytest.mark.cases(9)
def test_a_published_file_outlives_its_staged_snapshot(workspace: Workspace) -> None:
    """The staged snapshot expires after the cherry-pick; the file that both name stays."""
    craft = workspace.craft()
    workspace.commits(craft, [500])
    file = craft.data({"id": [9], "part": ["staged"]})
    craft.commit(workspace.clock.now() - timedelta(hours=400), [file])
    staged = craft.snapshots.pop()
    craft.commit(workspace.clock.now() - timedelta(hours=300), [file])
    craft.snapshots[-1]["summary"] |= {"source-snapshot-id": str(staged["snapshot-id"])}
    craft.snapshots.insert(1, staged)
    workspace.publish(craft)
    before = workspace.read()["main"]
    done = workspace.run(EXPIRE)
    assert done.metrics["snapshots_expired"] == 2, done
    assert file.path.exists()
    assert workspace.read()["main"] == before


@pytest.mark.cases(10)
@pytest.mark.parametrize("how", ["later", "same commit"])
def test_a_file_that_is_removed_and_added_again(workspace: Workspace, how: str) -> None:
    """Removed by one snapshot and added by a later one, or both by one: the kept snapshot needs the file."""
    craft = workspace.craft()
    file, other = (craft.data({"id": [n], "part": ["again"]}) for n in (1, 2))
    at = [workspace.clock.now() - timedelta(hours=h) for h in (400, 300, 200)]
    first = craft.commit(at[0], [file])
    if how == "later":
        craft.commit(at[1], [other], replaced=first)
        craft.commit(at[2], [file])
    else:
        craft.commit(at[2], [file, other], replaced=first)
    workspace.publish(craft)
    before = workspace.read()["main"]
    assert workspace.run(EXPIRE).state is COMMITTED
    assert (file.path.exists(), workspace.read()["main"]) == (True, before)


@pytest.mark.cases(11)
def test_manifests_that_kept_snapshots_share(workspace: Workspace) -> None:
    """Of appends only the manifest lists of expired snapshots go; each manifest is listed by the head too."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    before = workspace.read()["main"]
    done = workspace.run(EXPIRE)
    assert {f.path for f in done.files} == {s["manifest-list"] for s in craft.snapshots[:-1]}
    assert workspace.read()["main"] == before


BREAK: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}


@pytest.mark.cases(12)
@pytest.mark.parametrize("how", BREAK)
@pytest.mark.parametrize("victim", ["manifest", "manifest list"])
def test_an_unreadable_snapshot_that_only_a_tag_keeps(workspace: Workspace, victim: str, how: str) -> None:
    """Though the current snapshot is whole, the run fails before its commit, names the file and deletes nothing."""
    craft = workspace.craft()
    tagged = workspace.commits(craft, [400, 300, 200, 100])[1]
    craft.refs["t"] = {"snapshot-id": ids(craft)[1], "type": "tag"}
    workspace.publish(craft)
    said = craft.snapshots[1]["manifest-list"] if victim == "manifest list" else tagged.row["manifest_path"]
    broken = Path(said.removeprefix("file://"))
    BREAK[how](broken)
    files, base = workspace.files(), workspace.metadata()
    done = workspace.run(EXPIRE)
    assert (done.state, broken.name in done.reason) == (FAILED, True), done
    assert (workspace.files(), workspace.metadata()) == (files, base)


@pytest.mark.cases(14)
def test_a_file_that_cannot_be_deleted(workspace: Workspace) -> None:
    """The failure is told with the file's name, the others go, the metadata stays committed, the ledger says failed."""
    craft = workspace.craft()
    first, *_ = workspace.commits(craft, [400, 300, 200])
    workspace.publish(craft)
    stuck = first.files[0].path
    stuck.unlink()
    (stuck / "in the way").mkdir(parents=True)
    job = workspace.job(EXPIRE)
    (done,) = job.outcomes
    assert job.state is JobState.PARTIAL
    assert done.metrics["files_failed"] == 1
    assert done.metrics["snapshots_expired"] == len(craft.snapshots) - len(workspace.metadata().snapshots) == 2
    assert any(stuck.name in note and "could not be deleted" in note for note in done.notes)
    assert f"file://{stuck}" not in {f.path for f in done.files}
    assert not any(local_path(f.path) and Path(str(local_path(f.path))).exists() for f in done.files)
    states = {f["path"]: f["state"] for f in workspace.app.runtime.store.ledger.files(str(job.job_id))}
    assert [path for path, state in states.items() if state != "deleted"] == [f"file://{stuck}"]
    assert states[f"file://{stuck}"] == "failed"


@pytest.mark.cases(15, 17, 18, 93)
def test_nothing_to_expire(workspace: Workspace) -> None:
    """Old ones within the count, young ones, and a table without any: no commit, no file, skipped with the reason."""
    workspace.table()
    workspace.icebergs["lake"].create_table(("sales", "empty"), workspace.craft("sales.x").schema)
    files = workspace.files()
    for name, keep, hours in ((NAME, 4, 24), (NAME, 99, 24), (NAME, 1, 401), ("sales.empty", 1, 24)):
        knobs = {"expire_snapshots__min_snapshots_to_keep": keep, "expire_snapshots__retention_hours": hours}
        done = workspace.run(EXPIRE, name=name, **knobs)
        assert (done.state, done.files, done.statements) == (SKIPPED, (), ())
        assert done.reason == ("no current snapshot" if name == "sales.empty" else "no snapshots to expire")
    assert workspace.files() == files
    assert all(row.job_id is None for row in workspace.app.runtime.store.tables.list())


@pytest.mark.cases(51, 52)
@pytest.mark.parametrize("key", ["statistics", "partition-statistics"])
def test_statistics_that_two_snapshots_share(workspace: Workspace, key: str) -> None:
    """A statistics file of an expired snapshot goes, unless a kept one names it too, in either kind and spelling."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200])
    own, shared = (craft.folder / "metadata" / f"{name}.stats" for name in ("own", "shared"))
    other = "partition-statistics" if key == "statistics" else "statistics"

    def entry(snapshot_id: int, path: str) -> dict[str, Any]:
        footer = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
        return {"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": 1} | footer

    def change(document: dict[str, Any]) -> None:
        first, second, last = ids(craft)
        document[key] = [entry(first, f"file://{own}"), entry(second, f"file://{shared}")]
        document[other] = [entry(last, f"file:{shared}")]

    workspace.publish(craft, change)
    workspace.plant(craft.folder, "metadata/own.stats", "metadata/shared.stats")
    workspace.finds([])
    result = workspace.run(EXPIRE, dry_run=True)
    assert set(workspace.run(EXPIRE).files) == set(result.files)
    assert (own.exists(), shared.exists()) == (False, True)
    left = workspace.metadata()
    assert {s.snapshot_id for s in (*left.statistics, *left.partition_statistics)} == {ids(craft)[-1]}
    workspace.finds([])


@pytest.mark.cases(47)
def test_a_v1_table_whose_metadata_names_the_manifests(workspace: Workspace) -> None:
    """Format v1 without manifest lists: what only the expired snapshot names goes, what the head names stays."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300], replacing=False)
    at = workspace.clock.now() - timedelta(hours=200)
    lone = craft.commit(at, [craft.data({"id": [5], "part": ["lone"]})])
    craft.snapshots.pop()
    workspace.publish(craft)
    files = workspace.app.runtime.files
    rows = [[m.path for m in files.manifests(s)] for s in workspace.metadata().snapshots]

    def change(document: dict[str, Any]) -> None:
        for field in ("last-sequence-number", "refs"):
            del document[field]
        rows[0].append(str(lone.row["manifest_path"]))
        for snapshot, named in zip(document["snapshots"], rows, strict=True):
            del snapshot["manifest-list"], snapshot["sequence-number"]
            snapshot["manifests"] = named
        document["format-version"] = 1

    edit(workspace.metadata_file(), change)
    done = workspace.run(EXPIRE)
    assert {f.path for f in done.files} == {lone.row["manifest_path"], f"file://{lone.files[0].path}"}, done
    assert workspace.metadata().current_snapshot_id == ids(craft)[-1]


@pytest.mark.cases(16)
@pytest.mark.parametrize("clean", [True, False])
def test_unused_specs_and_schemas(workspace: Workspace, clean: bool) -> None:
    """On demand those that no kept snapshot, tag or default uses go, and what is kept reads as before."""
    catalog, rows = workspace.icebergs["lake"], pa.table({"id": pa.array([1, 2], pa.int64())})
    table = catalog.create_table(("sales", "evolved"), rows.schema)
    table.append(rows)
    table.manage_snapshots().create_tag(int(table.current_snapshot().snapshot_id), "first").commit()  # type: ignore[union-attr]
    for name in ("second", "third"):
        table.update_schema().add_column(name, StringType()).commit()
        table.append(rows.append_column(name, pa.array(["x", "y"])))
        table.manage_snapshots().create_tag(int(table.current_snapshot().snapshot_id), name).commit()  # type: ignore[union-attr]
    for name in ("id", "second", "third"):  # specs 1 and 2 are never written with
        table.update_spec().add_field(name, IdentityTransform(), f"by_{name}").commit()
    more = [pa.array(["x", "y"])] * 2
    rows = rows.append_column("second", more[0]).append_column("third", more[1])
    table.append(rows)
    table.manage_snapshots().remove_tag("second").commit()
    before, read = workspace.metadata("sales.evolved"), {r: _rows(table, r) for r in ("first", "third", "main")}
    workspace.clock.advance(hours=1000)
    done = workspace.run(EXPIRE, name="sales.evolved", expire_snapshots__clean_expired_metadata=clean)
    assert done.state is COMMITTED, done
    after = workspace.metadata("sales.evolved")
    gone = (
        {s.spec_id for s in before.specs} - {s.spec_id for s in after.specs},
        {*before.schema_ids} - {*after.schema_ids},
    )
    assert gone == (({1, 2}, {1}) if clean else (set(), set()))
    table.refresh()
    assert {r: _rows(table, r) for r in ("first", "third", "main")} == read
    table.append(rows)


@pytest.mark.cases(16)
@pytest.mark.parametrize("rows", [0, 1])
def test_unused_specs_and_schemas_go_alone(workspace: Workspace, rows: int) -> None:
    """Also where no snapshot expires, or there is none; what is used stays, and nothing is due afterwards."""
    catalog, columns = workspace.icebergs["lake"], pa.schema([("id", pa.int64())])
    table = catalog.create_table(("sales", "bare"), columns)
    for name in ("second", "third"):
        table.update_schema().add_column(name, StringType()).commit()
    table.update_spec().add_field("second", IdentityTransform(), "by_second").commit()
    table.update_spec().add_field("third", IdentityTransform(), "by_third").commit()
    if rows:
        table.append(pa.table({"id": [1], "second": ["x"], "third": ["y"]}))
    before = workspace.metadata("sales.bare")
    clean = {"name": "sales.bare", "expire_snapshots__clean_expired_metadata": True}
    assert workspace.run(EXPIRE, name="sales.bare").state is SKIPPED
    done = workspace.run(EXPIRE, **clean)
    after = workspace.metadata("sales.bare")
    assert (done.state, "removed 4 unused partition specs and schemas" in done.summary) == (COMMITTED, True), done
    assert (after.schema_ids, [s.spec_id for s in after.specs]) == ((2,), [2])
    assert (after.schema, after.snapshots, after.refs) == (before.schema, before.snapshots, before.refs)
    assert workspace.run(EXPIRE, **clean).state is SKIPPED
    table.refresh()
    assert table.scan().to_arrow().num_rows == rows
    table.append(pa.table({"id": [2], "second": ["x"], "third": ["y"]}))


def _rows(table: Table, ref: str) -> list[dict[str, Any]]:
    snapshot = table.metadata.refs[ref].snapshot_id
    found: list[dict[str, Any]] = table.scan(snapshot_id=snapshot).to_arrow().sort_by("id").to_pylist()
    return found


def test_an_expiry_asks_store_and_catalog_no_more_often_than_it_has_to(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction is a round trip to the store, or a lock of its file: what is read at one moment shares one.

    The table is loaded for the plan, to prove the deletions, and after these.
    """
    workspace.table()
    workspace.table("sales.other")
    workspace.detect()
    runtime, real = workspace.runtime(KNOBS_OF[EXPIRE]), database._transaction
    begun: list[sa.Engine] = []

    def counted(engine: sa.Engine) -> AbstractContextManager[sa.Connection]:
        begun.append(engine)
        return real(engine)

    monkeypatch.setattr(database, "_transaction", counted)
    catalog, loaded = runtime.catalogs["lake"], list[TableRef]()
    load = catalog.load

    def noted(one: TableRef) -> TableMetadata:
        loaded.append(one)
        return load(one)

    monkeypatch.setattr(catalog, "load", noted)
    for name, transactions in ((NAME, 17), ("sales.other", 15)):  # the first reads both tables
        begun.clear()
        loaded.clear()
        assert execute(runtime, Request(ref(name), (EXPIRE,), manual=True)).state is JobState.SUCCEEDED
        assert len(begun) <= transactions
        assert loaded.count(ref(name)) == 3
