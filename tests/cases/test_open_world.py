"""Other people's tables: stale entries, twins, clones, borrowers, shared folders. Nothing that they read ever goes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.table import StaticTable, Table

from icewright.adapters.engines.service.deletion import JobDeletion
from icewright.core.errors import StorageUnavailable
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState, OperationState
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.vacuum import vacuum
from icewright.ports import SnapshotPin
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, quickly

ROWS = pa.table({"id": pa.array([77], pa.int64()), "part": ["late"]})


def elsewhere(workspace: Workspace, name: str = "sales.moved", catalog: str = "pond") -> Table:
    """The table of the house registered in another catalog too, by its current metadata file."""
    return workspace.icebergs[catalog].register_table(tuple(name.split(".")), f"file://{workspace.metadata_file()}")


def reads(table: Table, *, registered: bool = True) -> list[Mapping[str, object]]:
    """The rows of every snapshot of a table, as its own catalog has it now or as its last metadata file has it."""
    now = table.catalog.load_table(table.name()) if registered else StaticTable.from_metadata(table.metadata_location)
    return [row for s in now.snapshots() for row in now.scan(snapshot_id=s.snapshot_id).to_arrow().to_pylist()]


def stale(workspace: Workspace, commits: int) -> tuple[Path, Table]:
    """A table whose entry in `lake` is stale: an unseen catalog took it over and has committed so often since then."""
    folder = workspace.table()
    successor = elsewhere(workspace)
    for _ in range(commits):
        successor.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    workspace.grow_old(folder)
    assert len(reads(successor, registered=False)) > commits
    return folder, successor


def live_files(workspace: Workspace, successor: Table) -> set[Path]:
    """Every file that the successor's current metadata leads to."""
    names = [successor.metadata_location, *(s.manifest_list for s in successor.snapshots())]
    files = {Path(local_path(name) or "") for name in names}
    return files | {Path(local_path(row) or "") for row in successor.inspect.all_files()["file_path"].to_pylist()}


@pytest.mark.cases(95)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("commits", [1, 2, 5])
def test_a_stale_entry_deletes_nothing(workspace: Workspace, operation: Operation, commits: int) -> None:
    """The table lives on in a catalog that nobody knows of: the newer metadata file tells, and every file stays."""
    _, successor = stale(workspace, commits)
    workspace.refused(operation, "[successor]", "icewright adopt")
    assert all(path.exists() for path in live_files(workspace, successor))


@pytest.mark.cases(95)
def test_a_vacuum_of_a_catalog_with_a_stale_entry(workspace: Workspace) -> None:
    """The stale table is refused, its neighbour is cleaned."""
    _, successor = stale(workspace, 2)
    other = workspace.table("sales.other")
    orphans = workspace.plant(other, "data/orphan.parquet")
    done = vacuum(workspace.runtime({"deletion.delay_hours": 0}), "lake")
    assert done.state in (JobState.SUCCEEDED, JobState.PARTIAL)
    assert all(path.exists() for path in live_files(workspace, successor))
    assert not any(path.exists() for path in orphans)


@pytest.mark.cases(95)
def test_a_commit_of_ours_that_crashed_is_no_successor(workspace: Workspace) -> None:
    """A metadata file that an expiry staged and no catalog came to name hinders neither expiry nor orphan removal."""
    folder = workspace.table()
    content = json.loads(workspace.metadata_file().read_text())
    base = workspace.metadata()
    content["metadata-log"] = [*content.get("metadata-log", ()), _entry(base.metadata_location)]
    from icewright.adapters.metadata.document import next_location

    staged = local_path(next_location({"location": base.location}, base.metadata_location)) or ""
    (leftover,) = workspace.plant(folder, str(Path(staged).relative_to(folder)), content=json.dumps(content).encode())
    assert workspace.run(EXPIRE).state is OperationState.COMMITTED
    workspace.removes({leftover, *_unlogged(workspace, folder)}, remove_orphans__max_delete_ratio=1)


