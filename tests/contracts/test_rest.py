"""What a REST catalog does beyond the contract: few and short requests, weather, refs that come at the worst moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.rest.client import RestClient, RestResponse
from icewright.adapters.catalogs.translate import rest_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.metadata.changes import restoration
from icewright.core.allowlist import Allowlist
from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    MetadataUnreadable,
    Refused,
    UnsupportedTable,
)
from icewright.core.table import RefKind, TableMetadata
from icewright.ports import Change, RestoreSnapshots, SetStatistics
from tests.contracts.bench import CHANGES, FixedClock, addition, file_of, removal
from tests.contracts.rest_bench import RestBench
from tests.faulty_proxy import Fault, Proxy, faulty_proxy
from tests.servers.loopback import free_port
from tests.servers.relay import answer
from tests.servers.rest_server import RestHost

pytestmark = pytest.mark.external
TABLE, COMMIT = r"GET .*/tables/[^?]*", r"POST .*/tables/orders$"
EITHER = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
Make = Callable[[TableMetadata], Change]


@pytest.fixture
def bench(rest_fixture: RestHost, tmp_path: Path) -> Iterator[RestBench]:
    """A REST catalog that others reach directly."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    address = rest_fixture.serve(tmp_path / "catalog.db", f"file://{warehouse}")
    made = RestBench(f"sqlite:///{tmp_path}/catalog.db", warehouse, address=address)
    yield made
    made.close()
    rest_fixture.end(address)


@pytest.fixture
def proxy(bench: RestBench) -> Iterator[Proxy]:
    """The way that Icewright takes to it."""
    with faulty_proxy(bench.address) as made:
        yield made


@pytest.fixture
def catalog(proxy: Proxy) -> Iterator[RestCatalog]:
    """Icewright's client."""
    made = client(proxy.address)
    yield made
    made.close()


def client(address: str, **properties: str) -> RestCatalog:
    """A client of its own, whose waiting takes no time."""
    return RestCatalog(rest_catalog("lake", {"uri": address, **properties}), LocalStorage(), FixedClock())


