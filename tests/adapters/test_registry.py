"""The registry of tables over catalogs in memory: who else may read a file, whoever shows it, answers or hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from icewright.adapters.engines.service import registry as module
from icewright.adapters.engines.service.registry import TableRegistry
from icewright.adapters.engines.service.surroundings import OtherTable, Surroundings
from icewright.core.errors import (
    AccessDenied,
    CatalogUnavailable,
    FolderMissing,
    IcewrightError,
    MetadataUnreadable,
    Refused,
    StorageUnavailable,
    TableNotFound,
    TableReplaced,
    UnsupportedTable,
)
from icewright.core.paths import directory_key
from icewright.core.places import Spelling
from icewright.core.table import Snapshot, TableMetadata, TableRef
from icewright.ports import Catalog, Dataset, FileStat, Pointer, Registration, TableFiles, deadlines
from icewright.ports.deadlines import CatalogCalls
from icewright.ports.work import WorkerThreads
from icewright.testing import FixedClock, MemoryCatalog
from icewright.testing.builders import NOW, REF, metadata

POND = TableRef("pond", ("sales",), "guest")
TWIN = TableRef("pond", ("sales",), "twin")


@dataclass
class Links:
    """Files that are never read but by links and by the folders that a table's manifests name."""

    links: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[TableRef, Sequence[str]] = field(default_factory=dict)
    broken: dict[TableRef | str, IcewrightError] = field(default_factory=dict)  # by name or metadata file
    asked: dict[TableRef, list[int]] = field(default_factory=dict)  # the snapshots whose manifests were looked at

    def canonical(self, folder: str) -> str:
        """Return where a link leads."""
        return self.links.get(folder, folder)

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        """Return it of many."""
        return {folder: self.canonical(folder) for folder in folders}

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return that none of them exists."""
        assert concurrency
        return dict.fromkeys(paths)

    def listing(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Raise that there is no such folder."""
        raise FolderMissing(folder)

    def outside(self, table: TableMetadata, snapshots: Sequence[Snapshot]) -> Sequence[str]:
        """Return the folders outside the table's places."""
        self.asked.setdefault(table.ref, []).extend(s.snapshot_id for s in snapshots)
        if error := self.broken.get(table.ref) or self.broken.get(table.metadata_location):
            raise error
        return tuple(self.folders.get(table.ref, ()))


@dataclass
class Recorded:
    """Registrations in memory, and how often they were written."""

    rows: dict[tuple[TableRef, str], Registration] = field(default_factory=dict)
    written: list[Sequence[Registration]] = field(default_factory=list)
    words: dict[str, frozenset[str]] = field(default_factory=dict)

    def list(self) -> Sequence[Registration]:
        """Return all."""
        return [*self.rows.values()]

    def record(self, registrations: Sequence[Registration], now: datetime) -> None:
        """Keep what was read."""
        assert now >= NOW
        self.written.append(registrations)
        self.rows |= {one.key: one for one in registrations}

    def adopted(self, table_uuid: str) -> frozenset[str]:
        """Return what a person said."""
        return self.words.get(table_uuid, frozenset())