def fork_and_go_on(workspace: Workspace, *, apart: timedelta) -> Path:
    """The newest file of an unseen catalog that commits once to the table, as this one does so much later."""
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.append(ROWS)
    fork = elsewhere(workspace)
    fork.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    table.overwrite(ROWS)
    tip = Path(local_path(fork.metadata_location) or "")
    content = json.loads(tip.read_text())
    content["last-updated-ms"] -= int(apart.total_seconds() * 1000)
    tip.write_text(json.dumps(content))
    os.utime(tip, (workspace.clock.now().timestamp(),) * 2)  # whenever the test runs
    workspace.clock.advance(days=10)
    return tip


@pytest.mark.cases(95)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_fork_of_one_commit(workspace: Workspace, operation: Operation, hours: int) -> None:
    """It was not made when ours was, so it is no commit that lost a race, and what it reads stays."""
    fork_and_go_on(workspace, apart=timedelta(hours=hours))
    workspace.refused(operation, "[successor]", "icewright adopt")


@pytest.mark.cases(95)
def test_a_commit_that_lost_a_race_hinders_nobody(workspace: Workspace) -> None:
    """Its metadata file was made when the version was that won, nothing builds on it, and it goes as an orphan."""
    tip = fork_and_go_on(workspace, apart=timedelta(minutes=1))
    assert workspace.run(EXPIRE).state is not OperationState.FAILED
    workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert not tip.exists()


def _entry(location: str) -> dict[str, object]:
    return {"metadata-file": location, "timestamp-ms": 1}


def _unlogged(workspace: Workspace, folder: Path) -> set[Path]:
    """Metadata files of the table that its log does not name, old enough."""
    metadata = workspace.metadata()
    named = {Path(local_path(name) or "") for name in (metadata.metadata_location, *metadata.metadata_log)}
    return {p for p in folder.glob("metadata/*.metadata.json") if p not in named}


@pytest.mark.cases(96)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_the_second_entry_in_the_same_database(workspace: Workspace, operation: Operation) -> None:
    """Another `catalog_name` of the same database has the table too, and it is named in the refusal."""
    workspace.table()
    location = f"file://{workspace.metadata_file()}"
    columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"
    statement = f"INSERT INTO iceberg_tables ({columns}) VALUES ('backup', 'sales', 'copy', ?, 'TABLE')"  # noqa: S608
    quickly(workspace.home / "lake.db", statement, location)
    workspace.refused(operation, "backup.sales.copy", "[registered_twice]")


@pytest.mark.cases(97)
@pytest.mark.parametrize("change", ["unset", "moved"])
def test_a_former_pool_is_nobodys_alone(workspace: Workspace, change: str) -> None:
    """Two tables wrote to one folder, and one of them writes elsewhere now: its files there are no orphans."""
    pool = workspace.home / "pool"
    made = [_pooled(workspace, name, pool) for name in ("sales.first", "sales.second")]
    workspace.run(ORPHANS, name="sales.first", dry_run=True)
    workspace.run(ORPHANS, name="sales.second", dry_run=True)
    with made[1].transaction() as transaction:
        if change == "unset":
            transaction.remove_properties("write.data.path")
        else:
            transaction.set_properties({"write.data.path": f"file://{workspace.home}/pool2"})
    workspace.grow_old(workspace.home)
    before = reads(made[1])
    lost = workspace.plant(pool, "lost.parquet")  # by whom, nobody knows
    done = workspace.run(ORPHANS, name="sales.first", remove_orphans__max_delete_ratio=1)
    assert done.state is OperationState.COMMITTED, done
    assert done.files == ()
    assert all(path.exists() for path in lost)
    assert reads(made[1]) == before


@pytest.mark.cases(97, 104)
def test_a_pool_belongs_to_a_table_that_cannot_be_read_any_more(workspace: Workspace) -> None:
    """Where its files lie is known from before: what it has there since then is nobody else's orphan."""
    pool = workspace.home / "pool"
    _, second = (_pooled(workspace, name, pool) for name in ("sales.first", "sales.second"))
    workspace.run(ORPHANS, name="sales.second", dry_run=True)
    second.append(ROWS)
    workspace.metadata_file("sales.second").unlink()
    workspace.grow_old(workspace.home)
    done = workspace.run(ORPHANS, name="sales.first", remove_orphans__max_delete_ratio=1)
    assert (done.state, done.files) == (OperationState.COMMITTED, ()), done
    assert any("pool is not scanned: it overlaps the place of lake.sales.second" in note for note in done.notes)


