"""What Glue alone does: versions of entries, faults of its API, throttling; and what of an entry stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.catalogs.glue import GlueCatalog
from icewright.adapters.catalogs.translate import glue_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import (
    AccessDenied,
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    Refused,
    TableNotFound,
    UnsupportedTable,
)
from tests.contracts.bench import CHANGES, Bench, FixedClock, file_of, removal
from tests.contracts.glue_bench import KEYS, GlueBench
from tests.faulty_proxy import Fault, Proxy, faulty_proxy
from tests.servers.loopback import free_port

pytestmark = [pytest.mark.external, pytest.mark.parametrize("uri", ["glue"], indirect=True)]
UPDATE, GET, LIST = "UpdateTable$", "GetTable$", "GetTables$"


@pytest.fixture
def proxy(bench: GlueBench) -> Iterator[Proxy]:
    """What Icewright asks in place of the server; PyIceberg goes past it."""
    with faulty_proxy(bench.uri) as running:
        said = {"glue.endpoint": running.address, "warehouse": f"file://{bench.warehouse}", **KEYS}
        bench.catalog.close()
        bench.catalog = GlueCatalog(glue_catalog("lake", said), LocalStorage(), bench.clock)
        yield running


def _fault(code: str, status: int = 400) -> dict[str, Any]:
    return {"status": status, "body": json.dumps({"__type": code, "message": "made up"}).encode()}


def _files(bench: Bench) -> set[Path]:
    return set(bench.warehouse.rglob("*.metadata.json"))


def _property(bench: Bench) -> None:
    bench.read("sales", "orders").transaction().set_properties({"owner": "me"}).commit_transaction()


@pytest.mark.cases(77)
@pytest.mark.parametrize(
    "how",
    [{"status": None}, {"status": 500}, {"status": 504, "body": b"<html>"}, _fault("ConcurrentModificationException")],
)
def test_landed_without_a_good_answer(bench: GlueBench, proxy: Proxy, how: dict[str, Any]) -> None:
    """A cut connection or a 5xx after the update was done: the entry shows that it was."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(UPDATE, forward=True, **how))
    after = bench.catalog.commit(base, removal(base, 0))
    assert bench.rows()["sales", "orders"] == (after.metadata_location, base.metadata_location)
    assert proxy.count(UPDATE) == 1


@pytest.mark.cases(77, 78)
@pytest.mark.parametrize("how", [{"status": None}, {"status": 500}, _fault("OperationTimeoutException")])
def test_nobody_knows_whether_it_lands(bench: GlueBench, proxy: Proxy, how: dict[str, Any]) -> None:
    """The entry is as it was, and the request may still be under way: unknown, and the new file stays."""
    base = bench.craft("sales.orders")
    files = _files(bench)
    proxy.faults.append(Fault(UPDATE, **how))
    with pytest.raises(CommitStateUnknown, match=r"lake\.sales\.orders"):
        bench.catalog.commit(base, removal(base, 0))
    (new,) = _files(bench) - files
    assert new.read_bytes()
    assert bench.catalog.load(base.ref) == base


@pytest.mark.cases(75, 78)
def test_lost_and_somebody_else_committed(bench: GlueBench, proxy: Proxy) -> None:
    """Another commit made a new version, so ours can never land: a conflict, and the new file goes."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(UPDATE, act=lambda: _property(bench)))
    with pytest.raises(CommitConflict, match=r"lake\.sales\.orders"):
        bench.catalog.commit(base, removal(base, 0))
    theirs = bench.read("sales", "orders")
    assert _files(bench) == {
        file_of(theirs.metadata_location),
        *map(file_of, [e.metadata_file for e in theirs.metadata.metadata_log]),
    }


class Meddled(LocalStorage):
    """Something happens when a metadata file is written: between the look at the table and the commit."""

    meddle: Callable[[], None]

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Write, then meddle."""
        super().write(path, content)
        self.meddle()