class Metastore(MemoryCatalog):
    """A catalog that lists datasets of other formats too."""

    datasets: Sequence[Dataset] = ()
    stale: Sequence[Pointer] | None = None  # what it lists, if not what it has

    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return tables and datasets."""
        return self.pointers() if self.stale is None else self.stale, self.datasets


@dataclass
class World:
    """Two catalogs, `lake` and `pond`, over one storage, and the registry of what they name."""

    lake: MemoryCatalog = field(default_factory=lambda: MemoryCatalog("lake"))
    pond: Metastore = field(default_factory=lambda: Metastore("pond"))
    files: Links = field(default_factory=Links)
    recorded: Recorded = field(default_factory=Recorded)
    failing: dict[str, str] = field(default_factory=dict)
    deadly: dict[TableRef, str] = field(default_factory=dict)
    clock: FixedClock = field(default_factory=FixedClock)
    elsewhere: list[tuple[str, Sequence[str]]] = field(default_factory=list)
    transactions: int = 0

    def __post_init__(self) -> None:
        catalogs = {one.name: cast("Catalog", one) for one in (self.lake, self.pond)}
        self.registry = TableRegistry(
            catalogs,
            cast("TableFiles", self.files),
            cast("Any", self.recorded),
            self.clock,
            CatalogCalls(dict.fromkeys(catalogs, timedelta(seconds=5))),
            {"lake": ["s3://lake"], "pond": ["s3://pond"]},
            ("puddle",),
            lambda: self.failing,
            deadly=lambda: self.deadly,
            elsewhere=lambda: self.elsewhere,
        )

    def around(self, table: TableMetadata, spelling: Spelling = Spelling()) -> Surroundings:  # noqa: B008 - frozen
        """Return who else is there."""
        return self.registry.around(self.registry.recorded(table, spelling))

    def others(self, table: TableMetadata) -> dict[str, OtherTable]:
        """Return the others by what messages call them."""
        return {str(one): one for one in self.around(table).others}


def guest(
    uuid: str = "guest", ref: TableRef = POND, location: str = "s3://pond/sales/guest", **more: Any
) -> TableMetadata:
    """Another table."""
    where = f"{location}/metadata/00001-g.metadata.json"
    return metadata(ref=ref, table_uuid=uuid, location=location, **{"metadata_location": where, **more})


def folders(one: OtherTable) -> set[str]:
    """The places of another table."""
    return {place.folder for place in one.places}


def test_every_catalog_and_server_is_asked_who_else_is_there() -> None:
    """Tables of each catalog, those that its server shows beside them, datasets, and dropped ones; each by its name."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.lake.beyond.append(guest("near", TableRef("branch", ("sales",), "near"), "s3://lake/near"))
    world.pond.beyond.append(guest("far", TableRef("branch", ("sales",), "far"), "s3://pond/far"))
    world.pond.datasets = [Dataset(TableRef("pond", ("hive",), "logs"), ("s3://lake/logs", "s3://lake/more"))]
    world.files = Links(folders={POND: ["s3://lake/sales/orders/data"]})
    world.registry.files = cast("TableFiles", world.files)
    others = world.others(own)
    format_of_others = "pond.hive.logs (a table of another format at s3://lake/logs, s3://lake/more)"
    assert set(others) == {"pond.sales.guest", "branch.sales.far", "branch.sales.near", format_of_others}
    assert {str(one): one.via for one in others.values()} == dict.fromkeys(others, "pond") | {
        "branch.sales.near": "lake"
    }
    dataset = others[format_of_others].registration
    assert (dataset.table_uuid, dataset.metadata_location) == ("", "")
    assert {place.folder for place in others["pond.sales.guest"].folders} == {"/sales/orders/data/"}
    assert [one.is_dataset for one in others.values()].count(True) == 1
    assert folders(others[format_of_others]) == {"/logs/", "/more/"}
    assert others[format_of_others].identity == format_of_others
    assert world.registry.metadata_of(others["branch.sales.far"]).table_uuid == "far"
    assert world.registry.metadata_of(others["pond.sales.guest"]).table_uuid == "guest"
    del world.pond.tables[POND]
    dropped = world.others(own)["pond.sales.guest (which no catalog names any more)"]
    assert (dropped.is_dropped, dropped.unlisted, dropped.via, dropped.identity) == (True, False, "pond", "guest")
    del world.registry.catalogs["pond"]  # type: ignore[attr-defined]
    gone = world.others(own)["pond.sales.guest (whose catalog is not configured any more)"]
    assert (gone.is_dropped, gone.unlisted) == (False, True)