@pytest.mark.cases(97)
def test_tables_that_share_a_pool_expire_their_own_files(workspace: Workspace) -> None:
    """Of two tables that write to one folder each deletes there what it alone has read."""
    first, second = (_pooled(workspace, name, workspace.home / "pool") for name in ("sales.first", "sales.second"))
    lent, own = (Path(local_path(path) or "") for path in first.inspect.files()["file_path"].to_pylist())
    second.add_files([f"file://{lent}"])
    first.overwrite(ROWS)
    later(workspace)
    before = reads(second)
    assert workspace.run(EXPIRE, name="sales.first").state is OperationState.COMMITTED
    assert (lent.exists(), own.exists()) == (True, False)
    assert reads(second) == before


def _pooled(workspace: Workspace, name: str, pool: Path) -> Table:
    """A table that writes its data to the folder."""
    properties = {"write.data.path": f"file://{pool}"}
    table = workspace.icebergs["lake"].create_table(name, ROWS.schema, properties=properties)
    table.append(ROWS)
    table.append(ROWS)
    workspace.grow_old(workspace.home)
    return table


@pytest.mark.cases(98)
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_clone_that_moved_away(workspace: Workspace, catalog: str) -> None:
    """Registered again, moved by SET LOCATION, and committed since: the original expires nothing that it still has."""
    workspace.table()
    clone = elsewhere(workspace, "sales.clone", catalog)
    place = workspace.home / "warehouse" / "clone"
    quickly_located(clone, place)
    clone = workspace.icebergs[catalog].load_table("sales.clone")
    clone.append(ROWS)
    workspace.grow_old(workspace.home)
    before = reads(clone)
    workspace.refused(EXPIRE, f"{catalog}.sales.clone", "[registered_twice]")
    assert reads(clone) == before


@pytest.mark.cases(98, 104)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_clone_that_cannot_be_read_any_more(workspace: Workspace, operation: Operation) -> None:
    """It is known as one from before, and what it has come to read since then nobody can tell."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    clone = elsewhere(workspace, "sales.clone")
    quickly_located(clone, workspace.home / "pond" / "clone")
    workspace.refused(operation, "pond.sales.clone", "[registered_twice]")
    workspace.icebergs["pond"].load_table("sales.clone").append(ROWS)
    workspace.metadata_file("sales.clone", "pond").unlink()
    workspace.refused(operation, "pond.sales.clone", "[registered_twice]")


def quickly_located(table: Table, place: Path) -> None:
    """SET LOCATION, as Spark would."""
    from pyiceberg.table.update import SetLocationUpdate

    with table.transaction() as transaction:
        transaction._apply((SetLocationUpdate(location=f"file://{place}"),))


@pytest.mark.cases(99)
@pytest.mark.parametrize("borrower", ["lake", "pond"])
def test_files_that_another_table_borrowed(workspace: Workspace, borrower: str) -> None:
    """`add_files` from one table to another: the source overwrites and expires, and the borrower reads on."""
    source = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    lent = source.inspect.files()["file_path"].to_pylist()
    other = workspace.icebergs[borrower].create_table("sales.borrower", ROWS.schema)
    other.add_files(lent)
    source.overwrite(ROWS)
    later(workspace)
    workspace.run(EXPIRE, name="sales.source")
    workspace.run(ORPHANS, name="sales.source", remove_orphans__max_delete_ratio=1)
    assert reads(other)
    assert all(Path(local_path(path) or "").exists() for path in lent)


@pytest.mark.cases(99)
@pytest.mark.parametrize(("commits", "cut"), [(0, False), (1, False), (0, True)])
def test_files_of_a_borrower_that_cannot_be_read(workspace: Workspace, commits: int, *, cut: bool) -> None:
    """What another table borrowed stays while its metadata is missing or cut, of a version seen or of a new one."""
    source = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    other = workspace.icebergs["pond"].create_table("sales.borrower", ROWS.schema)
    other.add_files(source.inspect.files()["file_path"].to_pylist())
    source.overwrite(ROWS)
    later(workspace)
    workspace.run(EXPIRE, name="sales.source", dry_run=True)
    for _ in range(commits):
        other.append(ROWS)
    metadata = workspace.metadata_file("sales.borrower", "pond")
    away = metadata.rename(metadata.with_suffix(".away"))
    if cut:
        metadata.write_bytes(away.read_bytes()[:100])
    done = workspace.run(EXPIRE, name="sales.source")
    away.replace(metadata)
    assert done.metrics["snapshots_expired"] > 0
    assert any("sales.borrower, which uses files there, cannot be read" in note for note in done.notes), done
    assert reads(other)


@pytest.mark.cases(99)
def test_a_borrower_deletes_nothing_of_its_source(workspace: Workspace) -> None:
    """The borrower overwrites what it was lent, and expires: the source reads on, and the note names the reason."""
    source = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    source.append(ROWS)
    other = workspace.icebergs["lake"].create_table("sales.borrower", ROWS.schema)
    other.add_files(source.inspect.files()["file_path"].to_pylist())
    other.overwrite(ROWS)
    later(workspace)
    before = reads(source)
    result = workspace.run(EXPIRE, name="sales.borrower", dry_run=True)
    done = workspace.run(EXPIRE, name="sales.borrower", expire_snapshots__outside_location="delete")
    assert done.state is OperationState.COMMITTED, done
    assert any("place of lake.sales.source" in note for note in (*result.notes, *done.notes)), (result, done)
    assert reads(source) == before


def later(workspace: Workspace) -> None:
    """Let a week go by: every snapshot but the last is old, and every file."""
    workspace.clock.time = workspace.clock.now() + timedelta(days=9)
    workspace.grow_old(workspace.home, days=8)


@pytest.mark.cases(99)
def test_files_in_nobodys_place_stay_unless_a_policy_lets_them_go(workspace: Workspace) -> None:
    """Files that were added from a folder of no table are not the table's to delete, unless somebody says so."""
    landing = workspace.home / "landing"
    table = workspace.icebergs["lake"].create_table("sales.source", ROWS.schema)
    table.append(ROWS)
    landing.mkdir()
    (path,) = (Path(local_path(p) or "") for p in table.inspect.files()["file_path"].to_pylist())
    landed = path.rename(landing / path.name)
    other = workspace.icebergs["lake"].create_table("sales.other", ROWS.schema)
    other.add_files([f"file://{landed}"])
    quickly(workspace.home / "lake.db", "DELETE FROM iceberg_tables WHERE table_name = 'source'")
    other.overwrite(ROWS)
    later(workspace)
    done = workspace.run(EXPIRE, name="sales.other")
    assert landed.exists()
    assert any("outside_location" in note for note in done.notes), done
    other.overwrite(ROWS)
    later(workspace)


