"""Metadata files that a table does not reach, told apart in memory: another writer's versions, foreign ones, debris."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.adapters.engines.service.successors import (
    IdentifiedMetadata,
    UnreferencedMetadata,
    identify,
    require_no_foreign_table,
    require_no_successor,
)
from icewright.adapters.metadata.document import next_location
from icewright.core.errors import FileMissing, Refused
from icewright.core.table import TableMetadata
from icewright.testing import FixedClock
from icewright.testing.builders import LOCATION, NOW, UUID, metadata

FOLDER = f"{LOCATION}/metadata/"
OWN = metadata(metadata_log=(f"{FOLDER}z", f"{FOLDER}b"), log_since=NOW - timedelta(hours=24))  # which is at `00001-a`
NOW_AT = OWN.metadata_location.removeprefix(FOLDER)
STAGED = next_location({"location": LOCATION}, OWN.metadata_location).removeprefix(FOLDER)
ADOPT = r"icewright adopt lake\.sales\.orders"
ZSTD = b"\x28\xb5\x2f\xfd"


def file(
    *log: str,
    at: float | None = -1,
    ids: Sequence[int] = (1, 2, 3),
    uuid: str | None = UUID,
    location: str = LOCATION,
) -> dict[str, Any]:
    """A metadata file of the table, so many hours from now, with its log by names, and its snapshots."""
    entries = [{"metadata-file": f"s3a://lake/sales/orders/metadata/{name}", "timestamp-ms": 1} for name in log]
    time = None if at is None else int((NOW + timedelta(hours=at)).timestamp() * 1000)
    fields = {"table-uuid": uuid, "location": location, "last-updated-ms": time, "metadata-log": entries}
    return fields | {"snapshots": [{"snapshot-id": one} for one in ids], "current-snapshot-id": ids[-1]}


def found(
    own: TableMetadata, files: Mapping[str, object], lost: Sequence[str] = (), adopted: Sequence[str] = ()
) -> IdentifiedMetadata:
    """What the files are, but the lost ones, which are read beside the log's and are not listed."""
    contents = {f"{FOLDER}{name}": one for name, one in files.items()}

    def read(path: str) -> bytes:
        content = contents.get(path)
        if content is None:
            raise FileMissing(path)
        return content if isinstance(content, bytes) else json.dumps(content).encode()

    listed = [UnreferencedMetadata(path, None) for path in contents if path.removeprefix(FOLDER) not in lost]
    return identify(own, listed, read, frozenset(adopted))


Z = {"z": file("x", "y", at=-24, ids=(1,)), "b": file("z", at=-5, ids=(1,))}  # of the log
SUCCESSORS: dict[str, tuple[Mapping[str, object], Sequence[str]]] = {
    "names the current version": ({"s": file("b", NOW_AT)}, ["s"]),
    "names it in a longer log": ({"s": file(NOW_AT, "lost")}, ["s"]),
    "names it, by a clock that is days behind": ({"s": file(NOW_AT, "lost", at=-30, ids=(1, 2))}, ["s"]),
    "of ours that crashed": ({STAGED: file("b", NOW_AT)}, []),
    "of ours on which another builds": ({STAGED: file(NOW_AT), "s": file(NOW_AT, STAGED)}, [STAGED, "s"]),
    "of ours on top of one of theirs": ({STAGED: file(NOW_AT, "lost")}, [STAGED]),
    "of ours without a log": ({STAGED: file()}, [STAGED]),
    "a copy": ({"s": file("b", at=-2, ids=(1, 2))}, []),
    "names it, without a snapshot of its own": ({"s": file(NOW_AT, at=-1.99, ids=(1, 2))}, ["s"]),
    "the same by a clock that is behind": ({"s": file(NOW_AT, at=-5, ids=(1, 2))}, ["s"]),
    "the same of unknown time": ({"s": file(NOW_AT, at=None, ids=(1, 2))}, ["s"]),
    "lost a race": ({"s": file("b", at=-2 + 9.9 / 60)}, ["s"]),  # has our head, and a newer one
    "lost a race with another head": ({"s": file("b", at=-2 + 9.9 / 60, ids=(1, 9))}, []),
    "too late for a race": ({"s": file("b", at=-2 + 10 / 60, ids=(1, 9))}, ["s"]),
    "too early for a race": ({"s": file("b", at=-2 - 10 / 60, ids=(1, 9))}, ["s"]),
    "lost a race before": ({"s": file("z", at=-5 + 9.9 / 60, ids=(1, 9))}, []),
    "too late for a race before": ({"s": file("z", at=-2, ids=(1, 9))}, ["s"]),
    "lost a race of unknown time": ({"s": file("b", at=None, ids=(1, 9))}, ["s"]),
    "lost a race, and was built on": ({"s": file("b", at=-2, ids=(1, 9)), "t": file("s", at=-2)}, ["s", "t"]),
    "of ours that lost a race": ({STAGED: file("b", at=5, ids=(1, 9))}, []),
    "of ours on a version that nobody knows": ({STAGED: file("lost", at=5, ids=(1, 9))}, [STAGED]),
    "moved the head on": ({"s": file(at=-1)}, ["s"]),
    "moved the head on, and is ours": ({STAGED: file("b", at=-1)}, [STAGED]),
    "has our head without a log": ({"s": file(at=-1, ids=(1, 2))}, []),
    "an earlier head": ({"s": file(at=-2)}, []),
    "a head of unknown time": ({"s": file(at=None)}, []),
    "a head on which ours does not build": ({"s": file(at=-1, ids=(1, 9))}, []),
    "before the log": ({"y": file("x", at=-30, ids=(1,)), "x": file(at=-40, ids=(1,))}, []),
    "far before the log": ({"x": file("w", at=-40, ids=(1,)), "w": file(at=-1, ids=(1, 9))}, []),
    "before the log, and names itself": ({"y": file("x", "y", at=-30, ids=(1,))}, []),
    "before the log, and changed since": ({"y": file("x", at=-1, ids=(1, 9))}, []),
    "on a version before the log": ({"s": file("y", at=-25, ids=(1, 9))}, ["s"]),
    "lost a race before the log": ({"s": file("y", at=-24.1, ids=(1, 9))}, []),
    "older than the log": ({"s": file("lost", at=-24.1, ids=(1, 9))}, []),
    "as old as the log": ({"s": file("lost", at=-24, ids=(1, 9))}, ["s"]),
    "of unknown time on what nobody knows": ({"s": file("lost", at=None, ids=(1, 9))}, []),
}


