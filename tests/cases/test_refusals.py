"""Refusals that people can act on: each names its rule and a remedy that works, and hinders nobody else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from icewright.app.demo.files import WrittenFile
from icewright.core.errors import AccessDenied, FolderMissing
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState, OperationState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.adopt import adopt
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.runtime import Runtime
from icewright.flow.vacuum import vacuum
from icewright.ports import WAITING, Catalog, Engine, LedgerState
from tests.cases.test_open_world import ROWS, later
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, ORPHANS, Workspace, edit, ref

AUTOMATIC = {"remove_orphans.mode": "delete", "deletion.delay_hours": 0, "remove_orphans.max_delete_ratio": 1}


def by_itself(workspace: Workspace, *, name: str = NAME, **knobs: object) -> tuple[OperationState, str]:
    """An orphan removal that nobody asked for: its state and why."""
    workspace.detect()
    runtime = workspace.runtime(AUTOMATIC | {k.replace("__", "."): v for k, v in knobs.items()})
    (outcome,) = execute(runtime, Request(ref(name), (ORPHANS,))).outcomes
    return outcome.state, outcome.reason


@pytest.mark.cases(104)
@pytest.mark.parametrize("how", ["denied", "missing", "broken"])
def test_a_table_that_cannot_be_read_pauses_no_other(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Healthy tables in other places are expired and cleaned, again and again, and none is paused."""
    workspace.table("sales.torn")
    healthy = [workspace.table(name) for name in ("sales.one", "sales.two", "sales.three")]
    orphans = [path for folder in healthy for path in workspace.plant(folder, "data/orphan.parquet", days=9)]
    metadata = workspace.metadata_file("sales.torn")
    if how == "missing":
        metadata.unlink()
    elif how == "broken":
        metadata.write_bytes(metadata.read_bytes()[:100])
    else:  # root may read everything
        catalog = type(workspace.app.runtime.catalogs["lake"])
        load = catalog.load

        def denied_one(self: Catalog, table: TableRef) -> TableMetadata:
            if table.name == "torn":
                raise AccessDenied(f"{table} may not be read")
            return load(self, table)

        monkeypatch.setattr(catalog, "load", denied_one)
    runtime = workspace.runtime(AUTOMATIC | {f"{op}.cooldown_minutes": 0 for op in Operation})
    for _ in range(4):
        run_cycle(runtime, ["lake"], force=True)
        workspace.clock.advance(hours=1)
    assert not any(path.exists() for path in orphans)
    rows = {row.ref.name: row.paused for row in workspace.app.runtime.store.tables.list("lake")}
    assert not any(rows[name] for name in ("one", "two", "three")), rows


@pytest.mark.cases(104)
def test_an_unreadable_table_in_the_same_place_still_counts(workspace: Workspace) -> None:
    """What cannot be read may be anybody's: a table nested in this one's location stops its cleaning."""
    folder = workspace.table()
    workspace.table("sales.apart")
    workspace.table("in.ner", place="warehouse/sales/orders")
    workspace.metadata_file("in.ner").unlink()
    workspace.plant(folder, "data/orphan.parquet")
    workspace.refused(ORPHANS, "lake.in.ner", "[shared_location]")


@pytest.mark.cases(106)
def test_a_table_made_anew_in_the_place_of_a_dropped_one(workspace: Workspace) -> None:
    """DROP without purge, CREATE of the name: refused with a remedy, and after that the old files go."""
    old = set(workspace.files(workspace.table(salt="old")))
    workspace.run(ORPHANS, dry_run=True)
    workspace.unregister(NAME)
    folder = workspace.table(salt="new")
    workspace.refused(ORPHANS, f"icewright adopt lake.{NAME}")
    found = adopt(workspace.app.runtime, ref(NAME), dry_run=True)
    assert len(found.tables) == 1
    adopt(workspace.app.runtime, ref(NAME))
    before = workspace.read(NAME)
    gone = {path for path in old if path.exists() and path != workspace.metadata_file()}
    workspace.removes(gone, remove_orphans__max_delete_ratio=1)
    assert workspace.read(NAME) == before
    assert workspace.files(folder)


