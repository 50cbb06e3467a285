"""Orphan removal over catalog, storage and ledger in memory: what is found, removed and written down, what stops it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from icewright.adapters.engines.service import remove_orphans
from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService, kind_of
from icewright.adapters.files.storage import listed
from icewright.core.errors import AccessDenied, Cancelled, IcewrightError, LeaseLost, Refused, TableReplaced
from icewright.core.policy import Operation
from icewright.core.runs import Outcome
from icewright.core.steps import RemoveOrphans
from icewright.core.table import SnapshotHold, TableMetadata, TableRef
from icewright.ports import FileStat, LedgerState, Registration, StepRequest
from icewright.testing.builders import LOCATION, NOW, UUID, lineage, metadata
from tests.adapters.test_expire_in_service import CONTENT, LISTED, Ledger, Storage
from tests.adapters.test_guard import guarded, version
from tests.adapters.test_registry import World, guest

DATA, FOLDER, POOL = f"{LOCATION}/data", f"{LOCATION}/metadata", "s3://lake/pool"
ORPHANS = [f"{DATA}/a.parquet", f"{DATA}/b.parquet", f"{FOLDER}/snap-9.avro", f"{FOLDER}/x-m0.avro"]
OLD = NOW - timedelta(days=5)
STEP = RemoveOrphans(NOW - timedelta(days=3), "delete", NOW - timedelta(days=1), {}, {}, 1, 3, None, 24)
AGE = timedelta(days=9)


@dataclass
class Shelf(Storage):
    """A storage that lists its files with their times."""

    times: dict[str, datetime] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)  # keys that no file of a table has
    opened: list[str] = field(default_factory=list)  # folders that were listed
    known: list[str] = field(default_factory=list)  # what the listing of a folder was told of
    during: Callable[[], None] = lambda: None  # what happens while it lists the table's location

    def stat(self, paths: Sequence[str], concurrency: int) -> Any:
        """Return what is there."""
        found = super().stat(paths, concurrency)
        return {path: FileStat(1, self.times.get(path, OLD)) if stat else None for path, stat in found.items()}

    def listing(
        self, folder: str, on_invalid_name: Callable[[str], None] = lambda _: None, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files below a folder."""
        self.known += known
        self.opened.append(folder)
        for name in self.strange if folder == LOCATION else ():
            on_invalid_name(name)
        paths = [path for batch in super().listing(folder) for path in batch["path"].to_pylist()]
        if folder == LOCATION:
            self.during()
        times = [int(self.times.get(path, OLD).timestamp() * 1_000_000) for path in paths]
        yield listed(paths, [1] * len(paths), times)

    def inventory(self, table: str, folder: str, on_invalid_name: Callable[[str], None]) -> Iterator[pa.RecordBatch]:
        """Yield the same from an inventory."""
        assert table == "an inventory"
        self.opened.append(table)
        return self.listing(folder, on_invalid_name)