def test_only_tables_that_moved_are_read_and_recorded() -> None:
    """A second question reads nothing and writes nothing; a commit elsewhere makes that table alone be read again."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.around(own)
    world.pond.put(guest())
    world.around(own)
    assert [key[0] for key in world.recorded.rows] == [REF, POND]
    world.files.asked.clear()
    assert set(world.others(own)) == {"pond.sales.guest"}
    assert (world.files.asked, len(world.recorded.written)) == ({}, 2)
    world.around(world.lake.concurrently(REF))
    assert (set(world.files.asked), len(world.recorded.written)) == ({REF}, 2)
    world.lake.put(own)
    world.files.asked.clear()
    world.pond.concurrently(POND, location="s3://pond/moved")
    moved = world.others(own)["pond.sales.guest"]
    assert set(world.files.asked) == {POND}
    assert folders(moved) >= {"/sales/guest/", "/moved/"}
    assert moved.pointer == world.pond.pointers()[0]
    world.around(world.lake.concurrently(REF, location="s3://lake/moved"))
    assert world.recorded.rows[own.ref, own.table_uuid].metadata_location == own.metadata_location
    assert "s3://lake/moved" in world.recorded.rows[own.ref, own.table_uuid].places


def test_the_snapshots_since_the_last_look_are_looked_at() -> None:
    """Of a table that was seen before, those that are newer or named by refs; else the newest hundred."""
    world, own = World(), metadata(tuple(range(300, 0, -1)))
    world.lake.put(own)
    world.around(own)
    first = len(world.files.asked[REF])
    assert first < 300
    world.files.asked.clear()
    world.recorded.rows = {key: replace(one, metadata_location="before") for key, one in world.recorded.rows.items()}
    world.around(world.lake.concurrently(REF))
    assert 0 < len(world.files.asked[REF]) < first


@pytest.mark.parametrize(
    ("seen", "waits"),
    [
        (guest(), False),  # in its own place
        (guest(location="s3://lake/sales/orders/inner"), True),
        (metadata(location="s3://pond/once"), True),  # the table itself, before it moved
        (metadata(ref=TableRef("lake", ("sales",), "old name"), location="s3://pond/once"), True),
        (metadata(table_uuid="its predecessor", location="s3://pond/once"), True),
        (guest("a neighbour", TableRef("lake", ("sales",), "else"), "s3://pond/once"), False),
        (guest("a nested one", TableRef("lake", ("sales",), "else"), "s3://lake/sales/orders/inner"), False),
    ],
)
def test_a_catalog_that_does_not_answer_is_missed_where_its_tables_could_be(seen: TableMetadata, waits: bool) -> None:
    """Its declared places and those where it was ever seen count, and all that the table ever had."""
    world, own = World(), metadata()
    world.lake.put(own)
    one = Registration.of(replace(seen, metadata_location=f"{seen.location}/metadata/0.metadata.json"), ())
    world.recorded.rows[one.key] = one
    world.pond.down = CatalogUnavailable("pond is away", "pond")
    if waits:
        with pytest.raises(
            CatalogUnavailable, match=r"catalog pond does not answer.*\(pond is away\).*pond\.allowed"
        ) as e:
            world.around(own)
        assert e.value.catalog == "pond"
    else:
        assert {one.registration.ref for one in world.around(own).others} <= {seen.ref}
    world.registry.declared = {}
    with pytest.raises(CatalogUnavailable):
        world.around(own)


@pytest.mark.cases(99)
@pytest.mark.parametrize(
    ("table", "folder"), [(metadata(), "s3://pond/landing"), (guest(), "s3://lake/sales/orders/data")]
)
def test_files_outside_of_their_tables_places_may_be_shared_too(table: TableMetadata, folder: str) -> None:
    """What either table took in from where the other may write, as `add_files` does, waits for a silent catalog."""
    world, own = World(), metadata()
    world.lake.put(own)
    one = Registration.of(table, [folder])
    world.recorded.rows[one.key] = one
    world.pond.down = CatalogUnavailable("pond is away", "pond")
    with pytest.raises(CatalogUnavailable, match="may share places"):
        world.around(own)


def test_a_table_made_anew_under_the_name_of_an_old_metadata_file() -> None:
    """Some catalogs count versions (`v1.metadata.json`): what is recorded of the file was another table's."""
    world, own = World(), metadata()
    world.lake.put(own)
    one = Registration.of(replace(own, table_uuid="its predecessor"), ())
    world.recorded.rows[one.key] = one
    surroundings = world.around(own)
    assert own.table_uuid in {table_uuid for _, table_uuid in world.recorded.rows}
    assert [other.registration.table_uuid for other in surroundings.others] == ["its predecessor"]