def deletable(workspace: Workspace, operation: Operation) -> Path:
    """Make a table; return a file that the operation would delete."""
    craft = workspace.craft()
    manifests = workspace.commits(craft, [400, 300, 200])
    (orphan,) = workspace.plant(workspace.publish(craft), "data/orphan.parquet")
    return orphan if operation is ORPHANS else manifests[0].files[0].path


@pytest.mark.cases(101)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("word", ["written anew", "size differs"])
def test_a_name_that_is_written_anew_before_the_deletion(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation, word: str
) -> None:
    """Between plan and deletion an ETL job writes the file anew: what it wrote stays, whatever else goes."""
    victim = deletable(workspace, operation)
    real = JobDeletion.carry_out

    def anew(*args: Any, **options: Any) -> object:
        before = victim.stat()
        if word == "written anew":
            victim.write_bytes(b"y" * before.st_size)
        else:  # in the same second, as far as a storage with whole seconds can tell
            victim.write_bytes(b"y" * (before.st_size + 1))
            os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
        return real(*args, **options)

    monkeypatch.setattr(JobDeletion, "carry_out", anew)
    done = workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert victim.exists()
    assert any(word in note for note in done.notes), done


@pytest.mark.cases(101)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_name_that_is_written_anew_after_a_crash(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """The process dies between plan and deletion, the name is written anew, and the next start lets it be."""
    victim = deletable(workspace, operation)
    crash(workspace, monkeypatch, operation)
    victim.write_bytes(b"y" * victim.stat().st_size)
    reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))
    assert victim.exists()
    states = {
        row["path"]: row for job in workspace.app.runtime.store.jobs.list() for row in _deletions(workspace, job.job_id)
    }
    (row,) = (row for path, row in states.items() if (local_path(path) or "") == str(victim))
    assert (row["state"], "written anew" in row["reason"]) == ("kept", True)


