"""Whose tables events speak of."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from icewright.core.errors import BadEvent
from icewright.core.events.directory import CatalogEntry, Directory, folder_contains
from icewright.core.events.model import CommitReported, Event, Message, MetadataChanged, ScanReported, TableTouched

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DIRECTORY = Directory(
    {
        "lake": CatalogEntry(("iceberg", "spark_catalog"), ("s3://lake/warehouse/",)),
        "pond": CatalogEntry((), ("file:///data/pond", "s3://lake/warehouse/pond/")),
    }
)


def scan(*name: str) -> ScanReported:
    """A scan of a table."""
    return ScanReported(name, NOW, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("event", "understood"),
    [
        (
            TableTouched((("lake", "a", "b"), ("iceberg", "a", "c"))),
            TableTouched((("lake", "a", "b"), ("lake", "a", "c"))),
        ),
        (scan("spark_catalog", "a", "b"), scan("lake", "a", "b")),
        (CommitReported(("pond", "a", "b"), 7), CommitReported(("pond", "a", "b"), 7)),
        (MetadataChanged("s3a://lake/warehouse/a/m.metadata.json"), MetadataChanged("", ("lake",))),
        (MetadataChanged("s3://lake/warehouse/pond/m.metadata.json"), MetadataChanged("", ("lake", "pond"))),
        (MetadataChanged("file:/data/pond/m.metadata.json"), MetadataChanged("", ("pond",))),
        (MetadataChanged("s3://other/warehouse/m.metadata.json"), MetadataChanged("", ())),
    ],
)
def test_names_become_ours(event: Event, understood: Event) -> None:
    """A catalog is known by its name, its aliases and its locations, however they are spelled."""
    (found,) = DIRECTORY.resolve(Message("1", (event,))).message.events
    if isinstance(event, MetadataChanged):
        assert isinstance(understood, MetadataChanged)
        understood = MetadataChanged(event.location, understood.catalogs)
    assert found == understood


def test_a_catalog_that_is_not_there() -> None:
    """Is a fault with its remedy, unless the sender speaks of everything that it does."""
    events = (scan("tpch", "tiny", "nation"), scan("iceberg", "a", "b"), TableTouched((("tpch", "a", "b"),)))
    with pytest.raises(BadEvent, match=r"no catalog tpch; known are lake, pond; .* add it to catalogs\.\*\.aliases"):
        DIRECTORY.resolve(Message("1", events))
    with pytest.raises(BadEvent, match="no catalog lak; did you mean lake"):
        DIRECTORY.resolve(Message("1", (scan("lak", "a", "b"),)))
    found = DIRECTORY.resolve(Message("1", events, foreign=True))
    assert (found.message.events, found.ignored) == ((scan("lake", "a", "b"),), ("there is no catalog tpch",))


@pytest.mark.parametrize(
    ("folder", "file", "within"),
    [
        ("s3://b/t", "s3a://b/t/metadata/m.json", True),
        ("s3://b/t", "s3://b/t2/metadata/m.json", False),
        ("s3://b/t", "s3://c/t/metadata/m.json", False),
        ("s3://b/t", "gs://b/t/metadata/m.json", False),
        ("file:///t", "/t/m.json", True),
        ("s3://b/a%20b", "s3://b/a b//m.json", True),
    ],
)
def test_what_lies_below_a_folder(folder: str, file: str, within: bool) -> None:
    """Whichever way both are spelled; a folder is not its namesake with more letters."""
    assert folder_contains(folder, file) is within
