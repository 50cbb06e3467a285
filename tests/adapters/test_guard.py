"""The guard of deletions over catalogs in memory: which files may go on behalf of a table, and why others stay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from icewright.adapters.engines.service.guard import DeletionGuard, Judgement
from icewright.adapters.files.storage import listed
from icewright.core.errors import FileMissing, FolderMissing, MetadataUnreadable, Refused
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Dataset, Registration
from icewright.testing.builders import REF, metadata
from tests.adapters.test_registry import POND, Links, World, guest

DROPPED = TableRef("lake", ("sales",), "dropped")
INNER = "s3://lake/sales/orders/inner"
DATASET = f"pond.hive.logs (a table of another format at {INNER})"


@dataclass
class MetadataFiles(Links):
    """Metadata files in memory, by path."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def read(self, path: str) -> bytes:
        """Return the content."""
        if path not in self.contents:
            raise FileMissing(path)
        return self.contents[path]

    def listing(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Yield the files below a folder, in pages of one."""
        found = [path for path in self.contents if path.startswith(f"{folder}/")]
        if not found:
            raise FolderMissing(folder)
        yield from (listed([path], [1], [0]) for path in found)


def version(uuid: str) -> bytes:
    """Return a metadata file of a table."""
    return json.dumps({"format-version": 2, "table-uuid": uuid, "location": "s3://lake/t"}).encode()


def guarded(world: World, own: TableMetadata) -> DeletionGuard:
    """The guard of a table in `lake`."""
    world.lake.put(own)
    return DeletionGuard(world.registry, {"lake": ["s3://lake"], "pond": ["s3://pond"]})


def judged(guard: DeletionGuard, table: TableMetadata, *paths: str, **how: Any) -> tuple[list[str], dict[str, str]]:
    """The files that may go, and why each of the others stays."""
    files = pl.DataFrame({"path": paths}, schema={"path": pl.String})
    judgement = guard.judge(guard.around(table), files, **how)
    return judgement.files["path"].to_list(), dict(judgement.stays)


@pytest.mark.parametrize("uuid", ["", "a uuid"])
@pytest.mark.cases(98)
def test_a_table_of_the_same_uuid_is_the_table(uuid: str) -> None:
    """Wherever it lies; without a uuid where both can lie in one place."""
    own, twin = metadata(table_uuid=uuid), TableRef("pond", ("sales",), "twin")
    for location, refused in ((INNER, True), ("s3://pond/apart", bool(uuid))):
        world = World()
        guard = guarded(world, own)
        world.pond.put(guest(uuid, twin, location))
        if refused:
            words = r"as pond\.sales\.twin too.* files: unregister one without purging \[registered_twice\]"
            with pytest.raises(Refused, match=words):
                guard.around(own)
        else:
            assert [str(one) for one in guard.around(own).others] == ["pond.sales.twin"]
        del world.pond.tables[twin]
        guard.around(own)  # its earlier name, or a dropped table


def test_a_catalog_that_is_configured_twice_is_told() -> None:
    """Whoever unregisters a table that two names of one catalog show has dropped it."""
    own = metadata()
    world = World()
    guard = guarded(world, own)
    namesake = replace(own, ref=replace(own.ref, catalog="pond"))
    world.pond.put(namesake)
    with pytest.raises(Refused, match="if lake and pond are one catalog, take one from the configuration, else unreg"):
        guard.around(own)
    for shown in (True, False):  # by the server beside the catalog, or by a catalog that is not configured any more
        world = World()
        guard = guarded(world, own)
        other = replace(own, ref=replace(own.ref, catalog="branch"))
        if shown:
            world.lake.beyond.append(other)
            remedy = "unregister one without purging"
        else:
            world.recorded.rows[other.ref, own.table_uuid] = Registration.of(other, ())
            remedy = f"unregister one without purging; if that one is gone for good, `icewright adopt {REF}`"
        with pytest.raises(Refused, match=rf"same files: {re.escape(remedy)} \[registered_twice\]"):
            guard.around(own)


def test_what_has_no_uuid_because_it_cannot_be_read_is_no_twin() -> None:
    """Nor is a table of another format: both still have their places."""
    world, own = World(), metadata(table_uuid="")
    guard = guarded(world, own)
    world.pond.datasets = [Dataset(TableRef("pond", ("hive",), "logs"), (INNER,))]
    world.pond.put(guest("", location=INNER))
    world.files.broken[POND] = MetadataUnreadable("cut")
    assert [str(one) for one in guard.around(own).others] == [str(POND), DATASET]
    files = [f"{INNER}/a", "s3://lake/sales/orders/data/b"]
    assert judged(guard, own, *files) == (files[1:], {files[0]: f"they lie in the place of {DATASET}"})
    world.pond.datasets = [*world.pond.datasets, Dataset(TableRef("pond", ("hive",), "days"), (f"{INNER}/days",))]
    stays = judged(guard, own, f"{INNER}/days/a")[1]
    assert "in the place of pond.hive.days" in stays[f"{INNER}/days/a"]
    with pytest.raises(Refused, match=rf"overlaps {INNER} of pond\.hive\.logs.*\[shared_location\]"):
        guard.roots(replace(guard.around(own), others=guard.around(own).others[1:]))


@pytest.mark.cases(99)
@pytest.mark.parametrize(
    ("name", "places", "refused"),
    [
        ("swamp", ["s3://lake/sales"], True),
        ("swamp", ["s3://swamp"], False),
        ("swamp", [], True),  # anywhere
        ("bog", ["s3://bog"], True),  # one of its tables was seen to use our folder
    ],
)
def test_a_catalog_of_another_service_that_cannot_be_asked(name: str, places: list[str], *, refused: bool) -> None:
    """Nothing is deleted where its tables could be; a person may look what is left all the same."""
    world, own = World(), metadata()
    guard = guarded(world, own)
    one = Registration.of(guest("seen", TableRef("bog", ("sales",), "seen"), "s3://bog/seen"), [f"{own.location}/data"])
    world.recorded.rows[one.key] = one
    world.elsewhere = [("pool", ["s3://pool"]), (name, places)]
    guard.around(own, adopting=True)
    if refused:
        with pytest.raises(
            Refused, match=rf"a catalog {name}, which.*catalogs\.{name}\.allowed.*\[catalog_elsewhere\]"
        ):
            guard.around(own)
    else:
        guard.around(own)


def test_a_twin_of_a_catalog_that_is_gone_can_be_adopted() -> None:
    """Nobody here can tell whether it lives: refused with that remedy, and while the person looks it is told."""
    world, own = World(), metadata()
    guard = guarded(world, own)
    one = Registration.of(guest(own.table_uuid, TableRef("strange", ("sales",), "twin")), ())
    world.recorded.rows[one.key] = one
    with pytest.raises(Refused, match=f"gone for good, `icewright adopt {REF}`"):
        guard.around(own)
    assert [other.unlisted for other in guard.around(own, adopting=True).others] == [True]
    world.recorded.words[own.table_uuid] = frozenset({own.table_uuid})
    assert guard.around(own).others == ()


@pytest.mark.cases(106)
def test_what_lives_is_not_dead_by_anybodys_word() -> None:
    """An adopted uuid counts while no catalog names the table; an entry of another format may be dead though listed."""
    world, own = World(), metadata()
    guard = guarded(world, own)
    world.pond.datasets = [Dataset(TableRef("pond", ("hive",), "logs"), (INNER,))]
    world.pond.put(guest(location=INNER))
    words = {"guest", *(str(one) for one in guard.around(own).others)}
    world.recorded.words[own.table_uuid] = frozenset(words)
    assert [str(one) for one in guard.around(own).others] == ["pond.sales.guest"]
    assert replace(guard, ignoring=frozenset({"pond"})).around(own).others == ()


def test_files_go_only_from_where_they_may() -> None:
    """Allowed places, the table's own, and those of nobody where that is asked for; and why not elsewhere."""
    world = World()
    own = metadata(properties={"write.data.path": "s3://lake/pool"})
    guard = guarded(world, own)
    mine, pool, apart, far = "s3://lake/sales/orders/data/a", "s3://lake/pool/b", "s3://lake/apart/c", "s3://far/d"
    gone, stays = judged(guard, own, mine, pool, apart, far)
    assert gone == [mine, pool]
    assert "outside the table's own location" in stays[apart]
    assert stays[far] == "outside the allowed_locations of catalog lake"
    assert judged(guard, own, mine, pool, apart, far, outside=True)[0] == [mine, pool, apart]
    assert judged(guard, own, mine, pool, own=["s3://lake/pool"])[0] == [pool]
    assert judged(guard, own, mine, pool, automatic=True)[0] == [mine, pool]
    assert judged(guard, own) == ([], {})
    later = world.lake.put(replace(own, properties={"write.data.path": "s3://lake/later"}, metadata_location="m"))
    new = "s3://lake/later/e"
    gone, stays = judged(guard, later, mine, pool, new, automatic=True)
    assert (gone, [*stays]) == ([mine, pool], [new])
    assert "came to after it was first seen" in stays[new]
    assert judged(guard, later, new)[0] == [new]
    assert guard.around(later).moved(["s3://lake/sales/orders", "s3://lake/later"]) == "s3://lake/later"
    world.recorded.words[own.table_uuid] = frozenset({"s3://lake/later"})
    assert judged(guard, later, new, automatic=True)[0] == [new]
    assert guard.around(later).moved(["s3://lake/later"]) is None


def test_notes_name_the_reason_once() -> None:
    """With the number of its files and the first three of them."""
    stays = {f"s3://lake/{n}": "they are needed" for n in (3, 1, 2, 4)} | {"s3://lake/9": "it is far"}
    stays |= {f"s3://lake/{n}": "they are young" for n in (5, 6, 7)}
    assert Judgement(pl.DataFrame(), stays).notes() == [
        "4 files kept: they are needed: s3://lake/1, s3://lake/2, s3://lake/3 ...",
        "1 file kept: it is far: s3://lake/9",
        "3 files kept: they are young: s3://lake/5, s3://lake/6, s3://lake/7",
    ]


def test_the_places_of_a_scan() -> None:
    """The location, and the write paths that are allowed and nobody else's."""
    world = World()
    paths = {
        "write.data.path": "s3://lake/pool",
        "write.object-storage.path": "s3://far/x",
        "write.metadata.path": "s3://lake/m",
    }
    own = metadata(properties=paths)
    guard = guarded(world, own)
    world.pond.put(guest(location="s3://lake/pool/inner"))
    roots, notes = guard.roots(guard.around(own))
    assert roots == ["s3://lake/sales/orders", "s3://lake/m"]
    assert notes == [
        "s3://lake/pool is not scanned: it overlaps the place of pond.sales.guest",
        "s3://far/x is not scanned: it lies outside the allowed_locations of catalog lake",
    ]
    with pytest.raises(Refused, match=r"add its place to catalogs\.pond\.allowed_locations"):
        guard.around(guest(location="s3://lake/elsewhere"))


def test_files_that_somebody_unseen_may_read_stay() -> None:
    """In each folder for the tables that share it, with the remedy; in folders of the table alone they go."""
    world = World()
    own = metadata(properties={"write.data.path": "s3://lake/pool", "write.metadata.path": "s3://lake/m"})
    guard = guarded(world, own)
    for name, location in (("one", "s3://lake/pool"), ("other", own.location)):
        one = Registration.of(guest(name, TableRef("strange", ("sales",), name), location), ())
        world.recorded.rows[one.key] = one
    pool, mine, alone, far = "s3://lake/pool/a", f"{own.location}/data/b", "s3://lake/m/c", "s3://far/d"
    gone, stays = judged(guard, own, pool, mine, alone, far)
    assert gone == [alone]
    for path, name in ((pool, "one"), (mine, "other")):
        assert stays[path].startswith(f"strange.sales.{name} (whose catalog is not configured any more) may read them")
        assert stays[path].endswith(f"`icewright adopt {REF}`")
    assert stays[far] == "outside the allowed_locations of catalog lake"


def test_a_twin_that_cannot_be_read_any_more_is_still_a_twin() -> None:
    """Among others, by the uuid that it was seen with; no adoption is needed where a catalog lists it."""
    world, own, twin = World(), metadata(), TableRef("pond", ("sales",), "twin")
    guard = guarded(world, own)
    world.pond.put(guest())
    world.pond.put(guest(own.table_uuid, twin, "s3://pond/apart"))
    for adopting in (False, True):
        with pytest.raises(Refused, match=r"\[registered_twice\]"):
            guard.around(own, adopting=adopting)
    world.pond.concurrently(twin)
    world.files.broken[twin] = MetadataUnreadable("cut")
    with pytest.raises(Refused, match=r"\[registered_twice\]"):
        guard.around(own)


BESIDE = "s3://lake/sales/orders/metadata/00000-x.metadata.json"
UNCLEAR = b"\x28\xb5\x2f\xfd of a compression that nobody here reads"


@pytest.mark.parametrize(
    ("left", "free"),
    [
        ({}, True),
        ({"last": version("dropped")}, False),
        ({"last": version("another")}, True),
        ({"last": b""}, False),
        ({"last": UNCLEAR}, False),
        ({"a": version("another"), "b": version("dropped"), "own": version("own")}, False),
        ({"a": version("another"), "own": version("dropped")}, True),
    ],
)
def test_a_dropped_table_has_its_place_while_a_version_of_it_is_left(left: dict[str, bytes], *, free: bool) -> None:
    """Under the last name or beside it; another table may bear the name by now, and our own versions are no others."""
    files = MetadataFiles()
    world, own = World(files=files), metadata()
    guard = guarded(world, own)
    for name, place in (("apart", "s3://lake/apart"), ("dropped", own.location)):
        one = Registration.of(guest(name, replace(DROPPED, name=name), place), ())
        world.recorded.rows[one.key] = one
    names = {"last": f"{own.location}/metadata/00001-g.metadata.json", "own": own.metadata_location}
    files.contents = {names.get(key, f"{own.location}/metadata/{key}.metadata.json"): one for key, one in left.items()}
    if free:
        assert guard.roots(guard.around(own)) == ([own.location], [])
    else:
        with pytest.raises(Refused, match=rf"{DROPPED} \(which no .* gone for good, `icewright adopt {REF}` lets"):
            guard.roots(guard.around(own))


def test_who_shares_the_place_and_what_can_be_done() -> None:
    """A table that lives is named before one that is gone, each with its own remedy."""
    world, own = World(files=MetadataFiles(contents={BESIDE: version("dropped")})), metadata()
    guard = guarded(world, own)
    one = Registration.of(guest("dropped", DROPPED, own.location), ())
    world.recorded.rows[one.key] = one
    remedies = []

    def remedy() -> str:
        with pytest.raises(Refused) as refused:
            guard.roots(guard.around(own))
        return str(refused.value)

    remedies.append(remedy())
    world.pond.datasets = [Dataset(TableRef("pond", ("hive",), "logs"), (own.location,))]
    remedies.append(remedy())
    world.pond.datasets = []
    world.pond.put(guest(location=own.location))
    remedies.append(remedy())
    world.pond.put(guest(location=own.location, metadata_location=f"{own.location}/metadata/2.metadata.json"))
    world.files.broken[POND] = MetadataUnreadable("cut")
    remedies.append(remedy())
    assert [DROPPED.name in remedies[0], *(POND.name in remedy for remedy in remedies[2:])] == [True, True, True]
    assert all(f"`icewright adopt {REF}`" in remedy for remedy in remedies)
    assert "if another catalog has it, move one of both" in remedies[0]
    assert "its engine reads all files there: move one of both" in remedies[1]
    assert "move one of the tables to a place of its own; if that one has moved away" in remedies[2]
    assert "move one of the tables to a place of its own (cut); if that one has moved away" in remedies[3]


def test_an_engine_of_another_format_may_read_whatever_lies_in_its_folders() -> None:
    """Where they are the table's own too."""
    world, own = World(), metadata()
    guard, file = guarded(world, own), f"{own.location}/data/a"
    world.pond.datasets = [Dataset(TableRef("pond", ("hive",), "logs"), (own.location,))]
    gone, stays = judged(guard, own, file)
    assert (gone, [*stays]) == ([], [file])
    assert stays[file].endswith(f"may read them; if that one is gone for good, `icewright adopt {REF}`")