@pytest.mark.cases(106)
def test_a_dropped_table_whose_files_are_gone_hinders_nobody(workspace: Workspace) -> None:
    """DROP with purge, CREATE of the name: there is nothing to ask about."""
    folder = workspace.table(salt="old")
    workspace.run(ORPHANS, dry_run=True)
    workspace.unregister(NAME)
    for path in workspace.files(folder):
        path.unlink()
    workspace.table(salt="new")
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(106)
def test_a_dropped_table_whose_last_version_cannot_be_read_still_has_its_place(workspace: Workspace) -> None:
    """It may be mended and registered again: what lies there is not the new table's before a person says so."""
    workspace.table(salt="old")
    workspace.run(ORPHANS, dry_run=True)
    metadata = workspace.metadata_file()
    workspace.unregister(NAME)
    metadata.write_bytes(metadata.read_bytes()[:100])
    workspace.table(salt="new")
    workspace.refused(ORPHANS, "which no catalog names any more", "[shared_location]")


@pytest.mark.cases(64, 106)
def test_a_table_that_comes_into_a_place_which_a_person_has_confirmed(workspace: Workspace) -> None:
    """An earlier word is not about it; and of two tables there the one that lives is named."""
    workspace.table(salt="old")
    workspace.run(ORPHANS, dry_run=True)
    adopt(workspace.app.runtime, ref(NAME))
    workspace.table("sales.within", place="warehouse/sales/orders")
    workspace.refused(ORPHANS, "lake.sales.within", "[shared_location]")
    workspace.unregister(NAME)
    workspace.table(salt="new")
    workspace.refused(ORPHANS, "lake.sales.within", "[shared_location]")


@pytest.mark.cases(106)
def test_what_lives_is_not_adopted(workspace: Workspace) -> None:
    """The metadata of a table that some catalog names is never taken over."""
    folder = workspace.table()
    document = workspace.metadata_file().read_text()
    workspace.table("sales.other")
    other = workspace.metadata("sales.other")
    foreign = json.dumps(json.loads(document) | {"table-uuid": other.table_uuid})
    workspace.plant(folder, "metadata/00001-x.metadata.json", content=foreign.encode())
    workspace.refused(ORPHANS, "00001-x.metadata.json", "[foreign_metadata]")
    with pytest.raises(Exception, match=r"sales\.other.*\[shared_location\]"):
        adopt(workspace.app.runtime, ref(NAME))


@pytest.mark.cases(109)
@pytest.mark.parametrize("content", [b"", b'{"format-version": 2, "table-u', b"\x1f\x8b\x08\x00", b"not json"])
def test_debris_blocks_nothing(workspace: Workspace, content: bytes) -> None:
    """An empty or cut metadata file is an orphan once it is old enough; a young one stays, and both are named."""
    folder = workspace.table()
    old = workspace.plant(folder, "metadata/00009-old.metadata.json", content=content)
    workspace.plant(folder, "metadata/00009-young.metadata.json", content=content, days=0)
    done = workspace.removes(old)
    assert sum("00009-" in note and "no metadata" in note for note in done.notes) == 2


@pytest.mark.cases(109, 151)
def test_json_of_something_else_needs_a_word(workspace: Workspace) -> None:
    """A whole document that is named as a metadata file is, and is none, somebody wrote: a person looks first."""
    folder = workspace.table()
    document = workspace.plant(folder, "metadata/model.metadata.json", content=b'{"model": "churn"}')
    state, reason = by_itself(workspace)
    assert (state, "model.metadata.json" in reason, "[unnamed_files]" in reason) == (OperationState.SKIPPED, True, True)
    done = workspace.removes(document)
    assert any("JSON of something else" in note for note in done.notes), done


def ahead(workspace: Workspace, hours: float) -> Workspace:
    """The same house, with a clock that is so far ahead of the storage's."""
    behind = workspace.clock.now() - timedelta(hours=hours)
    return with_storage_time(workspace, lambda _: behind)


def with_storage_time(workspace: Workspace, storage_time: Callable[[str], datetime]) -> Workspace:
    """The same house, with another clock of the storage."""
    engines = workspace.app.engines
    skewed = replace(engines, orphans=replace(engines.orphans, storage_time=storage_time))
    return replace(workspace, app=replace(workspace.app, runtime=replace(workspace.app.runtime, engine=skewed)))


