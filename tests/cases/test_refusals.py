"""Refusals that people can act on: each names its rule and a remedy that works, and hinders nobody else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState, OperationState
from icewright.flow.adopt import adopt
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.ports import WAITING, LedgerState
from tests.cases.house import EXPIRE, NAME, ORPHANS, House, edit, ref

AUTOMATIC = {"remove_orphans.mode": "delete", "deletion.delay_hours": 0, "remove_orphans.max_delete_ratio": 1}


def by_itself(house: House, *, name: str = NAME, **knobs: object) -> tuple[OperationState, str]:
    """An orphan removal that nobody asked for: its state and why."""
    house.detect()
    runtime = house.runtime(AUTOMATIC | {k.replace("__", "."): v for k, v in knobs.items()})
    (outcome,) = execute(runtime, Request(ref(name), (ORPHANS,))).outcomes
    return outcome.state, outcome.reason


@pytest.mark.cases(104)
@pytest.mark.parametrize("how", ["denied", "missing", "broken"])
def test_a_table_that_cannot_be_read_pauses_no_other(house: House, how: str) -> None:
    """Healthy tables in other places are expired and cleaned, again and again, and none is paused."""
    house.table("sales.torn")
    healthy = [house.table(name) for name in ("sales.one", "sales.two", "sales.three")]
    orphans = [path for folder in healthy for path in house.plant(folder, "data/orphan.parquet", days=9)]
    metadata = house.metadata_file("sales.torn")
    if how == "missing":
        metadata.unlink()
    elif how == "broken":
        metadata.write_bytes(metadata.read_bytes()[:100])
    else:
        metadata.unlink()
        metadata.mkdir()  # as root reads what nobody may read: a folder in the file's place cannot be read either
    runtime = house.runtime(AUTOMATIC | {f"{op}.cooldown_minutes": 0 for op in Operation})
    for _ in range(4):
        run_cycle(runtime, ["lake"], force=True)
        house.clock.advance(hours=1)
    assert not any(path.exists() for path in orphans)
    rows = {row.ref.name: row.paused for row in house.app.runtime.store.tables("lake")}
    assert not any(rows[name] for name in ("one", "two", "three")), rows


@pytest.mark.cases(104)
def test_an_unreadable_table_in_the_same_place_still_counts(house: House) -> None:
    """What cannot be read may be anybody's: a table nested in this one's location stops its cleaning."""
    folder = house.table()
    house.table("in.ner", place="warehouse/sales/orders")
    house.metadata_file("in.ner").unlink()
    house.plant(folder, "data/orphan.parquet")
    house.refused(ORPHANS, "lake.in.ner", "[shared_location]")


@pytest.mark.cases(106)
def test_a_table_made_anew_in_the_place_of_a_dropped_one(house: House) -> None:
    """DROP without purge, CREATE of the name: refused with a remedy, and after that the old files go."""
    old = set(house.files(house.table(salt="old")))
    house.run(ORPHANS, dry_run=True)
    house.unregister(NAME)
    folder = house.table(salt="new")
    house.refused(ORPHANS, f"icewright adopt lake.{NAME}")
    found = adopt(house.app.runtime, ref(NAME), dry_run=True)
    assert len(found.tables) == 1
    adopt(house.app.runtime, ref(NAME))
    before = house.read(NAME)
    gone = {path for path in old if path.exists() and path != house.metadata_file()}
    house.removes(gone, remove_orphans__max_delete_ratio=1)
    assert house.read(NAME) == before
    assert house.files(folder)


@pytest.mark.cases(106)
def test_a_dropped_table_whose_files_are_gone_hinders_nobody(house: House) -> None:
    """DROP with purge, CREATE of the name: there is nothing to ask about."""
    folder = house.table(salt="old")
    house.run(ORPHANS, dry_run=True)
    house.unregister(NAME)
    for path in house.files(folder):
        path.unlink()
    house.table(salt="new")
    house.removes(house.plant(folder, "data/orphan.parquet"))


@pytest.mark.cases(106)
def test_what_lives_is_not_adopted(house: House) -> None:
    """The metadata of a table that some catalog names is never taken over."""
    folder = house.table()
    document = house.metadata_file().read_text()
    house.table("sales.other")
    other = house.metadata("sales.other")
    foreign = json.dumps(json.loads(document) | {"table-uuid": other.table_uuid})
    house.plant(folder, "metadata/00001-x.metadata.json", content=foreign.encode())
    house.refused(ORPHANS, "00001-x.metadata.json", "[foreign_metadata]")
    with pytest.raises(Exception, match=r"sales\.other.*\[shared_location\]"):
        adopt(house.app.runtime, ref(NAME))


@pytest.mark.cases(109)
@pytest.mark.parametrize("content", [b"", b'{"format-version": 2, "table-u', b"\x1f\x8b\x08\x00", b"not json"])
def test_debris_blocks_nothing(house: House, content: bytes) -> None:
    """An empty or cut metadata file is an orphan once it is old enough; a young one stays, and both are named."""
    folder = house.table()
    old = house.plant(folder, "metadata/00009-old.metadata.json", content=content)
    house.plant(folder, "metadata/00009-young.metadata.json", content=content, days=0)
    done = house.removes(old)
    assert sum("00009-" in note and "no metadata" in note for note in done.notes) == 2


@pytest.mark.cases(112)
def test_a_clock_ahead_of_the_storages(house: House) -> None:
    """Nine days ahead, files of today look old: nothing is called an orphan, and the reason says both times."""
    folder = house.table()
    orphans = house.plant(folder, "data/orphan.parquet")
    behind = house.clock.now() - timedelta(days=9)
    engines = house.app.engines
    orphan_removal = replace(engines.orphans, storage_time=lambda _: behind)
    runtime = replace(house.runtime(AUTOMATIC), engine=replace(engines, orphans=orphan_removal))
    house.detect()
    (outcome,) = execute(runtime, Request(ref(NAME), (ORPHANS,), manual=True)).outcomes
    assert (outcome.state, "[clock_skew]" in outcome.reason) == (OperationState.SKIPPED, True)
    assert all(path.exists() for path in orphans)


def test_the_storage_says_its_own_time(house: House) -> None:
    """The probe that asks for it leaves nothing behind."""
    folder = house.table()
    before = house.files()
    files = house.app.engines.orphans.deletion.files
    now = files.time(f"file://{folder}")
    assert abs(now.timestamp() - (folder / "metadata").stat().st_mtime) < 5
    assert house.files() == before


@pytest.mark.cases(151)
def test_a_table_whose_location_is_a_folder_of_others(house: House) -> None:
    """Its writer put it where somebody's older files lie: nobody's scan deletes them before a person has looked."""
    folder = house.home / "warehouse" / "landing"
    landed = house.plant(folder, "monday.csv", "data/part-0.parquet", days=30)
    craft = house.craft("sales.landing")
    house.commits(craft, [30, 20])
    path = craft.publish(register=False)
    for file in house.files(craft.folder):
        target = folder / file.relative_to(craft.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes().replace(str(craft.folder).encode(), str(folder).encode()))
    edit(folder / path.relative_to(craft.folder), lambda d: d.update({"location": f"file://{folder}"}))
    house.register("sales.landing", f"file://{folder / path.relative_to(craft.folder)}")
    for left in ("monday.csv", "data/part-0.parquet"):
        state, reason = by_itself(house, name="sales.landing")
        assert (state, "[unnamed_files]" in reason) == (OperationState.SKIPPED, True), reason
        assert all(p.exists() for p in landed)
        (folder / left).unlink()
        landed.discard(folder / left)


@pytest.mark.cases(151)
@pytest.mark.parametrize("how", ["location", "write.data.path"])
def test_a_place_that_the_table_moved_to_needs_a_word(house: House, how: str) -> None:
    """A writer points the table at another folder: its files wait for a person, whose word is enough."""
    house.table()
    assert by_itself(house)[0] is OperationState.COMMITTED
    grabbed = house.home / "warehouse" / "grabbed"
    victims = house.plant(grabbed, "data/part-0.parquet")
    _move(house, how, f"file://{grabbed}")
    house.clock.advance(days=8)
    state, reason = by_itself(house)
    assert (state, "[moved_location]" in reason) == (OperationState.SKIPPED, True), reason
    assert all(path.exists() for path in victims)
    adopt(house.app.runtime, ref(NAME))
    house.clock.advance(days=8)
    assert by_itself(house)[0] is OperationState.COMMITTED


def _move(house: House, how: str, place: str) -> None:
    """A commit that moves the table."""
    old = house.metadata_file()
    new = old.with_name("00099-moved.metadata.json")
    document = json.loads(old.read_text())
    document["metadata-log"] = [{"metadata-file": f"file://{old}", "timestamp-ms": document["last-updated-ms"]}]
    document["last-updated-ms"] += 1
    if how == "location":
        document["location"] = place
    else:
        document["properties"][how] = place
    new.write_text(json.dumps(document))
    house.age(new, 10)
    house.unregister(NAME)
    house.register(NAME, f"file://{new}")


@pytest.mark.cases(107)
def test_a_deletion_that_failed_is_tried_again_until_the_file_is_gone(house: House) -> None:
    """It waits longer after each failure, and goes when it can; until then the ledger says why."""
    folder = house.table()
    stuck = folder / "data" / "stuck.parquet"
    stuck.mkdir(parents=True)  # no file, so that it cannot be deleted as one
    store = house.app.runtime.store
    house.detect()
    base = house.metadata()
    job = store.claim(ref(NAME), base.table_uuid, (ORPHANS,), house.app.runtime.trigger, house.clock.now()) or ""
    store.plan_deletions(
        job, base.ref, [FileAction(f"file://{stuck}", None, "data")], LedgerState.PLANNED, house.clock.now()
    )
    store.finish(job, JobState.PARTIAL, "", house.clock.now())
    runtime = replace(house.app.runtime, process_has_ended=lambda _: True)
    reconcile_interrupted(runtime)
    (waiting,) = store.pending_deletions()
    assert (waiting.failed, bool(waiting.reason)) == (1, True)
    assert not store.unfinished(house.clock.now())
    house.clock.advance(minutes=6)
    reconcile_interrupted(runtime)
    house.clock.advance(minutes=6)
    assert not store.unfinished(house.clock.now()), "the second attempt waits longer than the first"
    stuck.rmdir()
    stuck.write_bytes(b"x")
    house.clock.advance(minutes=6)
    reconcile_interrupted(runtime)
    assert not stuck.exists()
    assert not store.pending_deletions()
    assert {row["state"] for row in store.deleted_files(job)}.isdisjoint(WAITING)


@pytest.mark.cases(107)
def test_a_person_gives_a_deletion_up(house: House) -> None:
    """Nobody tries it again, and the ledger says so."""
    house.table()
    store = house.app.runtime.store
    job = house.job(EXPIRE, deletion__delay_hours=24).job_id or ""
    planned = len([r for r in store.deleted_files(job) if r["state"] == LedgerState.PLANNED])
    assert store.abandon_deletions(job, house.clock.now()) == planned > 0
    house.clock.advance(hours=30)
    assert not store.unfinished(house.clock.now())
    reconcile_interrupted(house.app.runtime)
    assert {row["state"] for row in store.deleted_files(job)} == {LedgerState.GIVEN_UP}


def test_files_wait_for_the_end_of_the_delay(house: House) -> None:
    """Until then every expired snapshot's files are there, whatever scans the place; then they go, proved anew."""
    folder = house.table()
    files = house.files(folder)
    job = house.job(EXPIRE, deletion__delay_hours=24)
    assert "wait until" in job.summary
    assert files <= house.files(folder)
    house.finds(())
    house.clock.advance(hours=23)
    reconcile_interrupted(house.app.runtime)
    assert files <= house.files(folder)
    house.clock.advance(hours=2)
    reconcile_interrupted(house.app.runtime)
    rows = house.app.runtime.store.deleted_files(job.job_id or "")
    planned = {Path(row["path"].removeprefix("file://")) for row in rows}
    assert len(planned) > 3
    assert files - house.files(folder) == planned