def test_detection_asks_for_refs_and_only_for_what_is_new(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A second look costs one short answer a table, 304, unless it moved; history is never sent."""
    for name in ("a", "b"):
        bench.craft(f"sales.{name}")
    first = catalog.pointers()
    assert catalog.pointers() == first
    assert proxy.statuses(TABLE) == [200, 200, 304, 304]
    assert proxy.count(TABLE + r"\?snapshots=refs") == 4
    bench.read("sales", "a").transaction().set_properties({"x": "y"}).commit_transaction()
    moved = {p.ref.name for p in set(catalog.pointers()) - set(first)}
    assert moved == {"a"}


def test_a_table_is_not_sent_twice(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """Loading again what did not change is a 304 and the same object."""
    base = bench.craft("sales.orders")
    assert catalog.load(base.ref) is catalog.load(base.ref)
    assert proxy.statuses(TABLE) == [200, 304]


def test_pages_and_levels(bench: RestBench, proxy: Proxy) -> None:
    """Two at a time, several namespaces deep, and all are found."""
    wanted = {bench.ref("a", f"t{i}") for i in range(5)} | {bench.ref("a", "b", "c", "t"), bench.ref("z", "t")}
    for ref in wanted:
        bench.create(*ref.parts[1:])
    paged = client(proxy.address, **{"rest-page-size": "2"})
    assert {p.ref for p in paged.pointers()} == wanted
    assert proxy.count(r"namespaces/a/tables\?.*pageToken=[^&]") >= 2
    paged.close()


@pytest.mark.parametrize("where", ["namespaces$", r"namespaces\?parent", "namespaces/sales/tables$", r"snapshots=refs"])
@pytest.mark.parametrize("status", [500, None, 200])  # of another document
def test_a_listing_is_whole_or_not_at_all(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, where: str, status: int | None
) -> None:
    """Any part that cannot be had, after some attempts, is an error and no shorter list."""
    bench.craft("sales.orders", 1)
    proxy.faults.append(Fault(where, times=99, status=status))
    with pytest.raises(CatalogUnavailable, match="lake"):
        catalog.pointers()
    proxy.faults.clear()
    assert len(catalog.pointers()) == 1


def test_a_namespace_that_is_listed_and_not_found(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A namespace that is listed and not found is an error, and no empty namespace."""
    bench.craft("sales.orders", 1)
    proxy.faults.append(Fault("namespaces/sales/tables", times=99, status=404))
    with pytest.raises(CatalogUnavailable, match="sales"):
        catalog.pointers()


@pytest.mark.parametrize(("says", "least"), [("{seconds}", 7), ("{date}", 7), ("soon", 0)])
def test_a_server_that_is_busy_is_given_time(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, says: str, least: int
) -> None:
    """429 and 503 are waited out as long as Retry-After says, in seconds or by a date."""
    base, clock = bench.craft("sales.orders", 1), catalog.clock
    before = clock.now()
    value = says.format(seconds=least, date=format_datetime(before + timedelta(seconds=least), usegmt=True))
    proxy.faults += [Fault(TABLE, status=503, headers={"Retry-After": value}), Fault(TABLE, status=429)]
    assert catalog.load(base.ref).table_uuid == base.table_uuid
    assert least <= (clock.now() - before).total_seconds() < least + 3


def test_a_server_that_asks_for_more_patience_than_any_call_has(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy
) -> None:
    """It is called unavailable at once, with what it asks for, and not asked again by this call."""
    base = bench.craft("sales.orders", 1)
    proxy.faults.append(Fault(TABLE, times=99, status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(CatalogUnavailable, match="asks for 3600 s of patience"):
        catalog.load(base.ref)
    assert proxy.count(TABLE) == 1


def test_a_table_that_may_not_be_read(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """It is listed, loading it says why, and the others are not in its way."""
    bench.craft("sales.orders", 1)
    bench.craft("sales.secret", 1)
    proxy.faults.append(Fault("tables/secret", times=99, status=403))
    assert {p.ref.name for p in catalog.pointers()} == {"orders", "secret"}
    with pytest.raises(UnsupportedTable, match=r"lake\.sales\.secret.*403"):
        catalog.load(bench.ref("sales", "secret"))


def test_a_table_that_is_listed_and_not_found(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """It is no table of the catalog, and may be there all the same: whoever asks what else may be there is told."""
    bench.craft("sales.orders", 1)
    hidden = bench.craft("sales.hidden", 1).ref
    proxy.faults.append(Fault("tables/hidden", times=2, status=404))
    for _ in range(2):
        assert [p.ref.name for p in catalog.pointers()] == ["orders"]
        assert [p.ref for p in catalog.neighbours()] == [hidden]
    assert (len(catalog.pointers()), catalog.neighbours()) == (2, [])


def test_a_reply_of_referenced_snapshots_alone(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that looks at paths alone answers the listing's query: what the history names is in the metadata file."""
    base, ask = bench.craft("sales.orders"), RestClient.get

    def cached(client: RestClient, path: str, *_: object, **more: Any) -> RestResponse:
        return ask(client, path, {"snapshots": "refs"}, **more)

    monkeypatch.setattr(RestClient, "get", cached)
    for _ in range(2):
        assert catalog.load(base.ref).snapshots == base.snapshots
    assert proxy.statuses(TABLE) == [200, 304]


@pytest.mark.cases(113)
@pytest.mark.parametrize(
    ("status", "body"),
    [(401, b"{}"), (500, b"{}"), (504, b""), (None, b""), (200, b"<html>"), (200, b'{"metadata": {}}')],
)
def test_tables_that_the_server_does_not_load(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int | None, body: bytes
) -> None:
    """They are listed, and are at fault themselves, as the server loads others; until it loads them again."""
    broken = [bench.craft(f"sales.broken_{number}", 1).ref for number in range(3)]
    well = bench.craft("sales.well", 1)
    first = catalog.pointers()
    proxy.faults.append(Fault("tables/broken", times=999, status=status, body=body))
    fresh = client(proxy.address)
    for listing in (fresh.pointers(), fresh.pointers()):
        assert {p.ref for p in listing} == {*broken, well.ref}
        assert [p for p in listing if p.ref == well.ref] == [p for p in first if p.ref == well.ref]
    for ref in broken:
        with pytest.raises((MetadataUnreadable, UnsupportedTable), match=rf"lake\.sales\.{ref.name}"):
            fresh.load(ref)
    assert fresh.load(well.ref) == well
    proxy.faults.clear()
    assert [fresh.load(ref).ref for ref in broken] == broken
    assert set(fresh.pointers()) == set(first)
    fresh.close()


@pytest.mark.cases(150)
def test_a_name_that_no_database_takes(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """The table is listed by a name that can be written down, and the others are not in its way."""
    orders = bench.craft("sales.orders", 1).ref
    names = [{"namespace": ["sales"], "name": name} for name in ("or\0ders", "orders")]
    proxy.faults.append(Fault("namespaces/sales/tables$", status=200, body=json.dumps({"identifiers": names}).encode()))
    assert {p.ref for p in catalog.pointers()} == {orders, bench.ref("sales", "or\ufffdders")}


@pytest.mark.parametrize("status", [401, 500])
def test_a_server_that_loads_no_table(bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int) -> None:
    """It is at fault itself, whatever it answers elsewhere, and is not asked for thousands."""
    for number in range(30):
        bench.craft(f"sales.t{number}", 1)
    proxy.faults.append(Fault("tables/", times=9999, status=status))
    with pytest.raises(CatalogUnavailable, match=str(status)):
        catalog.pointers()
    with pytest.raises(CatalogUnavailable, match=str(status)):
        catalog.load(bench.ref("sales", "t1"))
    assert proxy.count(TABLE) < 30 * 5
    proxy.faults.clear()
    assert len(catalog.pointers()) == 30


@pytest.mark.cases(113)
def test_a_server_that_does_not_answer_for_its_settings(catalog: RestCatalog, proxy: Proxy) -> None:
    """One that is busy or fails may answer later; any other answer is for the configuration to mend."""
    later, mend = "cannot answer now", "correct uri, warehouse and credential"
    for status, said in ((429, later), (500, later), (503, later), (200, mend), (401, mend), (404, mend), (501, mend)):
        proxy.faults.append(Fault("GET /v1/config", status=status, body=b"<html>"))
        with pytest.raises(CatalogUnavailable, match=said):
            catalog.pointers()
    assert catalog.pointers() == []


@pytest.mark.cases(114)
def test_a_connection_that_hangs_keeps_no_request_from_another(catalog: RestCatalog, proxy: Proxy) -> None:
    """A server that answers again is asked, though it never answers for its settings what it was asked before."""
    hangs, freed = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        freed.wait(90)

    proxy.faults.append(Fault("GET /v1/config", act=hang))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(catalog.pointers)
        try:
            assert hangs.wait(60)
            assert answer(catalog.pointers) == []
        finally:
            freed.set()


@pytest.mark.cases(77)
@EITHER
@pytest.mark.parametrize("status", [None, 200, 409, 500, 502, 504])
def test_the_commit_landed_and_its_reply_was_lost(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, change: Make, status: int | None
) -> None:
    """Whatever came in place of the answer, the table shows that the commit landed; nothing is sent twice."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(COMMIT, forward=True, status=status))
    after = catalog.commit(base, change(base))
    assert after == bench.catalog.load(base.ref)
    assert after.metadata_location != base.metadata_location
    assert proxy.count(COMMIT) == 1


@pytest.mark.cases(77)
def test_whatever_a_gateway_answers_after_the_commit_landed(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy
) -> None:
    """Also where it says that there is no table, or that it refuses, as to a request that it sent twice."""
    base = bench.craft("sales.orders")
    for status in (204, 304, 400, 403, 404, 408, 410):
        proxy.faults.append(Fault(COMMIT, forward=True, status=status, body=b""))
        base = catalog.commit(base, addition(base, **{"snapshot-id": 4711 + status}))
        assert base == bench.catalog.load(base.ref)
    assert proxy.count(COMMIT) == 7


@pytest.mark.cases(77, 82)
@pytest.mark.parametrize("status", [None, 401, 404, 409, 429])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_refusal_after_which_the_name_leads_elsewhere(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int | None, *, replaced: bool
) -> None:
    """The commit landed before the table was renamed, so whatever is answered, its files are in use under that name."""
    base = bench.craft("sales.orders")

    def rename() -> None:
        bench.iceberg.rename_table(("sales", "orders"), ("sales", "renamed"))
        if replaced:
            bench.create("sales", "orders")

    proxy.faults.append(Fault(COMMIT, forward=True, status=status, act=rename))
    with pytest.raises(CommitStateUnknown, match=r"cannot be seen.*sales\.orders"):
        catalog.commit(base, addition(base))
    assert 4711 in bench.catalog.load(bench.ref("sales", "renamed")).by_id


def test_credentials_that_no_request_takes_any_more(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """Whether the commit landed is not seen where they end at the commit, and is where they end for commits alone."""
    base = bench.craft("sales.orders")
    ended = Fault(TABLE, times=0, status=401)
    proxy.faults += [Fault(COMMIT, forward=True, status=401, act=lambda: setattr(ended, "times", 9)), ended]
    with pytest.raises(CommitStateUnknown, match="cannot be seen"):
        catalog.commit(base, addition(base))
    ended.times = 0
    base = catalog.load(base.ref)
    proxy.faults.append(Fault(COMMIT, status=401))
    with pytest.raises(CatalogUnavailable, match="does not accept the credentials"):
        catalog.commit(base, addition(base, **{"snapshot-id": 4712}))


@pytest.mark.cases(77, 78)
def test_an_answer_that_does_not_show_the_commit(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A redirect turns the commit into a question, and its answer is the table as it was, or another one."""
    base = bench.craft("sales.orders")
    bench.craft("sales.others", 1)
    for name in ("orders", "others"):
        headers = {"Location": f"{proxy.address}/v1/namespaces/sales/tables/{name}"}
        proxy.faults.append(Fault(COMMIT, status=302, headers=headers))
        with pytest.raises(CommitStateUnknown, match="yet"):
            catalog.commit(base, addition(base))
    assert bench.catalog.load(base.ref) == base


@pytest.mark.cases(77, 78)
@pytest.mark.parametrize("status", [None, 500])
def test_the_commit_did_not_land(bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int | None) -> None:
    """A removal may be planned again; new files may be needed yet, as the server may still be at it."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(COMMIT, times=3, status=status))
    with pytest.raises(CommitConflict, match="does not show it"):
        catalog.commit(base, removal(base, 0))
    file = {"snapshot-id": base.current_snapshot_id, "statistics-path": "s3://lake/t/p", "file-size-in-bytes": 1}
    for change in (addition(base), SetStatistics(base.snapshots[-1].snapshot_id, partition_statistics=file)):
        with pytest.raises(CommitStateUnknown, match="yet"):
            catalog.commit(base, change)
    assert bench.catalog.load(base.ref) == base


@pytest.mark.cases(77)
@EITHER
@pytest.mark.parametrize("status", [None, 200, 503])
def test_nobody_answers_after_the_commit(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, change: Make, status: int | None
) -> None:
    """What cannot be seen is unknown."""
    base = bench.craft("sales.orders")
    dark = Fault(TABLE, times=0, status=None)
    proxy.faults += [Fault(COMMIT, forward=True, status=status, act=lambda: setattr(dark, "times", 99)), dark]
    with pytest.raises(CommitStateUnknown, match=r"lake\.sales\.orders"):
        catalog.commit(base, change(base))


@EITHER
def test_a_busy_server_takes_the_commit_later(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, change: Make
) -> None:
    """503 is no commit: it is asked again, and lands once."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(COMMIT, times=2, status=503, headers={"Retry-After": "1"}))
    assert catalog.commit(base, change(base)) == bench.catalog.load(base.ref)
    assert proxy.statuses(COMMIT) == [503, 503, 200]


def test_a_503_after_the_commit_landed(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A server, or a gateway before it, that lies: the table is looked at before anything is sent again."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(COMMIT, forward=True, status=503))
    assert 4711 in catalog.commit(base, addition(base)).by_id
    assert proxy.count(COMMIT) == 1


def test_a_commit_that_lands_late(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A gateway gives up on a commit that the server is still at: it is what conflicts then, and it needs its files."""
    base = bench.craft("sales.orders")
    change = addition(base)

    def land() -> None:
        bench.catalog.commit(base, change)

    proxy.faults += [Fault(COMMIT, status=503, headers={"Retry-After": "1"}), Fault(COMMIT, status=409, act=land)]
    now = catalog.commit(base, change)
    assert (4711 in now.by_id, proxy.count(COMMIT)) == (True, 2)
    proxy.faults.append(Fault(COMMIT, times=4, status=503))
    with pytest.raises(CommitStateUnknown, match="does not show it yet"):
        catalog.commit(now, addition(now, **{"snapshot-id": 4712}))


def test_a_commit_that_may_land_yet_keeps_its_files(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """A gateway has given up on it: a refusal, no credentials and other people's commits do not end it."""
    base = bench.craft("sales.orders")

    def own() -> None:
        bench.read("sales", "orders").transaction().set_properties({"owner": "me"}).commit_transaction()

    for later in (Fault(COMMIT, status=400), Fault(COMMIT, status=401), Fault(COMMIT, times=3, status=429), None):
        busy = Fault(COMMIT, status=503, act=own if later is None else lambda: None)
        proxy.faults = [busy, *([later] if later else [])]
        with pytest.raises(CommitStateUnknown, match="does not show it yet"):
            catalog.commit(base, addition(base))


@pytest.mark.parametrize(("status", "error"), [(409, CommitConflict), (400, Refused), (403, Refused)])
def test_what_the_server_refuses(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int, error: type[Exception]
) -> None:
    """Its own words are told."""
    base = bench.craft("sales.orders")
    proxy.faults.append(Fault(COMMIT, status=status, body=b'{"error": {"message": "because"}}'))
    with pytest.raises(error, match="because"):
        catalog.commit(base, removal(base, 0))


def test_another_writer_first(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """An append between the look and the commit breaks a requirement; nothing of it is lost."""
    base = bench.craft("sales.orders")

    def append() -> None:
        table = bench.read("sales", "orders")
        table.append(table.scan().to_arrow().slice(0, 1))

    _at_the_commit(proxy, append)
    with pytest.raises(CommitConflict):
        catalog.commit(base, addition(base))
    assert bench.read("sales", "orders").scan().to_arrow().num_rows == 5


def _at_the_commit(proxy: Proxy, act: Callable[[], object]) -> None:
    """Do something when our look before the commit is over: with the very request of the commit."""
    real = proxy.take

    def take(line: str) -> Fault | None:
        if line.startswith("POST") and line.endswith("/tables/orders"):
            proxy.take = real  # type: ignore[method-assign]
            act()
        return real(line)

    proxy.take = take  # type: ignore[method-assign]


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", ["tag", "branch"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_ref_at_the_worst_moment(bench: RestBench, catalog: RestCatalog, proxy: Proxy, kind: str, index: int) -> None:
    """A ref set on a snapshot as it goes: the server drops both, so both are put back, and the rows are read by it."""
    base = bench.craft("sales.orders")
    wanted = base.snapshots[index].snapshot_id

    def name_it() -> None:
        manage = bench.read("sales", "orders").manage_snapshots()
        (manage.create_tag if kind == "tag" else manage.create_branch)(
            wanted, "keep", max_ref_age_ms=5_000_000
        ).commit()

    _at_the_commit(proxy, name_it)
    with pytest.raises(CommitConflict, match=r"keep was set .* it was put back"):
        catalog.commit(base, removal(base, 0, 1, 2))
    now = bench.catalog.load(base.ref)
    (kept,) = (r for r in now.refs if r.name == "keep")
    assert (kept.kind, kept.snapshot_id) == (RefKind(kind), wanted)
    assert kept.max_ref_age is not None
    assert kept.max_ref_age.total_seconds() == 5000
    theirs = bench.read("sales", "orders")
    assert sorted(theirs.scan(snapshot_id=wanted).to_arrow()["id"].to_pylist()) == list(range(index + 1))
    theirs.append(theirs.scan().to_arrow().slice(0, 1))  # and the table goes on
    assert theirs.scan().to_arrow().num_rows == 5


def _expired(bench: RestBench) -> tuple[TableMetadata, RestoreSnapshots]:
    """A table whose two oldest snapshots, one of them tagged, have expired, and what puts them back."""
    base = bench.craft("sales.orders")
    bench.read("sales", "orders").manage_snapshots().create_tag(base.snapshots[0].snapshot_id, "v1").commit()
    base = bench.catalog.load(base.ref)
    change = removal(base, 0, 1, refs=("v1",))
    undo = restoration(file_of(base.metadata_location).read_bytes(), base.metadata_location, change)
    return bench.catalog.commit(base, change), undo


@pytest.mark.parametrize("status", [None, 502])
def test_a_restore_whose_reply_was_lost(
    bench: RestBench, catalog: RestCatalog, proxy: Proxy, status: int | None
) -> None:
    """The table shows that it landed; nothing is sent twice."""
    base, undo = _expired(bench)
    proxy.faults.append(Fault(COMMIT, forward=True, status=status))
    after = catalog.commit(base, undo)
    assert after == bench.catalog.load(base.ref)
    assert len(after.snapshots) == 4
    assert proxy.count(COMMIT) == 1


def test_a_restore_that_did_not_land_is_tried_again(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """As a conflict: the same change may be committed again."""
    base, undo = _expired(bench)
    proxy.faults.append(Fault(COMMIT, status=500))
    with pytest.raises(CommitConflict, match="does not show it"):
        catalog.commit(base, undo)
    assert len(catalog.commit(catalog.load(base.ref), undo).snapshots) == 4


@pytest.mark.parametrize("who", ["writer", "tagger", "brancher", "stager"])
def test_a_restore_and_somebody_elses_commit(bench: RestBench, catalog: RestCatalog, proxy: Proxy, who: str) -> None:
    """With the very request: nothing of either is lost, and the next attempt puts the snapshots back."""
    base, undo = _expired(bench)

    def act() -> None:
        table = bench.read("sales", "orders")
        rows = table.scan().to_arrow().slice(0, 1)
        match who:
            case "writer":
                table.append(rows)
            case "tagger":
                table.manage_snapshots().create_tag(int(base.current_snapshot_id or 0), "v1").commit()
            case "brancher":
                table.manage_snapshots().create_branch(int(base.current_snapshot_id or 0), "audit").commit()
                table.refresh().append(rows, branch="audit")
            case _:
                with table.transaction() as transaction:
                    transaction.append(rows, branch="staged")

    _at_the_commit(proxy, act)
    with pytest.raises(CommitConflict):
        catalog.commit(base, undo)
    now = catalog.load(base.ref)
    assert now.last_sequence_number == base.last_sequence_number + (who != "tagger")
    after = catalog.commit(now, undo)
    assert after.by_id.keys() == now.by_id.keys() | {s["snapshot-id"] for s in undo.snapshots}
    assert {r.name for r in now.refs} <= {r.name for r in after.refs}
    assert after.last_sequence_number == now.last_sequence_number


def test_a_ref_that_cannot_be_put_back(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """The error names it, its snapshot and the file that still has both."""
    base = bench.craft("sales.orders")
    first = base.snapshots[0].snapshot_id

    real, posts = proxy.take, [0]

    def take(line: str) -> Fault | None:
        posts[0] += line.startswith("POST")
        return Fault(COMMIT, status=400) if line.startswith("POST") and posts[0] > 1 else real(line)

    proxy.take = take  # type: ignore[method-assign]
    _at_the_commit(proxy, lambda: bench.read("sales", "orders").manage_snapshots().create_tag(first, "keep").commit())
    with pytest.raises(
        InvariantViolated, match=rf"tag keep was set on snapshot {first} .*metadata.json still has both"
    ):
        catalog.commit(base, removal(base, 0))


def test_a_property_at_the_worst_moment(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """What does no harm between the look and the commit is kept, and the commit stands."""
    base = bench.craft("sales.orders")
    _at_the_commit(
        proxy, lambda: bench.read("sales", "orders").transaction().set_properties({"x": "y"}).commit_transaction()
    )
    after = catalog.commit(base, removal(base, 0))
    assert after.properties["x"] == "y"
    assert base.metadata_location in after.metadata_log


def test_a_server_that_is_down() -> None:
    """The error names the catalog and its address."""
    port = free_port()
    catalog = client(f"http://127.0.0.1:{port}", credential="id:hush-4711", **{"oauth2-server-uri": "http://x/"})
    with pytest.raises(CatalogUnavailable) as caught:
        catalog.pointers()
    assert "lake" in str(caught.value)
    assert str(port) in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_token_that_no_header_takes() -> None:
    """The error of the HTTP library quotes it, as Python does; ours does not, whatever line it ends in."""
    with pytest.raises(CatalogUnavailable, match=r"cannot be used: .*\*\*\*") as caught:
        client("http://127.0.0.1:1", token="hush-4711\nhush-4712").pointers()
    assert "hush" not in str(caught.value)


def test_a_token_that_expired(bench: RestBench, proxy: Proxy) -> None:
    """It is fetched anew once; when that does not help, the error says what to correct and no secret."""
    bench.craft("sales.orders", 1)
    token = {"access_token": "hush", "token_type": "bearer", "issued_token_type": "x"}
    proxy.faults.append(Fault("POST /token", times=99, status=200, body=json.dumps(token).encode()))
    proxy.faults.append(Fault(TABLE, status=401))
    known = client(proxy.address, credential="id:hush-4711", **{"oauth2-server-uri": f"{proxy.address}/token"})
    assert len(known.pointers()) == 1
    renewed = proxy.count("POST /token")
    assert renewed >= 2
    proxy.faults.append(Fault(TABLE, times=99, status=419))
    with pytest.raises(CatalogUnavailable, match="credential") as caught:
        known.pointers()
    assert "hush" not in str(caught.value)
    known.close()


def test_what_the_doctor_asks(bench: RestBench, catalog: RestCatalog, proxy: Proxy) -> None:
    """The server answers, and lets us commit, or says why not; nothing is changed by asking."""
    base = bench.craft("sales.orders", 1)
    assert "auth none" in catalog.connected()
    assert "allowed" in catalog.may_commit(base.ref)
    assert bench.catalog.load(base.ref) == base
    proxy.faults.append(Fault(COMMIT, status=403))
    with pytest.raises(UnsupportedTable, match="grant the right to write"):
        catalog.may_commit(base.ref)


def test_a_server_that_leads_elsewhere(bench: RestBench, proxy: Proxy) -> None:
    """Hosts that its configuration, what it lends, or a redirect brings in are held against the environment."""
    base = bench.craft("sales.orders", 1)

    def fenced() -> RestCatalog:
        environment = Allowlist(("127.0.0.1",), (f"file://{bench.warehouse}",))
        return RestCatalog(rest_catalog("lake", {"uri": proxy.address}), LocalStorage(), FixedClock(), environment)

    away = json.dumps({"defaults": {}, "overrides": {"s3.endpoint": "http://elsewhere.example"}})
    proxy.faults.append(Fault("GET /v1/config", status=200, body=away.encode()))
    with pytest.raises(Refused, match=r"s3\.endpoint with the host elsewhere\.example"):
        fenced().pointers()
    for answer_of in ("GET /v1/config", TABLE):
        proxy.faults.append(Fault(answer_of, status=307, headers={"Location": "http://elsewhere.example/t"}))
        with pytest.raises(Refused, match=r"Location with the host elsewhere\.example"):
            fenced().load(base.ref)
    proxy.faults.append(Fault(TABLE, status=307, headers={"Location": "/v1/namespaces/sales/tables/orders?"}))
    known = fenced()
    assert known.load(base.ref).table_uuid == base.table_uuid
    table = proxy_answer(bench, "sales", "orders") | {"config": {"s3.access-key-id": "k", "s3.endpoint": "http://x.y"}}
    proxy.faults.append(Fault(TABLE, status=200, body=json.dumps(table).encode()))
    with pytest.raises(Refused, match=r"s3\.endpoint with the host x\.y"):
        fenced().load(base.ref)


@EITHER
def test_a_commit_to_a_table_outside(bench: RestBench, proxy: Proxy, change: Make) -> None:
    """It is refused by the catalog itself, whoever asks for it."""
    base = bench.craft("sales.orders")
    environment = Allowlist(None, ("s3://elsewhere/",))
    fenced = RestCatalog(rest_catalog("lake", {"uri": proxy.address}), LocalStorage(), FixedClock(), environment)
    with pytest.raises(Refused, match=r"catalogs\.lake\.environment\.locations"):
        fenced.commit(base, change(base))
    assert proxy.count("POST") == 0
    assert bench.catalog.load(base.ref) == base


def proxy_answer(bench: RestBench, *parts: str) -> dict[str, Any]:
    """What the server answers about a table."""
    answer = requests.get(f"{bench.address}/v1/namespaces/{parts[0]}/tables/{parts[1]}", timeout=30)
    found: dict[str, Any] = answer.json()
    return found