@pytest.mark.cases(75, 82)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_version_in_between(bench: GlueBench, proxy: Proxy, change: Callable[[Any], Any]) -> None:
    """Glue compares the version: who commits after our last look makes it a conflict, and our file goes."""
    base = bench.craft("sales.orders")

    def meddle(line: str, _headers: Mapping[str, str]) -> None:
        if re.search(UPDATE, line):
            _property(bench)

    proxy.guard = meddle
    with pytest.raises(CommitConflict, match="ConcurrentModificationException"):
        bench.catalog.commit(base, change(base))
    now = bench.read("sales", "orders")
    assert now.properties["owner"] == "me"
    logged = {file_of(entry.metadata_file) for entry in now.metadata.metadata_log}
    assert _files(bench) == {*logged, file_of(now.metadata_location)}


@pytest.mark.cases(75)
def test_a_table_of_the_same_version_in_between(bench: GlueBench) -> None:
    """Glue counts the versions of a table that is dropped and made anew from the first one: it is no such table."""
    base, other = bench.craft("sales.orders"), bench.craft("sales.other")
    version = bench.iceberg.glue.get_table(DatabaseName="sales", Name="orders")["Table"]["VersionId"]

    def made_anew() -> None:
        bench.iceberg.drop_table("sales.orders")
        bench.iceberg.register_table("sales.orders", other.metadata_location)
        assert bench.iceberg.glue.get_table(DatabaseName="sales", Name="orders")["Table"]["VersionId"] == version

    bench.catalog.files, files = Meddled(), _files(bench)
    bench.catalog.files.meddle = made_anew
    with pytest.raises(CommitConflict, match="another writer committed"):
        bench.catalog.commit(base, removal(base, 0))
    assert bench.read("sales", "orders").metadata_location == other.metadata_location
    assert _files(bench) == files