@dataclass
class Findings(Ledger):
    """A ledger with what earlier scans found, and with what waits to be deleted."""

    found: Mapping[str, datetime] = field(default_factory=dict)
    waiting: Sequence[str] = ()

    def found_orphans(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        """Return what was found."""
        assert (ref.name, table_uuid) == ("orders", UUID)
        return self.found

    def waiting_paths(self, ref: TableRef, table_uuid: str) -> Sequence[str]:
        """Return what waits."""
        assert (ref.name, table_uuid) == ("orders", UUID)
        return self.waiting


class Scanning:
    """A table of three snapshots, in whose place four orphans lie."""

    def __init__(self, **own: Any) -> None:
        snapshots = lineage([240, 24, 2])
        self.own = metadata(snapshots=snapshots, **own)
        paths = [*ORPHANS, *(path for one in CONTENT.values() for path in one), *CONTENT]
        paths += [f"{FOLDER}/snap-{n}.avro" for n in (1, 2, 3)]
        self.files = Shelf(contents=dict.fromkeys(paths, b""))
        self.files.contents[self.own.metadata_location] = version(UUID)
        self.world, self.ledger = World(files=self.files), Findings()
        self.lake, self.guard = self.world.lake, guarded(self.world, self.own)
        self.holds: Callable[[TableMetadata], Sequence[SnapshotHold]] = lambda _: ()
        self.storage_time: Callable[[str], datetime] = lambda _: NOW

    def run(self, step: RemoveOrphans = STEP, **how: Any) -> Outcome:
        """Remove orphans."""
        deletion = Deletion(cast("Any", self.files), cast("Any", self.ledger), self.world.clock)
        removal = RemoveOrphansInService(deletion, self.guard, self.holds, self.storage_time)
        request = StepRequest("job", Operation.REMOVE_ORPHANS, step, self.own, **how)
        return removal.run(cast("Any", self.lake), request, step)

    def removes(self, *paths: str, step: RemoveOrphans = STEP, **how: Any) -> Outcome:
        """Remove exactly these."""
        before = {*self.files.contents}
        done = self.run(step, **how)
        assert before - self.files.contents.keys() == {file.path for file in done.files} == {*paths}
        return done

    def refused(self, code: str, step: RemoveOrphans = STEP, **how: Any) -> str:
        """Refuse with this code, and remove and write down nothing."""
        before = {*self.files.contents}
        with pytest.raises(Refused) as error:
            self.run(step, **how)
        assert error.value.code == code
        assert ({*self.files.contents}, self.ledger.events) == (before, [])
        return str(error.value)


def test_orphans_are_removed_and_all_is_written_down() -> None:
    """Old files that nothing reaches; young and hidden ones stay, and those that other jobs are to delete."""
    scanning = Scanning()
    waiting = f"{DATA}/waits.parquet"
    more = [f"{DATA}/young.parquet", f"{DATA}/_hidden/x.parquet", waiting]
    scanning.files.contents |= dict.fromkeys(more, b"")
    scanning.files.times[more[0]] = STEP.older_than
    scanning.ledger.waiting = [waiting]
    scanning.storage_time = lambda _: scanning.world.clock.advance(seconds=2)
    before = {path for path in scanning.files.contents if path.startswith(LOCATION)}
    dry = scanning.run(dry_run=True)
    assert ([file.path for file in dry.files], scanning.ledger.events) == (sorted(ORPHANS), [])
    assert dry.summary == "would remove 4 orphan files"
    done = scanning.removes(*ORPHANS)
    assert done.summary == "removed 4 orphan files"
    assert done.metrics == {
        "orphans_found": 4,
        "orphans_removed": 4,
        "files_failed": 0,
        "bytes_deleted": 4,
        "files_scanned": len(before),
        "every_hours": 24,
    }
    assert sorted(scanning.files.looked_at) == sorted([*CONTENT] * 4)  # twice in each scan, as a file lies elsewhere
    assert scanning.files.opened.count(FOLDER) == 1  # by the proof
    (_, forgotten), (_, recorded), (_, planned), *_ = scanning.ledger.events
    assert forgotten == (scanning.own.ref, [])
    assert {file.path for file in recorded[2]} == {*ORPHANS}
    at = NOW + timedelta(seconds=4)
    assert recorded[:2] + recorded[3:] == ("job", scanning.own.ref, LedgerState.FOUND, at)
    assert [(file.kind, file.modified) for file in planned[2]] == [
        ("data", OLD), ("data", OLD), ("manifest list", OLD), ("manifest", OLD),
    ]  # fmt: skip
    assert planned[3:] == (LedgerState.PLANNED, at, None, Operation.REMOVE_ORPHANS)
    assert scanning.ledger.names == ["forget_orphans", "plan", "plan", "claim", "record"]


@pytest.mark.parametrize(
    ("change", "gone", "said"),
    [
        ({"mode": "report"}, [], "found 4 orphan files, mode report removes none"),
        ({"mode": "confirm"}, ORPHANS[:1], "removed 1 orphan file, 3 wait for a second scan"),
        ({"mode": "confirm", "older_than": OLD}, [], "removed 0 orphan files"),
        ({"max_files": 2}, ORPHANS[:2], "removed 2 orphan files"),
        ({"max_files": 4}, ORPHANS, "removed 4 orphan files"),
        ({"delay": timedelta(hours=2)}, [], "4 orphan files to be removed after 2026-11-21 14:00 UTC"),
        ({"older_than": OLD}, [], "removed 0 orphan files"),
        ({"inventory": "an inventory"}, ORPHANS, "removed 4 orphan files"),
        ({"max_delete_ratio": 4 / 18}, ORPHANS, "removed 4 orphan files"),
    ],
)
def test_what_a_step_asks_for(change: dict[str, Any], gone: list[str], said: str) -> None:
    """Its mode, its limits and its delay; what was found and is an orphan no more is forgotten."""
    scanning, step = Scanning(), replace(STEP, **change)
    seen = {ORPHANS[0]: step.confirm_before, ORPHANS[1]: step.confirm_before + timedelta(seconds=1), "other": OLD}
    scanning.ledger.found = seen
    done = scanning.run(step)
    assert said == done.summary
    assert scanning.files.contents.keys().isdisjoint(gone)
    assert {*scanning.files.contents} >= {*ORPHANS} - {*gone}
    (_, forgotten), (_, recorded), *more = scanning.ledger.events
    orphans = [] if "older_than" in change else sorted(ORPHANS)[: step.max_files]
    assert {*forgotten[1]} == seen.keys() - {*orphans}
    assert [file.path for file in recorded[2]] == [path for path in orphans if path not in seen]
    chosen = {"report": [], "confirm": orphans[:1]}.get(step.mode, orphans)
    plans = [([file.path for file in planned[2]], planned[5]) for name, planned in more if name == "plan"]
    assert plans == ([(chosen, NOW + step.delay if step.delay else None)] if chosen else [])
    assert sorted(file.path for file in done.files) == (orphans if step.mode == "report" else chosen)
    later = [note for note in done.notes if "wait for the next run" in note]
    assert later == ["2 more orphans wait for the next run"] * (step.max_files == 2)
    assert ("an inventory" in scanning.files.opened) == bool(step.inventory)
    waiting = {"files_waiting": 4, "bytes_waiting": 4} if step.delay else {}
    assert {name: number for name, number in done.metrics.items() if name.endswith("_waiting")} == waiting


def test_the_table_is_read_after_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a commit during it takes in stays; a table of another uuid or place ends the scan."""
    scanning = Scanning()
    monkeypatch.setitem(LISTED, 9, (3,))
    late = replace(scanning.own.snapshots[-1], snapshot_id=9, manifest_list=ORPHANS[2])

    def commit(**change: Any) -> None:
        if scanning.lake.tables[scanning.own.ref] == scanning.own:
            now = scanning.lake.concurrently(scanning.own.ref, **change)
            scanning.files.contents[now.metadata_location] = version(UUID)
            scanning.files.times[now.metadata_location] = NOW

    scanning.files.during = lambda: commit(snapshots=(*scanning.own.snapshots, late))
    done = scanning.run()
    assert {file.path for file in done.files} == {*ORPHANS} - {ORPHANS[2]}
    assert done.metrics["orphans_found"] == 3
    for change in ({"table_uuid": "another"}, {"location": f"{LOCATION}2"}):
        scanning = Scanning()
        scanning.files.during = lambda change=change: commit(**change)  # type: ignore[misc]
        with pytest.raises(TableReplaced, match="was replaced while it was scanned: nothing is deleted"):
            scanning.run()
        assert scanning.ledger.events == []


def test_a_place_that_the_table_leaves_before_the_deletion() -> None:
    """What the scan found there stays: nobody knows any more whose it is."""
    scanning = Scanning()

    def leave() -> None:
        now = scanning.lake.concurrently(scanning.own.ref, location=f"{LOCATION}2")
        scanning.files.contents[now.metadata_location] = version(UUID)

    notes = scanning.run(check=leave).notes
    assert any("4 planned files kept: they lie outside the table's own location" in note for note in notes)
    assert scanning.files.contents.keys() >= {*ORPHANS}


def test_a_large_table_is_listed_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between some of the files that it reaches; the orphans are the same."""
    monkeypatch.setattr(remove_orphans, "_EVERY", 1)
    monkeypatch.setattr(remove_orphans, "_PART", 2)
    scanning = Scanning()
    summary = {"total-data-files": "19999", "total-delete-files": "1"}
    scanning.own = replace(
        scanning.own, snapshots=tuple(replace(one, summary=summary) for one in scanning.own.snapshots)
    )
    scanning.lake.tables[scanning.own.ref] = scanning.own
    scanning.removes(*ORPHANS, step=replace(STEP, check_totals=False))
    assert {*scanning.files.known} & {path for one in CONTENT.values() for path in one}


def test_lists_that_lack_files() -> None:
    """All are counted, if so asked, also those of a commit during the listing."""
    for totals in (True, False):
        scanning = Scanning()
        scanning.run(replace(STEP, check_totals=totals), dry_run=True)
        assert scanning.files.totals == [totals]


def test_names_under_two_prefixes() -> None:
    """One path under two schemes stops the scan; those that are said to be equal, or ignored, do not."""
    for how, scheme in (("error", "s3a"), ("ignore", "s3a"), ("error", "s3n")):
        scanning = Scanning()
        step = replace(STEP, prefix_mismatch=how, equal_schemes={"s3n": "s3", "s3": "s3"})
        first, *others = scanning.own.snapshots
        named = replace(first, manifest_list=str(first.manifest_list).replace("s3:", f"{scheme}:"))
        scanning.own = scanning.lake.put(replace(scanning.own, snapshots=(named, *others)))
        if (how, scheme) == ("error", "s3a"):
            scanning.refused("", step)
        else:
            done = scanning.removes(*ORPHANS, step=step)
            stay = "files under s3://lake stay: the table names them under s3a://lake"
            assert (stay in done.notes) == (scheme == "s3a")


def strange(name: str, *log: str, uuid: str = UUID) -> dict[str, bytes]:
    """A metadata file that the table does not reach."""
    entries = [{"metadata-file": one, "timestamp-ms": 1} for one in log]
    return {name: json.dumps({"format-version": 2, "table-uuid": uuid, "metadata-log": entries}).encode()}


def test_metadata_files_that_the_table_does_not_reach() -> None:
    """Another table's or another writer's stop the scan until they are adopted, debris goes, and other JSON too."""
    current = Scanning().own.metadata_location
    for folder, uuid, code in (
        (FOLDER, "other", "foreign_metadata"),
        (DATA, "other", "foreign_metadata"),
        (FOLDER, UUID, "successor"),
        ("s3://lake/left/metadata", UUID, "successor"),
        ("s3://lake/former", UUID, "successor"),
        ("s3://lake/left/metadata", "other", ""),  # which is looked at for successors alone
    ):
        scanning, path = Scanning(), f"{folder}/00002-b.metadata.json"
        for one in (
            Registration(scanning.own.ref, UUID, current, (LOCATION, "s3://lake/left")),
            Registration(replace(scanning.own.ref, name="former"), UUID, "s3://lake/former/00002-b.metadata.json", ()),
        ):
            scanning.world.recorded.rows[one.key] = one
        scanning.files.contents |= strange(path, current, uuid=uuid)
        if code:
            scanning.refused(code)
    scanning.removes(*ORPHANS)
    scanning = Scanning()
    for name in ("foreign", "newer"):
        path = f"{FOLDER}/{name}.metadata.json"
        scanning.files.contents |= strange(path, current, uuid="other" if name == "foreign" else UUID)
        scanning.world.recorded.words[UUID] = scanning.world.recorded.words.get(UUID, frozenset()) | {
            path.removeprefix("s3://lake")
        }
    names = [f"{FOLDER}/{name}.metadata.json" for name in ("cut", "json")]
    scanning.files.contents |= dict(zip(names, (b"{", b"{}"), strict=True))
    adopted = [f"{FOLDER}/{name}.metadata.json" for name in ("foreign", "newer")]
    notes = scanning.removes(*ORPHANS, *names, *adopted).notes
    assert f"{names[0]} is no metadata (empty, or cut); it goes when it is old enough" in notes
    assert f"{names[1]} is no metadata of a table, but JSON of something else" in notes


def test_what_lies_in_other_places() -> None:
    """A write path is scanned too; one that another table shares is not, nor is one that is not there."""
    scanning = Scanning(properties={"write.data.path": POOL, "write.object-storage.path": "s3://lake/none"})
    scanning.files.contents[f"{POOL}/orphan.parquet"] = b""
    assert len(scanning.run(replace(STEP, max_files=2), dry_run=True).files) == 2  # of both places together
    done = scanning.removes(*ORPHANS, f"{POOL}/orphan.parquet")
    assert "s3://lake/none is not scanned: there is no such folder" in done.notes
    scanning = Scanning(properties={"write.data.path": POOL})
    scanning.files.contents[f"{POOL}/orphan.parquet"] = b""
    scanning.world.pond.put(guest(location=POOL))
    notes = scanning.removes(*ORPHANS).notes
    assert any(f"{POOL} is not scanned: it overlaps the place of pond" in note for note in notes)
    scanning = Scanning()
    scanning.world.files.folders[TableRef("pond", ("sales",), "guest")] = [DATA]  # type: ignore[index]
    scanning.world.pond.put(guest())
    done = scanning.removes(*ORPHANS[2:])
    assert any("2 files kept: pond.sales.guest, which uses files there, cannot be read" in note for note in done.notes)
    scanning = Scanning()
    had, current = (LOCATION, DATA), scanning.own.metadata_location
    one = Registration(scanning.own.ref, UUID, current, had)  # DATA was a place of its own, and then the other's
    left = Registration.of(guest(location=DATA), ())
    scanning.world.recorded.rows |= {one.key: one, left.key: left}
    scanning.world.recorded.words[UUID] = frozenset({LOCATION})
    moved = scanning.world.pond.put(guest())
    scanning.files.contents[moved.metadata_location] = version("guest")
    assert {file.path for file in scanning.run(dry_run=True).files} == {*ORPHANS[2:]}


def test_a_file_that_may_be_a_live_one_under_another_path() -> None:
    """A live file that was not listed where the table has it may be the orphan of its name."""
    scanning = Scanning()
    CONTENT[f"{FOLDER}/m3"].append("s3://elsewhere/A.parquet")
    try:
        notes = scanning.removes(*ORPHANS[1:]).notes
    finally:
        CONTENT[f"{FOLDER}/m3"].pop()
    assert any("a live file of the same name was not found" in note and ORPHANS[0] in note for note in notes)
    lost = f"{DATA}/new"
    for step, refused in ((STEP, True), (replace(STEP, inventory="an inventory"), False)):
        scanning = Scanning()
        scanning.files.unlisted.add(lost)
        if refused:
            assert lost in scanning.refused("incomplete_listing", step)
        else:
            scanning.removes(*ORPHANS, step=step)


def test_what_stops_every_scan() -> None:
    """A place that is not allowed, a reply that lacks something, clocks that disagree, too many orphans."""
    scanning = Scanning()
    scanning.guard = replace(scanning.guard, allowed_locations={"lake": ["s3://lake/else"]})
    scanning.refused("outside_allowed_locations")
    scanning = Scanning()
    own, scanning.own = scanning.own, scanning.lake.put(replace(scanning.own, snapshots=scanning.own.snapshots[1:]))
    cast("Any", scanning.lake).load_from_file = lambda _: own
    scanning.refused("reply_differs")
    scanning = Scanning()
    scanning.refused("max_delete_ratio", replace(STEP, max_delete_ratio=4 / 19))
    for at, planned_at in ((NOW + timedelta(hours=2), None), (NOW, NOW + timedelta(hours=2))):
        scanning = Scanning()
        scanning.storage_time = lambda _, at=at: at  # type: ignore[misc]
        scanning.refused("clock_skew", planned_at=planned_at)

    def denied(_: str) -> datetime:
        raise AccessDenied("read only")

    scanning = Scanning()
    scanning.storage_time = denied
    scanning.refused("read_only_storage")
    assert scanning.run(replace(STEP, mode="report")).metrics["orphans_found"] == 4


@pytest.mark.parametrize("case", ["moved", "document", "old", "folder"])
def test_what_an_automatic_scan_leaves_to_a_person(case: str) -> None:
    """A place that it came to, files that no writer of tables leaves, or older than the table, or in a folder apart."""
    scanning = Scanning()
    apart = f"{LOCATION}/apart/x.parquet"
    match case:
        case "moved":
            scanning.own = scanning.lake.put(replace(scanning.own, properties={"write.data.path": POOL}))
            places, current = (LOCATION, POOL), scanning.own.metadata_location
            one = Registration(scanning.own.ref, UUID, current, places, first_places=(LOCATION,))
            scanning.world.recorded.rows[one.key] = one
            scanning.files.contents[f"{POOL}/orphan.parquet"] = b""
        case "document":
            scanning.files.contents[f"{FOLDER}/x.metadata.json"] = b"{}"
        case "old":
            scanning.files.times[ORPHANS[0]] = NOW - timedelta(days=99)
        case "folder":
            scanning.files.contents[apart] = b""
    code = "moved_location" if case == "moved" else "unnamed_files"
    scanning.refused(code, automatic=True)
    if case == "moved":
        assert scanning.run(replace(STEP, mode="report"), automatic=True).metrics["orphans_found"] == 5
    else:
        assert len(scanning.run(dry_run=True).files) >= len(ORPHANS)


def test_an_automatic_scan_without_a_doubt() -> None:
    """It removes what a person's scan removes."""
    Scanning().removes(*ORPHANS, automatic=True)


def test_a_job_is_stopped() -> None:
    """Before its plan nothing is planned; before its first deletion the plan is dropped, if its table is not lost."""
    cancelled, lost = Cancelled("enough"), LeaseLost("another process has it")
    for error, asked, names in ((cancelled, 1, []), (cancelled, 2, ["plan", "record"]), (lost, 2, ["plan"])):
        scanning, times = Scanning(), iter(range(1, 9))
        before = {*scanning.files.contents}

        def check(times: Iterator[int] = times, asked: int = asked, error: IcewrightError = error) -> None:
            if next(times) == asked:
                raise error

        with pytest.raises(type(error)):
            scanning.run(check=check)
        assert {*scanning.files.contents} == before
        assert scanning.ledger.names == ["forget_orphans", "plan", *names]


@pytest.mark.cases(102)
def test_a_pin_that_comes_during_the_scan() -> None:
    """It stops the deletion: the reader's snapshot may be one that the scan did not see any more."""
    scanning, before = Scanning(), set[str]()
    before |= scanning.files.contents.keys()
    scanning.storage_time = lambda _: scanning.world.clock.advance(seconds=2)
    scanning.holds = lambda _: [SnapshotHold(1, "flink", NOW + timedelta(days=1), NOW + timedelta(seconds=1))]
    assert "flink holds snapshot 1" in " ".join(scanning.run().notes)
    assert {*scanning.files.contents} == before


def test_keys_that_no_file_of_a_table_has() -> None:
    """Twenty of them are named."""
    for more in (0, 3):
        scanning = Scanning()
        scanning.files.strange = [f"{LOCATION}//{n}" for n in range(20 + more)]
        notes = scanning.run(dry_run=True).notes
        assert sum("is left alone: no file of a table can have such a name" in note for note in notes) == 20
        assert [note for note in notes if "more such names" in note] == ["3 more such names"] * bool(more)


def test_kinds_of_files_by_their_names() -> None:
    """As Iceberg's writers name them."""
    names = ["1.metadata.json", "1.metadata.json.gz", "snap-1.avro", "snap-m0/x-m0.avro", "1.json", "snap-1.parquet"]
    kinds = ["metadata", "metadata", "manifest list", "manifest", "data", "data"]
    assert [kind_of(f"{DATA}/{name}") for name in names] == kinds


def test_files_that_another_service_counts() -> None:
    """The number of old files that the table does not reach, whoever's they are."""
    scanning = Scanning()
    deletion = Deletion(cast("Any", scanning.files), cast("Any", scanning.ledger), scanning.world.clock)
    removal = RemoveOrphansInService(deletion, scanning.guard, scanning.holds, scanning.storage_time)
    assert removal.count(scanning.own, STEP.older_than) == 4