@pytest.mark.cases(112)
@pytest.mark.parametrize("operation", [ORPHANS, EXPIRE, Operation.RECOVERY_POINTS])
def test_a_clock_ahead_of_the_storages(workspace: Workspace, operation: Operation) -> None:
    """Nine days ahead, what is of today looks old: nothing goes by its age, and the reason says both times."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    before, files = workspace.metadata(), workspace.files()
    refused = ahead(workspace, 9 * 24).run(operation, recovery_points__daily=30)
    assert (refused.state, f"{workspace.clock.now():%Y-%m-%d}" in refused.reason) == (OperationState.SKIPPED, True)
    assert refused.reason.endswith("[clock_skew]")
    assert (workspace.metadata(), workspace.files()) == (before, files)
    assert ahead(workspace, 0.9).run(operation, recovery_points__daily=30).state is OperationState.COMMITTED


@pytest.mark.cases(112)
def test_a_clock_ahead_of_the_storage_of_a_write_path(workspace: Workspace) -> None:
    """Data may lie in another storage than the location, by whose clock a file of today is of last week."""
    pool = workspace.home / "pool"
    pool.mkdir()
    workspace.table(write_data_path=f"file://{pool}", write_metadata_path=f"file://{workspace.home}/not/there/yet")
    just_written = workspace.plant(pool, "staged.parquet", days=9)
    now = workspace.clock.now()
    clocks = {f"file://{pool}": now - timedelta(days=9)}

    def time(folder: str) -> datetime:
        if folder.endswith("yet"):
            raise FolderMissing(folder)
        return clocks.get(folder, now)

    with_storage_time(workspace, time).refused(ORPHANS, "[clock_skew]", remove_orphans__max_delete_ratio=1)
    clocks.clear()
    with_storage_time(workspace, time).removes(just_written, remove_orphans__max_delete_ratio=1)


@pytest.mark.cases(112)
def test_a_clock_that_goes_ahead_while_files_wait(workspace: Workspace) -> None:
    """Their delay only looks over: they wait until the clocks agree."""
    folder = workspace.table()
    workspace.job(EXPIRE, deletion__delay_hours=24)
    files = workspace.files(folder)
    workspace.clock.advance(hours=25)
    (waits,) = reconcile_interrupted(ahead(workspace, 25).app.runtime)
    assert ("[clock_skew]" in waits, workspace.files(folder)) == (True, files)
    reconcile_interrupted(workspace.app.runtime)
    assert workspace.files(folder) < files


@pytest.mark.cases(112)
def test_a_clock_behind_the_storages(workspace: Workspace) -> None:
    """The delay of what it plans would be over as soon as somebody sets it right, and no undo were left."""
    workspace.table()
    ahead(workspace, -72).refused(EXPIRE, "[clock_skew]", deletion__delay_hours=24)


@dataclass(frozen=True)
class MendedClock:
    """An engine before whose work somebody sets the clock back by some days."""

    workspace: Workspace
    days: float

    def __getattr__(self, name: str) -> Any:
        self.workspace.clock.advance(days=-self.days)
        return getattr(self.workspace.app.engines, name)

    def runtime(self, knobs: Mapping[str, object]) -> Runtime:
        """Let the clock run ahead until the engine works."""
        self.workspace.detect()
        self.workspace.clock.advance(days=self.days)
        return replace(self.workspace.runtime(knobs), engine=cast("Engine", self))


@pytest.mark.cases(112)
@pytest.mark.parametrize("operation", [ORPHANS, EXPIRE])
def test_a_clock_that_is_mended_after_the_plan(workspace: Workspace, operation: Operation) -> None:
    """What was called old by the clock as it was then stays, though the clocks agree by now."""
    folder = workspace.table(hours=(5, 4, 3, 2))
    workspace.plant(folder, "data/staged.parquet", days=0.1)
    before, files = workspace.metadata(), workspace.files()
    request = Request(ref(NAME), (operation,), manual=True)
    (outcome,) = execute(MendedClock(workspace, 9).runtime(KNOBS_OF[operation]), request).outcomes
    assert outcome.reason.endswith("[clock_skew]"), outcome
    assert (workspace.metadata(), workspace.files()) == (before, files)


@pytest.mark.cases(112)
def test_a_clock_that_is_mended_after_it_ended_a_delay(workspace: Workspace) -> None:
    """Files that are not due by now wait on."""
    folder = workspace.table()
    workspace.job(EXPIRE, deletion__delay_hours=24)
    files = workspace.files(folder)
    (waits,) = reconcile_interrupted(MendedClock(workspace, 9).runtime({}))
    assert ("[clock_skew]" in waits, workspace.files(folder)) == (True, files)


def allow(workspace: Workspace, **settings: object) -> None:
    """A person sets the table's rule in the store."""
    rules, scope = workspace.app.runtime.store.rules, ref(NAME).parts
    version = next((rule.version for rule in rules.versions(scope)), 0)
    named = {name.replace("__", "."): value for name, value in settings.items()}
    assert rules.put(scope, named, "me", workspace.clock.now(), version) is not None