@pytest.mark.cases(95)
@pytest.mark.parametrize("case", SUCCESSORS)
def test_versions_of_the_table_by_another_writer(case: str) -> None:
    """What builds on the current version, or on an earlier one long after that was replaced; crashes and races do not.

    What nobody may have lost can be deleted: a version that this catalog replaced, a copy, what is older than the log.
    """
    files, successors = SUCCESSORS[case]
    told = found(OWN, {**Z, **files}, [*Z])
    assert [one.path.removeprefix(FOLDER) for one in told.successors] == successors
    assert (told.foreign, told.debris, told.documents) == ((), (), ())


def test_nothing_is_read_where_nothing_is_strange() -> None:
    """The versions of the table itself tell nothing then, and may be large."""

    def read(path: str) -> bytes:
        raise AssertionError(path)

    assert identify(OWN, [], read, frozenset()) == IdentifiedMetadata((), (), ())


def test_a_rival_that_cannot_be_read_is_no_proof_of_a_race() -> None:
    """When it replaced the version is not known then, and the file counts as a fork."""
    fork = {"s": file("z", at=-5, ids=(1, 9))}
    for rival in (None, b"", ZSTD):
        assert len(found(OWN, Z | fork | {"b": rival}, [*Z]).successors) == 1
    assert found(metadata(), {"s": file("lost", at=-2.1, ids=(1, 9))}).successors == ()  # without a log
    assert found(metadata(), {"s": file("lost", at=-2, ids=(1, 9))}).successors


BLANK = replace(OWN, table_uuid="")
OTHER = "s3://lake/elsewhere"
TABLES: dict[str, tuple[TableMetadata, Mapping[str, Any], str]] = {
    "another uuid": (OWN, file(NOW_AT, uuid="other"), "foreign"),
    "a view's uuid": (OWN, {"view-uuid": "Other"}, "foreign"),
    "our uuid in upper case": (OWN, file(NOW_AT, uuid=UUID.upper()), "own"),
    "none, our snapshots and place": (OWN, file(NOW_AT, uuid=None, location=f"{LOCATION}/"), "own"),
    "none, our snapshots alone": (OWN, file(NOW_AT, uuid=None, location=OTHER), "foreign"),
    "none, our place alone": (OWN, file(NOW_AT, ids=(8, 9), uuid=None), "foreign"),
    "one where ours has none": (BLANK, file(NOW_AT), "foreign"),
    "neither has one, our snapshots": (BLANK, file("w", uuid=None, location=OTHER), "own"),
    "neither, on top of ours": (BLANK, file(NOW_AT, ids=(8, 9), uuid=None), "own"),
    "neither, on top of one before": (BLANK, file("z", ids=(8, 9), uuid=None), "own"),
    "neither, and nothing in common": (BLANK, file("w", ids=(8, 9), uuid=None), "foreign"),
}