@pytest.mark.cases(101)
def test_a_name_that_was_reused_before_the_plan(workspace: Workspace) -> None:
    """A file that the table let go, whose name a writer gave to another one: its size is not that of the manifest."""
    craft = workspace.craft()
    manifests = workspace.commits(craft, [400, 300, 200])
    workspace.publish(craft)
    victim, other = (manifest.files[0].path for manifest in manifests[:2])
    victim.write_bytes(b"y" * (victim.stat().st_size + 1))
    result = workspace.run(EXPIRE, dry_run=True)
    done = workspace.run(EXPIRE)
    assert (victim.exists(), other.exists()) == (True, False)
    assert {f.path for f in result.files} == {f.path for f in done.files}
    assert any("another file bears the name now" in note for note in result.notes), result


def _deletions(workspace: Workspace, job_id: str) -> list[Mapping[str, Any]]:
    return [row for row in workspace.app.runtime.store.ledger.files(job_id) if row["state"] != "found"]


def crash(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation) -> None:
    """Run the operation up to the plan of its deletions, where its storage goes away."""

    def away(*_: object) -> None:
        raise StorageUnavailable("throttled")

    with monkeypatch.context() as patched:
        patched.setattr(JobDeletion, "delete", away)
        workspace.job(operation, remove_orphans__max_delete_ratio=1)


Act = Callable[[Workspace], object]


def forbid(workspace: Workspace) -> None:
    """Somebody sets gc.enabled=false."""
    with workspace.icebergs["lake"].load_table(NAME).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})


def pin(workspace: Workspace, snapshot_id: int | None = None) -> None:
    """A reader pins a snapshot, the current one by default; another's pin has just ended."""
    metadata, now = workspace.metadata(), workspace.clock.now()
    pinned = snapshot_id or metadata.current_snapshot_id
    assert pinned is not None
    store = workspace.app.runtime.store
    (job,) = store.jobs.list(limit=1)
    for reader, until in (("airflow", now), ("flink", now + timedelta(days=1))):
        row = SnapshotPin(reader, pinned, now, until, "me")
        assert store.pins.add(metadata.ref, metadata.table_uuid, row, job_id=job.job_id)


def register(workspace: Workspace) -> None:
    """Somebody registers the table a second time, by the metadata as it was before."""
    metadata = workspace.metadata()
    location = metadata.metadata_log[-1] if metadata.metadata_log else metadata.metadata_location
    workspace.icebergs["pond"].register_table("sales.twin", location)


def narrow(workspace: Workspace) -> None:
    """Somebody allows deletions elsewhere only."""
    allowed = workspace.app.engines.expire.guard.allowed_locations
    assert isinstance(allowed, dict)
    allowed.update(dict.fromkeys(allowed, ("file:///elsewhere",)))


def replaced(workspace: Workspace) -> None:
    """Somebody drops the table, and makes another one of the name elsewhere."""
    workspace.unregister(NAME)
    workspace.table(place="warehouse2", salt="anew")


def purged(workspace: Workspace) -> None:
    """Somebody purges the table, and makes another one of the name in the same place, where old files are restored."""
    folder = workspace.metadata_file().parent
    workspace.unregister(NAME)
    for path in folder.glob("*.metadata.json"):
        path.unlink()
    workspace.table(salt="anew")


ACTS = [
    (forbid, "[gc_disabled]"),
    (register, "[registered_twice]"),
    (narrow, "[outside_allowed_locations]"),
    (replaced, "was replaced"),
    (purged, "was replaced"),
]


