"""Which metadata file of a place is the newest: tables of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.registering import newest, version_number
from icewright.core.table import TableMetadata
from icewright.testing.builders import NOW, metadata

Versions = Mapping[str, tuple[str, Sequence[str], int]]  # uuid, log, minutes of the last update, by file name


def chosen(versions: Versions, broken: Sequence[str] = ()) -> str:
    """The file name of the newest version."""

    def read(path: str) -> TableMetadata:
        if (name := path.rpartition("/")[2]) in broken:
            raise MetadataUnreadable(f"{name} is broken")
        uuid, log, minutes = versions[name]
        return metadata(
            table_uuid=uuid,
            metadata_location=path,
            metadata_log=tuple(f"s3://lake/t/metadata/{one}" for one in log),
            last_updated=NOW + timedelta(minutes=minutes),
        )

    others = ["s3://lake/t/data/a.parquet", "s3://lake/t/metadata/snap-1.avro"]
    paths = [f"s3://lake/t/metadata/{name}" for name in (*versions, *broken)]
    return newest("s3://lake/t", [*others, *paths], read).metadata_location.rpartition("/")[2]


def named(number: int, end: str = "a") -> str:
    """The name of a metadata file."""
    return f"{number:05d}-{end}.metadata.json"


FIRST = {named(0): ("u", (), 0), named(1): ("u", [named(0)], 1)}
THIRD = {**FIRST, named(2): ("u", [named(0), named(1)], 2)}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (FIRST, named(1)),
        (THIRD, named(2)),
        ({**THIRD, named(1, "lost"): ("u", [named(0)], 1)}, named(2)),
        ({named(7): ("u", [named(6)], 7), named(3): ("u", [named(2)], 3)}, named(7)),
        ({named(7): ("u", (), 7), named(3): ("u", (), 3)}, named(7)),
        ({named(9): ("u", [named(8)], 9), named(0, "anew"): ("u", [named(9)], 10)}, named(0, "anew")),
        ({"v3.metadata.json": ("u", ["v2.metadata.json"], 3), "v2.metadata.json": ("u", (), 2)}, "v3.metadata.json"),
        ({"v3.gz.metadata.json": ("u", (), 3)}, "v3.gz.metadata.json"),
    ],
    ids=["two", "three", "a commit that lost", "a log cut short", "copies", "counted anew", "Hadoop", "gzipped"],
)
def test_the_newest_version_is_found(versions: Versions, expected: str) -> None:
    """It is the one to which all others led, whatever commits lost, and however much of the log is left."""
    assert chosen(versions) == expected


@pytest.mark.parametrize(
    ("versions", "broken", "words"),
    [
        ({}, (), "no metadata file"),
        ({**THIRD, named(2, "b"): ("u", [named(1)], 2)}, (), "2 versions that may be the newest"),
        ({**THIRD, named(0, "other"): ("v", (), 0)}, (), "more than one table"),
        (THIRD, [named(3)], "cannot be read"),
        (THIRD, [named(2, "b")], "cannot be read"),
        ({named(5): ("u", [named(4)], 5), named(2): ("u", [named(1)], 9)}, (), "may be the newest"),
    ],
    ids=["nothing", "a race", "two tables", "a broken one after it", "a broken one beside it", "a later, lower one"],
)
def test_what_is_not_certain_is_refused(versions: Versions, broken: Sequence[str], words: str) -> None:
    """No file is chosen where another one may be the table's newest as well."""
    with pytest.raises(Refused, match=words):
        chosen(versions, broken)


def test_a_broken_file_that_a_later_version_followed_is_passed_over() -> None:
    """What lost, or is older, is of no interest."""
    assert chosen(THIRD, [named(1, "b")]) == named(2)
    assert version_number("s3://lake/t/metadata/00002-a.metadata.json.gz") == 2
    assert version_number("s3://lake/t/metadata/notes.metadata.json") is None
