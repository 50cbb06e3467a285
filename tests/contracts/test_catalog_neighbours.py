"""What every catalog does: tell of the tables that its server or database shows beyond its own."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import sqlalchemy as sa

from icewright.core.errors import CatalogUnavailable, MetadataUnreadable
from icewright.core.table import TableRef
from icewright.ports import Pointer
from tests.contracts.bench import TYPES, Bench, file_of, only_sql, where
from tests.contracts.nessie_bench import NessieBench

only_nessie = where(lambda kind: kind.name == "nessie")


def test_its_own_tables_are_no_neighbours(bench: Bench) -> None:
    """A catalog that shares its server with nobody has none."""
    bench.create("sales", "orders")
    assert not bench.catalog.neighbours()


def test_a_file_that_the_catalog_does_not_name_is_read(bench: Bench) -> None:
    """By its place alone, under the name that it is given."""
    base = bench.craft("sales.orders", 2)
    ref = TableRef("elsewhere", ("sales",), "orders")
    found = bench.catalog.neighbour(Pointer(ref, base.metadata_location))
    assert (found.ref, found.table_uuid, found.by_id.keys()) == (ref, base.table_uuid, base.by_id.keys())


def test_a_neighbour_without_its_file_is_an_error(bench: Bench) -> None:
    """The error names the file."""
    base = bench.craft("sales.orders", 1)
    gone = base.metadata_location.replace("metadata.json", "gone.metadata.json")
    with pytest.raises(MetadataUnreadable, match=r"gone\.metadata\.json"):
        bench.catalog.neighbour(Pointer(base.ref, gone))


@only_sql
@pytest.mark.cases(96)
def test_other_catalogs_of_the_database_are_neighbours(bench: Bench) -> None:
    """Each table under the name of its own catalog, which may have any letters, as its own row has it."""
    moved = bench.craft("sales.orders", 3)
    bench.execute("UPDATE iceberg_tables SET catalog_name = 'old lake'")
    own = bench.create("eu", "sales", "orders").metadata_location
    bench.insert("eu.sales", "twin", own, catalog_name="pond")
    there = TableRef("old lake", ("sales",), "orders")
    found = {p.ref: p for p in bench.catalog.neighbours()}
    assert found == {
        there: Pointer(there, moved.metadata_location),
        (twin := TableRef("pond", ("eu", "sales"), "twin")): Pointer(twin, own),
    }
    assert str(there) == "`old lake`.sales.orders"
    assert bench.catalog.neighbour(found[there]).by_id.keys() == moved.by_id.keys()
    assert [p.metadata_location for p in bench.catalog.pointers()] == [own]


@only_sql
def test_views_and_tables_that_are_not_made_yet_are_no_neighbours(bench: Bench) -> None:
    """As they are no tables of the catalog either; the older schema, which knows no views, has neighbours too."""
    location = bench.create("sales", "orders").metadata_location
    bench.insert("sales", "view", location, catalog_name="pond", iceberg_type="VIEW")
    bench.insert("sales", "unborn", None, catalog_name="pond")
    bench.insert("sales", "blank", "", catalog_name="pond")
    bench.insert("sales", "untyped", location, catalog_name="pond")
    assert [p.ref.name for p in bench.catalog.neighbours()] == ["untyped"]
    assert TYPES["V0"] == ""
    bench.start_over("V0")
    bench.insert("sales", "older", location, catalog_name="pond")
    assert [p.ref.name for p in bench.catalog.neighbours()] == ["older"]


@only_sql
def test_neighbours_are_one_query(bench: Bench) -> None:
    """However many there are, and the catalog's own tables come without them."""
    location = bench.create("sales", "orders").metadata_location
    for number in range(3):
        bench.insert("sales", f"t{number}", location, catalog_name=f"pond{number}")
    fetched: list[int] = []

    @sa.event.listens_for(bench.catalog._engine, "before_cursor_execute")
    def _count(*called: Any) -> None:
        if "iceberg_tables.metadata_location" in called[2]:
            fetched.append(1)

    assert len(bench.catalog.neighbours()) == 3
    assert len(fetched) == 1
    assert len(bench.catalog.pointers()) == 1
    assert len(fetched) == 2


@only_sql
@pytest.mark.cases(96)
def test_a_database_that_does_not_answer_has_no_neighbours_to_tell_of(bench: Bench) -> None:
    """That is an error, and no empty answer."""
    bench.execute("DROP TABLE iceberg_tables")
    with pytest.raises(CatalogUnavailable):
        bench.catalog.neighbours()


def _branch(bench: NessieBench, name: str, kind: str = "BRANCH") -> None:
    main = bench.native.reference("main")
    body = {"type": "BRANCH", "name": "main", "hash": main.hash}
    response = requests.post(f"{bench.uri}/trees", params={"name": name, "type": kind}, json=body, timeout=30)
    assert response.ok, response.text


@only_nessie
@pytest.mark.cases(96)
def test_other_branches_and_tags_are_neighbours(bench: NessieBench) -> None:
    """As far as they name other files than the branch does; each file comes once."""
    bench.craft("sales.orders", 2)
    bench.craft("sales.items", 1)
    old = bench.content_location("sales", "orders")
    _branch(bench, "dev/1")
    _branch(bench, "v1.0", "TAG")
    try:
        assert not bench.catalog.neighbours()
        table = bench.read("sales", "orders")
        table.append(table.scan().to_arrow().slice(0, 1))
        (found,) = bench.catalog.neighbours()
        assert found.metadata_location == old != bench.content_location("sales", "orders")
        assert found.ref in (TableRef("lake@dev/1", ("sales",), "orders"), TableRef("lake@v1.0", ("sales",), "orders"))
        assert str(found.ref).startswith(("lake@dev/1.sales", "`lake@v1.0`.sales"))
        assert len(bench.catalog.neighbour(found).snapshots) == 2
        assert {p.ref.catalog for p in bench.catalog.pointers()} == {"lake"}
    finally:
        bench.drop_reference("dev/1")
        bench.drop_reference("v1.0")
    assert not bench.catalog.neighbours()


@only_nessie
def test_a_branch_that_a_new_one_equals_is_not_listed_again(
    bench: NessieBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new branch or tag costs one request, and what moves on it the commits since."""
    bench.craft("sales.orders", 1)
    bench.catalog.pointers()
    _branch(bench, "dev")
    try:
        monkeypatch.setattr(type(bench.native), "entries", None)
        assert not bench.catalog.neighbours()
        bench.craft("sales.items", 1)
        assert not bench.catalog.neighbours()
    finally:
        bench.drop_reference("dev")


@only_nessie
def test_a_server_that_is_away_has_no_neighbours_to_tell_of(bench: NessieBench) -> None:
    """That is an error, and no empty answer."""
    bench.catalog.pointers()
    object.__setattr__(bench.catalog._client, "api", "http://127.0.0.1:9/api/v2")
    with pytest.raises(CatalogUnavailable):
        bench.catalog.neighbours()


def test_the_file_of_a_neighbour_may_be_anybodys(bench: Bench) -> None:
    """What is no metadata file is an error that names it."""
    base = bench.craft("sales.orders", 1)
    strange = base.metadata_location.replace("metadata.json", "strange.metadata.json")
    file_of(strange).write_bytes(b"{")
    with pytest.raises(MetadataUnreadable, match="strange"):
        bench.catalog.neighbour(Pointer(base.ref, strange))