def test_what_the_store_records_is_read_at_one_moment() -> None:
    """One transaction reads registrations, what fails and what was adopted."""
    world, depth, read = World(), [0], list[int]()

    @contextmanager
    def reading_together() -> Iterator[None]:
        depth[0] += 1
        yield
        depth[0] -= 1

    world.registry.reading_together = reading_together
    world.registry.failing = lambda: dict(read.append(depth[0]) or ())  # type: ignore[func-returns-value]
    world.registry.elsewhere = lambda: tuple(read.append(depth[0]) or ())  # type: ignore[func-returns-value]
    world.registry.recorded(metadata(), Spelling())
    assert read == [1, 1]


def test_a_write_path_or_metadata_folder_may_be_another_catalogs() -> None:
    """A table whose files go where a silent catalog's tables lie waits for that catalog."""
    for where in (
        {"properties": {"write.data.path": "s3://pond/x"}},
        {"metadata_location": "s3://pond/m/1.metadata.json"},
    ):
        world, own = World(), metadata(**cast("Any", where))
        world.lake.put(own)
        world.pond.down = AccessDenied("pond may not be listed")
        with pytest.raises(CatalogUnavailable, match="may not be listed"):
            world.around(own)


def test_the_tables_own_catalog_has_to_answer() -> None:
    """Whatever places are declared; and one that is known to fail is asked all the same, as the job needs it anyway."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.failing["lake"] = "down an hour ago"
    world.around(own)
    world.lake.down = CatalogUnavailable("lake is away", "lake")
    with pytest.raises(CatalogUnavailable, match=r"^lake is away"):
        world.around(own)


def test_a_catalog_that_is_known_to_fail_is_not_asked() -> None:
    """Its listing may hang: what is recorded of it counts, and it is missed where its tables could be."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.failing["pond"] = "it hangs"
    assert world.around(own).others == ()
    world.registry.declared = {}
    with pytest.raises(CatalogUnavailable, match="it hangs"):
        world.around(own)


def test_a_copy_of_a_catalog_does_not_hide_the_catalog() -> None:
    """A database may hold another catalog that bears a configured name: its tables get names of their own."""
    world, own = World(), metadata()
    world.lake.put(own)
    copied = metadata(
        table_uuid="copy", location="s3://pond/copy", metadata_location="s3://pond/copy/metadata/1.metadata.json"
    )
    world.pond.beyond = [copied]
    others = world.around(own).others
    assert [str(one) for one in others] == ["lake@pond.sales.orders"]
    assert (others[0].via, others[0].registration.table_uuid) == ("pond", "copy")
    apart = TableRef("lake", ("sales",), "apart")
    world.lake.put(guest("apart", apart, "s3://lake/apart"))
    world.pond.beyond.append(guest("copy of it", apart, "s3://pond/copies"))
    named = sorted(map(str, world.around(own).others))
    assert named == ["lake.sales.apart", "lake@pond.sales.apart", "lake@pond.sales.orders"]
    moved = world.lake.concurrently(REF)
    world.pond.beyond = [moved]
    assert [str(one) for one in world.around(moved).others if one.pointer is not None] == ["lake.sales.apart"]
    world = World(lake=Metastore("lake"))
    for table in (own, guest("apart", apart, "s3://lake/apart")):
        world.lake.put(table)
    cast("Metastore", world.lake).stale = world.lake.pointers()
    world.pond.beyond = [world.lake.concurrently(apart)]  # between both listings
    assert [str(one) for one in world.around(own).others] == ["lake.sales.apart"]


def test_what_cannot_be_read_keeps_its_place() -> None:
    """Where its metadata lie, and all that it had; it is asked again only after a while."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.around(own)
    world.pond.concurrently(POND, location="s3://pond/moved")
    world.files.broken[POND] = MetadataUnreadable("cut short")
    for _ in range(2):
        (one,) = world.around(own).others
        assert (one.problem, one.is_dropped, one.via) == ("cut short", False, "pond")
        assert folders(one) >= {"/sales/guest/", "/moved/"}
        assert one.registration.table_uuid == "guest"
        assert one.registration.metadata_location == world.pond.tables[POND].metadata_location
        assert set(one.registration.places) >= {"s3://pond/sales/guest", "s3://pond/moved"}
    del world.files.broken[POND]
    world.clock.advance(minutes=4, seconds=59)
    assert world.around(own).others[0].problem
    world.clock.advance(seconds=1)
    assert not world.around(own).others[0].problem


@pytest.mark.parametrize("error", [TableNotFound("x"), AccessDenied("x"), StorageUnavailable("x")])
def test_a_table_that_was_never_read_counts_by_its_metadata_file(error: IcewrightError) -> None:
    """Nothing else is known of it: the folder above its metadata is its place."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.files.broken[POND] = error
    (one,) = world.around(own).others
    assert (folders(one), one.registration.table_uuid, one.identity) == (
        {"/sales/guest/"},
        "",
        "/sales/guest/metadata/00001-g.metadata.json",
    )
    assert one.problem == "x"