@pytest.mark.parametrize("forbids", [{"remove_orphans__mode": "report"}, {"remove_orphans__enabled": False}])
def test_orphans_wait_where_a_policy_removes_none_any_more(workspace: Workspace, forbids: dict[str, object]) -> None:
    """What was planned under a policy stays as long as it says otherwise, and goes when it allows it again."""
    (orphan,) = workspace.plant(workspace.table(), "data/orphan.parquet", days=9)
    allow(workspace, remove_orphans__mode="delete", remove_orphans__max_delete_ratio=1)
    workspace.detect()
    execute(workspace.app.runtime, Request(ref(NAME), (ORPHANS,)))
    workspace.clock.advance(hours=25)
    allow(workspace, **{"remove_orphans__mode": "delete", **forbids})
    (waits,) = reconcile_interrupted(workspace.app.runtime)
    assert ("icewright give-up" in waits, orphan.exists()) == (True, True)
    allow(workspace, remove_orphans__mode="delete")
    reconcile_interrupted(workspace.app.runtime)
    assert not orphan.exists()


@pytest.mark.parametrize("how", ["--set", "vacuum"])
def test_orphans_that_a_person_had_removed_against_the_policy_do_not_wait_for_it(
    workspace: Workspace, how: str
) -> None:
    """The mode of that command holds for the job to its end, as the policy's own is `report` all the time."""
    (orphan,) = workspace.plant(workspace.table(), "data/orphan.parquet", days=9)
    if how == "vacuum":
        vacuum(workspace.app.runtime, "lake")
    else:
        workspace.job(ORPHANS, deletion__delay_hours=24)
    workspace.clock.advance(hours=25)
    assert orphan.exists()
    reconcile_interrupted(workspace.app.runtime)
    assert not orphan.exists()


def test_files_in_nobodys_place_wait_no_longer_than_a_policy_lets_them_go(workspace: Workspace) -> None:
    """The rule that let them go is taken back while they wait: they stay, and the other files of the plan go."""
    landing = workspace.home / "landing" / "a.parquet"
    landing.parent.mkdir()
    pq.write_table(ROWS, landing)
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.add_files([f"file://{landing}"])
    table.overwrite(ROWS)
    later(workspace)
    expiry = {"expire_snapshots__retention_hours": 24, "expire_snapshots__min_snapshots_to_keep": 1}
    allow(workspace, **expiry, expire_snapshots__outside_location="delete")
    workspace.detect()
    (outcome,) = execute(workspace.app.runtime, Request(ref(NAME), (EXPIRE,), manual=True)).outcomes
    planned = {Path(file.path.removeprefix("file://")) for file in outcome.files}
    assert landing in planned
    allow(workspace, **expiry)
    workspace.clock.advance(hours=25)
    reconcile_interrupted(workspace.app.runtime)
    assert {path for path in planned if path.exists()} == {landing}


