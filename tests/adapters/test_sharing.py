"""What other tables read, or once had, where this one's files lie: of whom files stay, and until when."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from icewright.adapters.engines.service.surroundings import OtherTable
from icewright.core.errors import FileMissing, IcewrightError, MetadataUnreadable, Refused
from icewright.core.table import TableMetadata, TableRef
from icewright.testing.builders import LOCATION, lineage, metadata
from tests.adapters.test_guard import judged, version
from tests.adapters.test_proof import FREE, LIVE, Proving
from tests.adapters.test_registry import guest

BESIDE = "s3://pond/sales/guest/metadata/00002-g.metadata.json"
BORROWER, PLACE = "pond.sales.guest", "s3://pond/sales/guest"


def borrowed(proving: Proving) -> tuple[list[str], dict[str, str]]:
    """What may go of two files in a folder where another table was seen to have some, and why the rest stays."""
    return judged(proving.guard, proving.own, FREE, LIVE)


def borrowing(*, newer: bool = False, left: bool = True) -> Proving:
    """A table of `pond` whose only snapshot reads a file of the table, perhaps with a newer version beside it."""
    proving, other = Proving(), guest(snapshots=lineage([1]))
    proving.files.folders = {other.ref: [f"{LOCATION}/data"]}
    if left:
        proving.files.contents[other.metadata_location] = version("guest")
    if newer:
        log = [{"metadata-file": other.metadata_location, "timestamp-ms": 1}]
        proving.files.contents[BESIDE] = json.dumps(json.loads(version("guest")) | {"metadata-log": log}).encode()
    proving.world.pond.put(other)
    return proving


@pytest.mark.cases(99)
def test_what_a_borrower_reads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its newest version: where one is newer than that which its catalog names, nobody knows what that one reads."""
    proving = borrowing()
    assert borrowed(proving) == ([FREE], {LIVE: f"{BORROWER} reads them"})
    proving = borrowing(newer=True)
    why = f"{BESIDE} is a newer version of {BORROWER}, and may read them"
    assert borrowed(proving) == ([], dict.fromkeys([FREE, LIVE], why))
    loads, real = [0], proving.world.registry.metadata_of

    def landed(other: OtherTable) -> TableMetadata:
        loads[0] += 1
        first = guest(snapshots=lineage([1]))
        log = (first.metadata_location,)
        return first if loads[0] == 1 else replace(real(other), metadata_location=BESIDE, metadata_log=log)

    monkeypatch.setattr(proving.world.registry, "metadata_of", landed)
    assert borrowed(proving) == ([FREE], {LIVE: f"{BORROWER} reads them"})
    proving.world.recorded.words["guest"] = frozenset({BESIDE.removeprefix("s3://pond")})
    loads[0] = 0
    assert borrowed(proving)[0] == [FREE]
    assert loads[0] == 1  # a person has said that the newer one is dead


@pytest.mark.cases(99)
@pytest.mark.parametrize(("error", "why"), [(FileMissing("gone"), ""), (MetadataUnreadable("cut"), " (cut)")])
@pytest.mark.parametrize("left", [True, False])
def test_a_borrower_that_cannot_be_read(error: IcewrightError, why: str, *, left: bool) -> None:
    """Keeps all files there while a catalog names it, whatever is left of it."""
    proving = borrowing(left=left)
    if not left:
        proving.files.contents[BESIDE] = version("another")
        proving.world.pond.put(guest(snapshots=lineage([1]), metadata_location=f"{PLACE}/metadata/current.json"))
    proving.files.lost = error
    reason = f"{BORROWER}, which uses files there, cannot be read{why}"
    assert borrowed(proving) == ([], dict.fromkeys([FREE, LIVE], reason))


@pytest.mark.cases(99)
@pytest.mark.parametrize(("uuid", "gone"), [("guest", []), ("another", [FREE, LIVE])])
def test_a_borrower_that_was_dropped(uuid: str, gone: list[str]) -> None:
    """Keeps them too, until no version of it is left."""
    proving = borrowing(left=False)
    proving.guard.around(proving.own)
    proving.world.pond.tables.clear()
    proving.files.contents[BESIDE] = version(uuid)
    reason = f"{BORROWER} (which no catalog names any more), which uses files there, cannot be read"
    assert borrowed(proving) == (gone, {} if gone else dict.fromkeys([FREE, LIVE], reason))


INSIDE, POOL = f"{LOCATION}/inner", "s3://lake/pool"


@pytest.mark.parametrize(
    ("adopted", "now", "shared"),
    [
        ({LOCATION}, {}, False),
        (set(), {}, True),
        ({POOL}, {}, True),
        ({LOCATION}, {"properties": {"write.data.path": INSIDE}}, True),
        ({LOCATION}, {"location": INSIDE}, True),
        ({LOCATION}, {"metadata_location": f"{INSIDE}/metadata/00002-g.metadata.json"}, True),
        ({LOCATION}, {"table_uuid": "another"}, True),  # its name has come to mean another one
        ({LOCATION}, None, True),  # dropped
    ],
)
def test_a_table_that_once_lay_in_the_place(adopted: set[str], now: dict[str, Any] | None, *, shared: bool) -> None:
    """Has it until a person has confirmed the place, and as long as it has anything there."""
    proving, other = Proving(), guest(location=INSIDE)
    guard, own = proving.guard, proving.own
    proving.world.pond.put(other)
    guard.around(own)
    moved = guest(location="s3://pond/moved", metadata_location="s3://pond/moved/metadata/00002-g.metadata.json")
    proving.world.pond.put(moved)
    around = guard.around(own)
    if now is None:
        del proving.world.pond.tables[other.ref]
        last = json.loads(version("guest")) | {"location": moved.location, "last-updated-ms": 1}
        proving.files.contents[moved.metadata_location] = json.dumps(last).encode()
        around = guard.around(own)
    else:
        proving.world.pond.put(replace(moved, **now))
    around = replace(around, adopted=frozenset(adopted))
    if shared:
        with pytest.raises(Refused, match=r"\[shared_location\]"):
            guard.roots(around)
    else:
        assert guard.roots(around) == ([LOCATION], [])


def test_a_table_that_once_lay_in_a_write_path() -> None:
    """The same of a place that is no location; the paths beside it are scanned, whichever comes first."""
    paths = {"write.data.path": "s3://lake/a", "write.object-storage.path": POOL, "write.metadata.path": "s3://lake/m"}
    proving = Proving(own=metadata(properties=paths))
    guard, own = proving.guard, proving.own
    proving.world.pond.put(guest(location=f"{POOL}/inner"))
    elsewhere = TableRef("pond", ("sales",), "elsewhere")
    proving.world.pond.put(guest("elsewhere", elsewhere, "s3://pond/elsewhere"))
    guard.around(own)
    moved = "s3://pond/moved/metadata/00002-g.metadata.json"
    proving.world.pond.put(guest(location="s3://pond/moved", metadata_location=moved))
    note = f"{POOL} is not scanned: it overlaps the place of {BORROWER}"
    assert guard.roots(guard.around(own)) == ([LOCATION, "s3://lake/a", "s3://lake/m"], [note])
    proving.world.recorded.words[own.table_uuid] = frozenset({POOL})
    around = guard.around(own)
    assert guard.roots(around) == ([LOCATION, "s3://lake/a", POOL, "s3://lake/m"], [])
    left = {str(other): guard.has_left(other, around) for other in around.others}
    assert left == {BORROWER: True, "pond.sales.elsewhere": False}  # which never was there