def test_a_table_whose_evaluation_killed_a_process_is_not_read() -> None:
    """It would kill this one too: it counts as unreadable."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.deadly[POND] = "it ended a process"
    (one,) = world.around(own).others
    assert one.problem == "it ended a process"
    assert POND not in world.files.asked


def test_a_storage_that_is_away_is_not_waited_for_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many failures in a row no further table of the place is read; any other answer ends the row."""
    monkeypatch.setattr(module, "_READERS", 3)
    monkeypatch.setattr(module, "WorkerThreads", lambda _: WorkerThreads(1))
    world, own = World(), metadata()
    world.lake.put(own)
    away, cut = StorageUnavailable("away"), MetadataUnreadable("cut")
    for number, answer in enumerate([away, away, cut, away, away, None, away, away, away, away, away]):
        ref = TableRef("pond", ("sales",), f"t{number:02}")
        world.pond.put(guest(f"u{number}", ref, f"s3://pond/t{number}"))
        world.files.broken |= {} if answer is None else {ref: answer}
    problems = {one.registration.ref.name: one.problem for one in world.around(own).others}
    skipped = [name for name, problem in problems.items() if "s3://pond does not answer for other tables" in problem]
    assert skipped == ["t09", "t10"]


def test_a_listing_may_be_older_than_what_is_loaded() -> None:
    """A table that commits between both is live all the same."""
    world, own = World(), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    world.pond.stale = world.pond.pointers()
    world.pond.concurrently(POND)
    (one,) = world.around(own).others
    assert (one.is_dropped, one.pointer) == (False, world.pond.stale[0])


def test_two_servers_may_show_one_name() -> None:
    """One that can be read counts beside one that cannot."""
    world, own, far = World(), metadata(), TableRef("branch", ("sales",), "far")
    world.lake.put(own)
    world.lake.beyond = [guest("a", far, "s3://pond/a")]
    world.pond.beyond = [guest("b", far, "s3://pond/b")]
    world.files.broken[world.pond.beyond[0].metadata_location] = MetadataUnreadable("cut")
    found = [(one.problem, folders(one)) for one in world.around(own).others]
    assert ("", {"/a/"}) in found
    assert any(problem == "cut" and "/b/" in places for problem, places in found)


def test_a_catalog_that_comes_to_hang_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once others say that it does not answer; the table's own one has all of its time."""
    monkeypatch.setattr(deadlines, "_LOOK_SECONDS", 0.01)
    ended = threading.Event()
    short = {"lake": timedelta(seconds=0.2)}
    for name, limits, words in (
        ("pond", {}, "does not answer: others say so"),
        ("lake", short, "did not answer within 0.2 s"),
    ):
        world, own = World(), metadata()
        world.lake.put(own)
        world.registry.declared = {}
        world.registry.calls = CatalogCalls({"lake": timedelta(minutes=1), "pond": timedelta(minutes=1)} | limits)

        def hangs(failing: dict[str, str] = world.failing, name: str = name) -> Sequence[Pointer]:
            failing[name] = "others say so"
            ended.wait()
            return ()

        monkeypatch.setattr(getattr(world, name), "pointers", hangs)
        with pytest.raises(CatalogUnavailable, match=words):
            world.around(own)
    ended.set()