REFUSALS: dict[str, tuple[dict[str, Any], type[IcewrightError]]] = {
    "denied": (_fault("AccessDeniedException"), AccessDenied),
    "gone": (_fault("EntityNotFoundException"), CommitConflict),
    "invalid": (_fault("InvalidInputException"), Refused),
    "too many": (_fault("ResourceNumberLimitExceededException"), Refused),
    "expired": (_fault("ExpiredTokenException"), CatalogUnavailable),
    "throttled": ({**_fault("ThrottlingException"), "times": 99}, CatalogUnavailable),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_was_not_done(bench: GlueBench, proxy: Proxy, name: str) -> None:
    """An answer that says so ends the commit with its reason; the entry stays and the new file goes."""
    how, error = REFUSALS[name]
    base = bench.craft("sales.orders")
    files, rows = _files(bench), bench.rows()
    proxy.faults.append(Fault(UPDATE, **how))
    with pytest.raises(error, match="made up") as caught:
        bench.catalog.commit(base, removal(base, 0))
    assert "hush" not in str(caught.value)
    assert (_files(bench), bench.rows()) == (files, rows)


def test_throttled_for_a_while(bench: GlueBench, proxy: Proxy) -> None:
    """Glue says when it has no time, and then nothing was done: commits and lists are asked for again."""
    base = bench.craft("sales.orders")
    proxy.faults += [
        Fault(UPDATE, times=2, **_fault("ThrottlingException")),
        Fault(LIST, **_fault("ThrottlingException")),
    ]
    before = bench.clock.time
    after = bench.catalog.commit(base, removal(base, 0))
    assert proxy.statuses(UPDATE) == [400, 400, 200]
    assert bench.clock.time > before
    assert [p.metadata_location for p in bench.catalog.pointers()] == [after.metadata_location]


LISTS: dict[str, tuple[dict[str, Any], type[IcewrightError], str]] = {
    "denied": (_fault("AccessDeniedException"), AccessDenied, "grant glue:GetDatabases"),
    "expired": (_fault("ExpiredTokenException"), CatalogUnavailable, "renew the keys"),
    "down": (_fault("InternalServiceException", 500), CatalogUnavailable, "asked again later"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_breaks_off(bench: GlueBench, proxy: Proxy, name: str) -> None:
    """A page that does not come makes the whole list an error that says what to do, never a shorter list."""
    how, error, mend = LISTS[name]
    for table in "abcde":
        bench.create("sales", table)
    said = {"glue.endpoint": proxy.address, "glue.max-retries": "1", **KEYS}
    catalog = GlueCatalog(glue_catalog("lake", said), LocalStorage(), bench.clock)
    assert len(catalog.pointers()) == 5
    assert proxy.count(LIST) == 2
    proxy.faults.append(
        Fault(LIST, forward=True, act=lambda: proxy.faults.append(Fault(LIST, times=99, **how)), status=429)
    )
    with pytest.raises(error, match=mend) as caught:
        catalog.pointers()
    assert "hush" not in str(caught.value)
    catalog.close()


def test_nobody_answers(bench: GlueBench) -> None:
    """The error names the catalog and the place, and holds no key."""
    said = {"glue.endpoint": f"http://127.0.0.1:{free_port()}", "glue.max-retries": "0", **KEYS}
    catalog = GlueCatalog(glue_catalog("lake", said), LocalStorage(), FixedClock())
    for call in (catalog.pointers, lambda: catalog.load(bench.ref("sales", "orders"))):
        with pytest.raises(CatalogUnavailable, match=r"catalog lake at 127\.0\.0\.1") as caught:
            call()
        assert "hush" not in str(caught.value)
    catalog.close()


def test_what_is_no_iceberg_table(bench: GlueBench) -> None:
    """Tables of others, views, and entries without metadata are not loaded; those with a folder are listed apart."""
    location = bench.create("sales", "orders").metadata_location
    glue = bench.iceberg.glue
    entries: dict[str, dict[str, str]] = {
        "csv": {},
        "view": {"table_type": "iceberg-view", "metadata_location": location},
        "unborn": {"table_type": "ICEBERG"},
    }
    for name, parameters in entries.items():
        glue.create_table(DatabaseName="sales", TableInput={"Name": name, "Parameters": parameters})
    glue.create_table(DatabaseName="sales", TableInput={"Name": "bare"})
    descriptor = {"Location": "s3://raw/a/", "SerdeInfo": {"Parameters": {"path": "s3://raw/b"}}}
    glue.create_table(DatabaseName="sales", TableInput={"Name": "crawled", "StorageDescriptor": descriptor})
    pointers, datasets = bench.catalog.listing()
    assert bench.catalog.pointers() == pointers
    assert {p.ref.name for p in pointers} == {"orders"}
    assert {d.ref.name: d.locations for d in datasets} == {"crawled": ("s3://raw/a/", "s3://raw/b")}
    for name in (*entries, "bare"):
        with pytest.raises(TableNotFound, match=name):
            bench.catalog.load(bench.ref("sales", name))


def test_the_rest_of_the_entry_stays(bench: GlueBench) -> None:
    """Description, owner, columns with their comments and parameters of others are as they were before a commit."""
    base = bench.craft("sales.orders")
    entry = bench.entry("sales", "orders")
    kept = {key: entry[key] for key in ("Name", "TableType", "StorageDescriptor", "Parameters")}
    kept["StorageDescriptor"]["Columns"][0]["Comment"] = "which order"
    kept |= {"Description": "all orders", "Owner": "sales", "Retention": 7}
    kept["Parameters"]["classification"] = "gold"
    bench.iceberg.glue.update_table(DatabaseName="sales", TableInput=kept)
    after = bench.catalog.commit(base, removal(base, 0))
    now = bench.entry("sales", "orders")
    moved = {"metadata_location": after.metadata_location, "previous_metadata_location": base.metadata_location}
    assert {key: now[key] for key in kept} == kept | {"Parameters": {**kept["Parameters"], **moved}}


def test_an_encrypted_table(bench: GlueBench) -> None:
    """Its catalog holds a checksum that this program does not write: nothing is committed."""
    base = bench.craft("sales.orders")
    entry = bench.entry("sales", "orders")
    table = {"Name": "orders", "Parameters": {**entry["Parameters"], "encryption.key-id": "k"}}
    bench.iceberg.glue.update_table(DatabaseName="sales", TableInput=table)
    with pytest.raises(UnsupportedTable, match="encrypted"):
        bench.catalog.commit(base, removal(base, 0))


def test_many_databases(bench: GlueBench) -> None:
    """Databases and tables come in pages, and all of them are listed; a database that goes meanwhile has none."""
    for number in range(8):
        bench.create(f"d{number}", "orders")
    for name in "abcd":
        bench.create("d0", name)
    assert len(bench.catalog.pointers()) == 12
    assert bench.catalog._client.tables("gone") == []