@pytest.mark.parametrize("case", TABLES)
def test_whose_file_it_is(case: str) -> None:
    """By the uuid; without one by snapshots, and by place or log, as not every table without a uuid is one."""
    own, document, whose = TABLES[case]
    told = found(own, {"s": {"format-version": 2, **document}})
    uuid = (document.get("table-uuid") or document.get("view-uuid") or "").lower()
    assert told.foreign == (((f"{FOLDER}s", uuid),) if whose == "foreign" else ())
    assert [one.path for one in told.successors] == ([f"{FOLDER}s"] if whose == "own" else [])
    assert found(own, {"s": document}, adopted=["/sales/orders/metadata/s"]) == IdentifiedMetadata((), (), ())
    if whose == "foreign" and uuid:
        assert found(own, {"s": document}, adopted=[uuid]) == IdentifiedMetadata((), (), ())
        with pytest.raises(
            Refused,
            match=rf"two .*/s is .*uuid {uuid}.*{ADOPT}.*\[foreign_metadata\]",
        ):
            require_no_foreign_table(own, told)
    elif whose == "own":
        require_no_foreign_table(own, told)


def test_a_version_of_a_table_without_a_uuid_before_the_current_one() -> None:
    """It is the table's own by its name, which the log of the oldest version has."""
    oldest, one = file("x", "y", uuid=None, location=OTHER), file("x", ids=(8,), uuid=None, location=OTHER)
    told = found(BLANK, {"z": oldest, "y": one}, ["z"])
    assert (told.foreign, told.successors) == ((), ())


def test_what_is_no_table() -> None:
    """Debris and other documents are told from versions, and a file that has gone since is nobody's."""
    files = {"dead": file(NOW_AT), "gone": None, "cut": b"{", "json": b"{}", "s": file(NOW_AT)}
    told = found(OWN, files, adopted=["/sales/orders/metadata/dead"])
    assert [one.path for one in told.successors] == [f"{FOLDER}s"]
    assert (told.debris, told.documents, told.foreign) == ((f"{FOLDER}cut",), (f"{FOLDER}json",), ())
    assert told.among({f"{FOLDER}cut", f"{FOLDER}x"}) == IdentifiedMetadata((), (), (f"{FOLDER}cut",))
    assert told.among({f"{FOLDER}json"}) == IdentifiedMetadata((), (), (), (f"{FOLDER}json",))
    assert told.among({f"{FOLDER}s"}) == IdentifiedMetadata((), told.successors, ())
    foreign = found(OWN, {"s": file(uuid="other")})
    assert (foreign.among({f"{FOLDER}s"}), foreign.among(())) == (foreign, IdentifiedMetadata((), (), ()))


@pytest.mark.parametrize(
    ("modified", "lands", "loads"),
    [
        ([-1], 3, 3),
        ([None], 1, 1),
        ([-1], 99, 7),  # it does not land
        ([-9.9, -1], 99, 7),
        ([-10], 99, 0),  # too old for a commit that is under way
        ([-1, -10], 99, 0),
    ],
)
def test_a_commit_that_is_under_way_is_given_the_time_to_land(
    modified: Sequence[float | None], lands: int, loads: int
) -> None:
    """For six seconds the table is loaded again while each of the files may be a commit's; then nothing is deleted."""
    clock, loaded = FixedClock(), list[datetime]()
    landed = metadata([24, 2, 1], metadata_location=f"{FOLDER}0-s", metadata_log=(OWN.metadata_location,))
    paths = [f"{FOLDER}{number}-s" for number in range(len(modified))]
    unreferenced = [
        UnreferencedMetadata(path, None if minutes is None else NOW + timedelta(minutes=minutes))
        for path, minutes in zip(paths, modified, strict=True)
    ]

    def load() -> TableMetadata:
        loaded.append(clock.now())
        return landed if len(loaded) >= lands else OWN

    def checked() -> IdentifiedMetadata:
        content = json.dumps(file(NOW_AT)).encode()
        return require_no_successor(OWN, unreferenced, lambda _: content, load, clock, frozenset())

    if loads == lands:
        assert checked().successors == tuple(unreferenced)
    else:
        with pytest.raises(Refused, match=rf"{paths[0]} is a newer version.*{ADOPT}.*\[successor\]"):
            checked()
    assert len(loaded) == len(clock.slept) == loads
    assert clock.slept == [0.05 * 2**n for n in range(loads)]


def test_a_file_that_may_be_somebodys_and_cannot_be_read() -> None:
    """Nothing is deleted beside it, also when that shows while a commit is waited for."""
    version = json.dumps(file(NOW_AT)).encode()
    for contents in ([ZSTD], [version, ZSTD]):
        looks = iter(contents)

        def read(path: str, looks: Iterator[bytes] = looks) -> bytes:
            return next(looks) if path == f"{FOLDER}s" else version

        unreferenced = [UnreferencedMetadata(f"{FOLDER}s", NOW)]
        with pytest.raises(Refused, match=rf"compressed .*another table's.*{ADOPT}.*\[foreign_metadata\]"):
            require_no_successor(OWN, unreferenced, read, lambda: OWN, FixedClock(), frozenset())