def test_an_earlier_name_of_the_table_is_the_table() -> None:
    """Its places, first ones and metadata folders count as own; a twin that is listed is another table."""
    world = World()
    before = metadata(ref=TableRef("lake", ("sales",), "old name"), location="s3://lake/old")
    before = replace(before, metadata_location="s3://lake/old/metadata/00001-a.metadata.json")
    world.lake.put(before)
    world.around(before)
    own = replace(before, ref=REF, location="s3://lake/new", metadata_location="s3://lake/new/metadata/2.metadata.json")
    world.lake.put(own)
    (twin,) = world.around(own).others
    assert twin.registration.table_uuid == own.table_uuid
    del world.lake.tables[before.ref]
    world.pond.put(guest())
    around = world.around(own)
    assert [str(one) for one in around.others] == ["pond.sales.guest"]
    assert {place.folder for place in around.own} == {"/old/", "/new/"}
    assert around.former_versions == (before.metadata_location,)
    assert set(around.metadata_folders) == {"s3://lake/old/metadata", "s3://lake/new/metadata"}
    assert around.had_at_first(Spelling().place("s3://lake/old/data")) is False  # the new name never had it at first
    assert around.had_at_first(Spelling().place("s3://elsewhere")) is False


@pytest.mark.parametrize(("uuid", "name"), [("", "guest"), ("guest", "twin")])
def test_a_name_that_means_another_table_by_now_is_not_read_for_it(uuid: str, name: str) -> None:
    """Two tables swap their names after the list was made: what the one reads is not told by the other."""
    world = World()
    world.pond.put(guest(uuid, replace(POND, name=name)))
    (other,) = world.around(metadata()).others
    world.pond.put(guest("swapped", replace(POND, name=name)))
    if uuid:
        with pytest.raises(TableReplaced, match=rf"{name} has become the name of another table"):
            world.registry.metadata_of(other)
    else:  # it had no uuid, and has one now
        assert world.registry.metadata_of(other).table_uuid == "swapped"


class Server(Metastore):
    """A catalog whose replies may lack what the metadata files have."""

    lacking: bool = True

    def load(self, ref: TableRef) -> TableMetadata:
        """Return the reply."""
        whole = super().load(ref)
        return replace(whole, snapshots=whole.snapshots[1:]) if self.lacking else whole

    def load_from_file(self, metadata: TableMetadata) -> TableMetadata:
        """Return what the file has."""
        return super().load(metadata.ref)


def test_a_reply_that_lacks_snapshots_of_another_table_frees_none_of_its_files() -> None:
    """The table counts as one that cannot be read, until its server replies with what the metadata file has."""
    world, own = World(pond=Server("pond")), metadata()
    world.lake.put(own)
    world.pond.put(guest())
    (one,) = world.around(own).others
    assert "has snapshot 1" in one.problem
    assert folders(one) == {"/sales/guest/"}
    with pytest.raises(Refused, match="has snapshot 1"):
        world.registry.metadata_of(one)
    cast("Server", world.pond).lacking = False
    assert len(world.registry.metadata_of(one).snapshots) == 2


class Hiding(Metastore):
    """A catalog that does not list a table, and may not let it be loaded."""

    error: IcewrightError | None = None

    def load(self, ref: TableRef) -> TableMetadata:
        """Return the table."""
        if self.error is not None:
            raise self.error
        return super().load(ref)


@pytest.mark.parametrize("error", [None, UnsupportedTable("403"), AccessDenied("x"), MetadataUnreadable("x")])
def test_a_second_entry_that_is_not_listed_is_no_earlier_name(error: IcewrightError | None) -> None:
    """As long as its catalog does not say that it is gone; nobody need ask for a table of another uuid."""
    world, own = World(pond=Hiding("pond")), metadata()
    for ref, uuid in ((POND, "another"), (replace(REF, name="old name"), own.table_uuid), (TWIN, own.table_uuid)):
        (world.lake if ref.catalog == "lake" else world.pond).put(guest(uuid, ref, f"s3://{ref.catalog}/{ref.name}"))
    world.lake.put(own)
    world.around(own)
    del world.lake.tables[replace(REF, name="old name")]
    cast("Hiding", world.pond).error = error
    assert len(world.around(own).others) == 2  # which are listed, and not asked for
    world.pond.stale = ()
    twin, *others = sorted(world.around(own).others, key=lambda other: other.registration.table_uuid != own.table_uuid)
    assert [other.pointer for other in others] == [None]
    assert (twin.pointer is None, twin.unlisted) == (error is not None, error is not None)
    assert str(twin) == f"{TWIN}{' (which its catalog neither lists nor lets be read)' if error else ''}"
    assert folders(twin) == {"/twin/"}
    world.pond.put(guest("made anew", TWIN))
    if error is None:
        assert [other.pointer for other in world.around(own).others] == [None]
    cast("Hiding", world.pond).error = CatalogUnavailable("away", "pond")
    with pytest.raises(CatalogUnavailable):
        world.around(own)