@pytest.mark.cases(102, 103)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize(("act", "word"), [*ACTS, (pin, "[pinned]")])
def test_what_somebody_does_right_before_the_deletion(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation, act: Act, word: str
) -> None:
    """Whatever forbids the deletion between plan and deletion stops it: every planned file stays, with the reason."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200])
    workspace.plant(workspace.publish(craft), "data/orphan.parquet")
    real = JobDeletion.carry_out
    planned: list[FileAction] = []

    def meanwhile(*args: Any, **options: Any) -> object:
        planned.extend(args[1])
        act(workspace)
        return real(*args, **options)

    monkeypatch.setattr(JobDeletion, "carry_out", meanwhile)
    (outcome,) = workspace.job(operation, remove_orphans__max_delete_ratio=1).outcomes
    assert planned
    assert all(Path(local_path(file.path) or "").exists() for file in planned)
    assert word in " ".join((outcome.reason, *outcome.notes)), outcome


def moved(workspace: Workspace) -> None:
    """Somebody moves the table to another location."""
    quickly_located(workspace.icebergs["lake"].load_table(NAME), workspace.home / "warehouse" / "there")


@pytest.mark.cases(103)
def test_orphans_in_a_place_that_the_table_leaves_before_the_deletion(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in nobody's place by then, and stay."""
    test_what_somebody_does_right_before_the_deletion(
        workspace, monkeypatch, ORPHANS, moved, "outside the table's own location"
    )


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize(("minutes", "lasts"), [(1, 60), (0, 0)])
def test_a_pin_that_the_plan_knew_or_that_has_ended_stops_no_deletion(
    workspace: Workspace, operation: Operation, minutes: int, lasts: int
) -> None:
    """Only pins that hold and came after the run began make files doubtful: earlier ones have shaped the plan."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    workspace.detect()
    metadata, now = workspace.metadata(), workspace.clock.now()
    assert metadata.current_snapshot_id is not None
    earlier = SnapshotPin("flink", metadata.current_snapshot_id, now, now + timedelta(minutes=lasts), "me")
    assert workspace.app.runtime.store.pins.add(metadata.ref, metadata.table_uuid, earlier)
    workspace.clock.advance(minutes=minutes)
    done = workspace.run(operation, remove_orphans__max_delete_ratio=1)
    assert done.files
    assert not any(Path(local_path(file.path) or "").exists() for file in done.files)


def test_a_planned_file_that_a_writer_takes_in_stays(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a commit after the plan refers to stays, in whichever batch it is; the files beside it go."""
    folder = workspace.table()
    orphans = sorted(workspace.plant(folder, "data/a.parquet", "data/b.parquet", "data/c.parquet"))
    parquet.write_table(ROWS, orphans[1])
    workspace.age(orphans[1], days=30)
    real = JobDeletion.carry_out

    def meanwhile(*args: Any, **options: Any) -> object:
        workspace.icebergs["lake"].load_table(NAME).add_files([f"file://{orphans[1]}"])
        return real(*args, **options)

    monkeypatch.setattr(JobDeletion, "carry_out", meanwhile)
    monkeypatch.setattr("icewright.adapters.engines.service.deletion.BATCH", 1)
    done = workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert [path.exists() for path in orphans] == [False, True, False]
    assert "1 planned file kept: the table reaches it" in " ".join(done.notes)


@pytest.mark.cases(103)
@pytest.mark.parametrize("expired", [True, False])
def test_a_pin_between_a_crash_and_the_next_start(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    """Who pins a snapshot that the crashed run expired keeps its files; one that stayed needs none of them."""
    workspace.table()
    metadata, now, store = workspace.metadata(), workspace.clock.now(), workspace.app.runtime.store
    crash(workspace, monkeypatch, EXPIRE)
    (job,) = store.jobs.list(limit=1)
    pinned = metadata.snapshots[0 if expired else -1].snapshot_id
    row = SnapshotPin("flink", pinned, now, now + timedelta(days=1), "me")
    assert store.pins.add(metadata.ref, metadata.table_uuid, row)
    reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))
    planned = [Path(local_path(row["path"]) or "") for row in _deletions(workspace, job.job_id)]
    assert {path.exists() for path in planned} == {expired}


@pytest.mark.cases(103)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize(("act", "word"), ACTS)
def test_what_somebody_does_between_a_crash_and_the_next_start(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation, act: Act, word: str
) -> None:
    """Finishing another process's deletions asks the same as the ordinary run."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200])
    workspace.plant(workspace.publish(craft), "data/orphan.parquet")
    crash(workspace, monkeypatch, operation)
    (job,) = workspace.app.runtime.store.jobs.list(limit=1)
    planned = [row["path"] for row in _deletions(workspace, job.job_id)]
    act(workspace)
    lines = reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))
    assert any(word in line for line in lines), lines
    assert planned
    assert all(Path(local_path(path) or "").exists() for path in planned)