@pytest.mark.parametrize(
    ("operation", "goes_on"),
    [
        (ORPHANS, {"remove_orphans__mode": "report"}),
        (EXPIRE, {"expire_snapshots__delete_files": False}),
        (Operation.RECOVERY_POINTS, {"recovery_points__daily": 30}),
    ],
)
def test_storage_that_may_only_be_read(workspace: Workspace, operation: Operation, goes_on: dict[str, object]) -> None:
    """What deletes there is refused with the reason, in a dry run of orphan removal too; everything else goes on."""
    workspace.plant(workspace.table(), "data/orphan.parquet")
    read_only = with_storage_time(workspace, denied)
    if operation is not Operation.RECOVERY_POINTS:
        read_only.refused(operation, "[read_only_storage]")
    assert read_only.run(operation, **goes_on).state is OperationState.COMMITTED


def denied(_: str) -> datetime:
    """A storage where nothing may be written, not even to read its clock."""
    raise AccessDenied("file:///x may not be written: give this process the right to")


@pytest.mark.cases(112)
def test_rows_that_only_look_old(workspace: Workspace) -> None:
    """No row is deleted by a clock that is ahead of the storage's, or where the storage's clock cannot be read."""
    rows = pa.table({"at": pa.array([workspace.clock.now() - timedelta(days=32)], pa.timestamp("us", "UTC"))})
    workspace.icebergs["lake"].create_table(NAME, rows.schema).append(rows)
    before = workspace.metadata()
    for house, code in (
        (ahead(workspace, 3), "clock_skew"),
        (with_storage_time(workspace, denied), "read_only_storage"),
    ):
        refused = house.run(Operation.EXPIRE_ROWS)
        assert (refused.state, refused.reason[-len(code) - 1 : -1]) == (OperationState.SKIPPED, code), refused
    assert workspace.metadata() == before


def test_the_storage_says_its_own_time(workspace: Workspace) -> None:
    """The probe that asks for it leaves nothing behind."""
    folder = workspace.table()
    before = workspace.files()
    files = workspace.app.engines.orphans.deletion.files
    now = files.time(f"file://{folder}")
    assert abs(now.timestamp() - (folder / "metadata").stat().st_mtime) < 5
    assert workspace.files() == before


@pytest.mark.cases(151)
@pytest.mark.parametrize(
    "place",
    [
        "warehouse/sales/orders/reports",
        "warehouse/sales/orders/data/reports",
        "warehouse/sales/orders/data/part=a/reports",
        "warehouse/sales/orders/other/reports",
        "pool/reports",
        "pool/0110/1001/0011/01101001/sales/hidden/part=a",
    ],
)
def test_a_table_that_nobody_named_lies_below_another(workspace: Workspace, place: str) -> None:
    """Its catalog is not configured and its metadata lies elsewhere: its folder, which is not the table's, tells."""
    by_part = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    workspace.table(spec=by_part, write_data_path=f"file://{workspace.home}/pool")
    folder = workspace.home / place
    pond = workspace.icebergs["pond"]
    pond.create_namespace_if_not_exists("sales")
    rows = pa.table({"id": [1]})
    far = {"write.metadata.path": f"file://{workspace.home}/far"}
    for _ in range(2):
        pond.create_table_if_not_exists("sales.hidden", rows.schema, f"file://{folder}", properties=far).append(rows)
    workspace.unregister("sales.hidden", "pond")
    hidden = {workspace.age(path, 9) for path in folder.rglob("*.parquet")}
    state, reason = by_itself(workspace)
    assert (state, "[unnamed_files]" in reason) == (OperationState.SKIPPED, True), reason
    assert f"file://{folder}" in reason
    assert len(hidden) == 2
    assert all(path.exists() for path in hidden)


@pytest.mark.cases(151)
@pytest.mark.parametrize(
    "place",
    [
        "old/deeper",
        "data/the+part=a/lower",
        "data/other/the+part=a",
        "data/the+part=a/the+part=b",
        "data/0110/1001/x",
        "data/20260131",
    ],
)
def test_a_folder_below_those_of_the_table_is_no_folder_of_the_table(workspace: Workspace, place: str) -> None:
    """Partitions of the table, and folders with files of its own, do not speak for what lies deeper or beside."""
    hidden = workspace.plant(where_it_writes(workspace), f"{place}/live.parquet", days=9)
    state, reason = by_itself(workspace)
    assert (state, "[unnamed_files]" in reason, f"/{place}," in reason) == (OperationState.SKIPPED, True, True), reason
    assert all(path.exists() for path in hidden)