def test_every_entry_that_is_not_listed_is_asked_for() -> None:
    """One of which the catalog does not tell whether it is gone is not the last."""
    world, own = World(pond=Hiding("pond")), metadata()
    for ref in (TWIN, replace(TWIN, name="triplet")):
        world.pond.put(guest(own.table_uuid, ref, f"s3://pond/{ref.name}"))
    world.lake.put(own)
    world.around(own)
    world.pond.stale, cast("Hiding", world.pond).error = (), AccessDenied("x")
    assert [other.unlisted for other in world.around(own).others] == [True, True]


def test_links_of_other_disks_are_looked_up_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the table's own disks take their time, as its files lie there; in object stores there are none."""
    world, own, limited = World(), metadata(location="file:/own/t"), list[str]()
    monkeypatch.setattr(module, "mounts", lambda: frozenset({"/", "/own", "/more", "/others"}))

    def look(disk: str, look: Callable[[], object], _: timedelta) -> object:
        limited.append(disk)
        return look()

    monkeypatch.setattr(world.registry.calls, "look", look)
    own = replace(own, properties={"write.data.path": "file:/more/t"})
    world.lake.put(own)
    world.pond.put(guest(location="file:/others/guest"))
    world.pond.put(guest("far", TWIN))
    world.around(own)
    assert limited == ["/others"]


def test_tables_without_a_uuid_are_not_one_table() -> None:
    """Format v1 may leave it out: a dropped table is no earlier name of another one for that, nor is it asked for."""
    world = World(pond=Hiding("pond"))
    world.pond.put(guest(""))
    world.around(guest("", location="s3://pond/elsewhere"))
    world.pond.stale, cast("Hiding", world.pond).error = (), UnsupportedTable("403")
    assert [other.unlisted for other in world.around(metadata(table_uuid="")).others] == [False]
    world = World()
    world.lake.put(guest("", TableRef("lake", ("sales",), "gone"), "s3://lake/gone"))
    own = metadata(table_uuid="")
    world.lake.put(own)
    world.around(own)
    del world.lake.tables[TableRef("lake", ("sales",), "gone")]
    assert [one.is_dropped for one in world.around(own).others] == [True]


def test_a_catalog_under_a_former_name_is_listed() -> None:
    """What an alias of a catalog named counts as dropped, and not as of a catalog that is not configured."""
    world, own = World(), metadata()
    world.lake.put(own)
    for name, uuid in (("puddle", "1"), ("puddle@pond", "2"), ("strange", "3"), ("strange twin", own.table_uuid)):
        one = Registration.of(guest(uuid, TableRef(name, ("sales",), "t"), f"s3://pond/{name}"), ())
        world.recorded.rows[one.key] = one
    assert {one.registration.ref.catalog: one.unlisted for one in world.around(own).others} == {
        "puddle": False,
        "puddle@pond": False,
        "strange": True,
        "strange twin": True,
    }


def test_places_are_compared_as_links_and_spellings_lead() -> None:
    """Two names of one folder meet; what a person adopted is told."""
    world, own = World(), metadata()
    world.files.links = {"s3://pond/sales/guest": "s3://lake/sales/orders/inner"}
    world.lake.put(own)
    world.pond.put(guest())
    world.recorded.words[own.table_uuid] = frozenset({"what was said"})
    around = world.around(own, Spelling.of({}, {"b": "lake"}))
    inner = around.having.holding(around.place("s3://b/sales/orders/inner/data"))
    assert [str(other) for _, other in inner] == ["pond.sales.guest"]
    assert around.adopted == {"what was said"}
    assert around.own[0] == around.place("s3://b/sales/orders")
    assert directory_key("s3://x/sales/orders") == around.own[0].folder