@pytest.mark.parametrize(
    "place",
    [
        *("", "data", "data/the+part=x", "data/0110/1001/0011/10110010/the+part=x", "data/deadbeef", "data/-f4vIQ"),
        *("old", "old/the+part=x", "new/the+part=x", "pool/0110/1001/0011/sales/orders"),
    ],
)
def test_what_a_write_left_goes_where_the_table_writes(workspace: Workspace, place: str) -> None:
    """In partitions and hashes, beside a file of the table, and in a write path, if unused, orphans are its own."""
    (orphan,) = workspace.plant(where_it_writes(workspace), f"{place}/orphan.parquet".lstrip("/"), days=9)
    state, reason = by_itself(workspace)
    assert (state, orphan.exists()) == (OperationState.COMMITTED, False), reason


def where_it_writes(workspace: Workspace) -> Path:
    """The folder of a table with a file in `data` and one in `old`, which is to write to `new` and `pool`."""
    by_part = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "the part"))
    craft = workspace.craft(spec=by_part)
    inside = craft.folder / "old" / "x.parquet"
    inside.parent.mkdir()
    file = craft.data({"id": [1], "part": ["a"]}, **{"the part": "a"})
    shutil.copyfile(file.path, inside)
    moved = WrittenFile(inside, dict(file.record) | {"file_path": f"file://{inside}"})
    craft.commit(workspace.clock.now() - timedelta(hours=400), [file, moved])
    folder = workspace.publish(craft)
    said = {"write.data.path": f"file:{folder}/new", "write.object-storage.path": f"{folder}/pool/"}
    said["write.object-storage.enabled"] = "True"
    edit(workspace.metadata_file(), lambda document: document["properties"].update(said))
    return folder


@pytest.mark.cases(151)
def test_a_table_whose_location_is_a_folder_of_others(workspace: Workspace) -> None:
    """Its writer put it where somebody's older files lie: nobody's scan deletes them before a person has looked."""
    folder = workspace.home / "warehouse" / "landing"
    landed = workspace.plant(folder, "monday.csv", "data/00000-0.parquet", days=30)
    landed |= workspace.plant(folder, "export/part-00000.parquet", days=9)  # what a job wrote there later
    craft = workspace.craft("sales.landing")
    workspace.commits(craft, [30, 20])
    path = craft.publish(register=False)
    for file in workspace.files(craft.folder):
        target = folder / file.relative_to(craft.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes().replace(str(craft.folder).encode(), str(folder).encode()))
    edit(folder / path.relative_to(craft.folder), lambda d: d.update({"location": f"file://{folder}"}))
    workspace.register("sales.landing", f"file://{folder / path.relative_to(craft.folder)}")
    for left in ("monday.csv", "export/part-00000.parquet", "data/00000-0.parquet"):
        state, reason = by_itself(workspace, name="sales.landing")
        assert (state, "[unnamed_files]" in reason) == (OperationState.SKIPPED, True), reason
        assert all(p.exists() for p in landed)
        (folder / left).unlink()
        landed.discard(folder / left)


@pytest.mark.cases(151)
@pytest.mark.parametrize("how", ["location", "write.data.path"])
def test_a_place_that_the_table_moved_to_needs_a_word(workspace: Workspace, how: str) -> None:
    """A writer points the table at another folder: its files wait for a person, whose word is enough."""
    workspace.table()
    assert by_itself(workspace)[0] is OperationState.COMMITTED
    grabbed = workspace.home / "warehouse" / "grabbed"
    victims = workspace.plant(grabbed, "data/part-0.parquet")
    _move(workspace, how, f"file://{grabbed}")
    workspace.clock.advance(days=8)
    state, reason = by_itself(workspace)
    assert (state, "[moved_location]" in reason) == (OperationState.SKIPPED, True), reason
    assert all(path.exists() for path in victims)
    adopt(workspace.app.runtime, ref(NAME))
    workspace.clock.advance(days=8)
    assert by_itself(workspace)[0] is OperationState.COMMITTED


def _move(workspace: Workspace, how: str, place: str) -> None:
    """A commit that moves the table."""
    old = workspace.metadata_file()
    new = old.with_name("00099-moved.metadata.json")
    document = json.loads(old.read_text())
    document["metadata-log"] = [{"metadata-file": f"file://{old}", "timestamp-ms": document["last-updated-ms"]}]
    document["last-updated-ms"] += 1
    if how == "location":
        document["location"] = place
    else:
        document["properties"][how] = place
    new.write_text(json.dumps(document))
    workspace.age(new, 10)
    workspace.unregister(NAME)
    workspace.register(NAME, f"file://{new}")


@pytest.mark.cases(107)
def test_a_deletion_that_failed_is_tried_again_until_the_file_is_gone(workspace: Workspace) -> None:
    """It waits longer after each failure, and goes when it can; until then the ledger says why."""
    folder = workspace.table()
    stuck = folder / "data" / "stuck.parquet"
    stuck.mkdir(parents=True)  # no file, so that it cannot be deleted as one
    store = workspace.app.runtime.store
    workspace.detect()
    base = workspace.metadata()
    job = (
        store.jobs.claim(ref(NAME), base.table_uuid, (ORPHANS,), workspace.app.runtime.trigger, workspace.clock.now())
        or ""
    )
    store.ledger.plan(
        job, base.ref, [FileAction(f"file://{stuck}", None, "data")], LedgerState.PLANNED, workspace.clock.now()
    )
    store.jobs.finish(job, JobState.PARTIAL, "", workspace.clock.now())
    runtime = replace(workspace.runtime(AUTOMATIC), process_has_ended=lambda _: True)
    reconcile_interrupted(runtime)
    (waiting,) = store.ledger.pending()
    assert (waiting.failed, bool(waiting.reason)) == (1, True)
    assert not store.ledger.unfinished(workspace.clock.now())
    workspace.clock.advance(minutes=6)
    reconcile_interrupted(runtime)
    workspace.clock.advance(minutes=6)
    assert not store.ledger.unfinished(workspace.clock.now()), "the second attempt waits longer than the first"
    stuck.rmdir()
    stuck.write_bytes(b"x")
    workspace.clock.advance(minutes=6)
    reconcile_interrupted(runtime)
    assert not stuck.exists()
    assert not store.ledger.pending()
    assert {row["state"] for row in store.ledger.files(job)}.isdisjoint(WAITING)


@pytest.mark.cases(107)
def test_a_person_gives_a_deletion_up(workspace: Workspace) -> None:
    """Nobody tries it again, and the ledger says so."""
    workspace.table()
    store = workspace.app.runtime.store
    job = workspace.job(EXPIRE, deletion__delay_hours=24).job_id or ""
    planned = len([r for r in store.ledger.files(job) if r["state"] == LedgerState.PLANNED])
    assert store.ledger.abandon(job, workspace.clock.now()) == planned > 0
    workspace.clock.advance(hours=30)
    assert not store.ledger.unfinished(workspace.clock.now())
    reconcile_interrupted(workspace.app.runtime)
    assert {row["state"] for row in store.ledger.files(job)} == {LedgerState.GIVEN_UP}


def test_files_wait_for_the_end_of_the_delay(workspace: Workspace) -> None:
    """Until then every expired snapshot's files are there, whatever scans the place; then they go, proved anew."""
    folder = workspace.table()
    files = workspace.files(folder)
    job = workspace.job(EXPIRE, deletion__delay_hours=24)
    assert "to be deleted after" in job.summary
    assert files <= workspace.files(folder)
    workspace.finds(())
    workspace.clock.advance(hours=23)
    reconcile_interrupted(workspace.app.runtime)
    assert files <= workspace.files(folder)
    workspace.clock.advance(hours=2)
    reconcile_interrupted(workspace.app.runtime)
    rows = workspace.app.runtime.store.ledger.files(job.job_id or "")
    planned = {Path(row["path"].removeprefix("file://")) for row in rows}
    assert len(planned) > 3
    assert files - workspace.files(folder) == planned
