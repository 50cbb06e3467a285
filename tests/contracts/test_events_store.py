"""What every state store does with events: each once, tables looked at soon, scans added up. See `ports.Events`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from icewright.adapters.store.schema import RECEIVED, SCANS, TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.core.effective import Knobs
from icewright.core.events.model import CommitReported, Event, Message, MetadataChanged, ScanReported, TableTouched
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate
from icewright.ports import Pointer, Receipt
from icewright.testing import NOW, REF, facts, metadata

OTHER = TableRef("lake", ("sales",), "other")
LATER = NOW + timedelta(minutes=5)
DAY = timedelta(days=1)
PLACE = "s3://lake/sales/orders"


def see(store: SqlStore, *names: TableRef) -> None:
    """The catalog lists these tables, and is to be asked again in an hour."""
    for catalog in {name.catalog for name in names}:
        mine = [name for name in names if name.catalog == catalog]
        pointers = [Pointer(ref, f"s3://lake/{'/'.join(ref.parts[1:])}/metadata/1.metadata.json") for ref in mine]
        store.tables.record_listing(catalog, pointers, NOW)
        store.catalogs.record_read(catalog, NOW, NOW, NOW + timedelta(hours=1))
    store.tables.schedule_evaluation(names, None)


def judge(store: SqlStore, ref: TableRef = REF, now: datetime = NOW, **more: Any) -> None:
    """The table is evaluated; it rests for ten minutes, and is looked at again in a day."""
    location = f"s3://lake/{'/'.join(ref.parts[1:])}"
    at = f"{location}/metadata/1.metadata.json"
    made = metadata(**{"ref": ref, "location": location, "metadata_location": at, **more})
    store.tables.record_evaluation(evaluate(facts(of=made), Knobs(), {}, now), now)
    store.tables.schedule_evaluation([ref], now + DAY)


def sent(*events: Event, message_id: str = "1") -> Message:
    """A message."""
    return Message(message_id, events)


def push(store: SqlStore, *events: Event, now: datetime = LATER, message_id: str = "1", ask: bool = True) -> Receipt:
    """One message comes."""
    return store.inbox.receive([sent(*events, message_id=message_id)], now, ask=ask)


def touched(*refs: TableRef) -> TableTouched:
    """These tables changed."""
    return TableTouched(tuple(ref.parts for ref in refs))


def scan(ref: TableRef = REF, at: datetime = NOW, **more: Any) -> ScanReported:
    """The table was read."""
    return ScanReported(
        **{"table": ref.parts, "at": at, "planning_ms": 10.5, "duration_ms": 100, "files": 3, "bytes": 2**40, **more}
    )


def looks(store: SqlStore, *refs: TableRef) -> list[datetime | None]:
    """When the tables are evaluated next."""
    known = {row.ref: row.evaluate_at for row in store.tables.list()}
    return [known[ref] for ref in refs or (REF,)]


def asks(store: SqlStore, catalog: str = "lake") -> datetime:
    """When the catalog is asked next."""
    return next(row.detect_at for row in store.catalogs.list() if row.name == catalog)


def heat(store: SqlStore, ref: TableRef = REF) -> float:
    """The table's queries per day."""
    with store.engine.begin() as connection:
        query = sa.select(TABLES.c.queries_per_day).where(TABLES.c.name == ref.name)
        return float(connection.execute(query).scalar_one())


def sums(store: SqlStore) -> Sequence[tuple[Any, ...]]:
    """The scans of each table and day."""
    columns = [TABLES.c.name, *(SCANS.c[n] for n in ("day", "queries", "planning_ms", "duration_ms", "files", "bytes"))]
    with store.engine.begin() as connection:
        query = sa.select(*columns).select_from(SCANS).join(TABLES).order_by(TABLES.c.name, SCANS.c.day)
        return [tuple(row) for row in connection.execute(query)]


def test_a_touched_table_is_looked_at_now(store: SqlStore) -> None:
    """It, and no other; and its catalog is asked."""
    see(store, REF, OTHER)
    assert push(store, touched(REF)) == Receipt(1, 0, (REF,), ())
    assert looks(store, REF, OTHER) == [LATER, None]
    assert asks(store) == LATER
    assert [row.ref for row in store.tables.claim_evaluations(["lake"], "me", LATER, LATER + DAY, 10)] == [REF]


def test_a_table_that_rests_is_looked_at_when_it_has(store: SqlStore) -> None:
    """The evaluation cooldown holds for events too; what was to come earlier still does."""
    see(store, REF, OTHER)
    judge(store)
    push(store, touched(REF))
    rested = NOW + timedelta(minutes=10)
    assert looks(store) == [rested]
    push(store, touched(REF), now=rested + DAY, message_id="2")
    assert looks(store) == [rested]


def test_an_event_while_the_table_is_being_read(store: SqlStore) -> None:
    """Has it read again after its cooldown: nobody knows which of the two came first."""
    see(store, REF, OTHER)
    store.tables.schedule_evaluation([REF, OTHER], NOW)
    assert len(store.tables.claim_evaluations(["lake"], "me", NOW, NOW + DAY, 10)) == 2
    push(store, touched(REF), now=NOW + timedelta(seconds=1))
    for ref in (REF, OTHER):
        store.tables.record_evaluation(evaluate(facts(of=metadata(ref=ref)), Knobs(), {}, NOW), NOW)
    first, other = looks(store, REF, OTHER)
    assert first == NOW + timedelta(minutes=10)
    assert other is not None
    assert other > NOW + timedelta(hours=12)


def test_an_event_counts_once(store: SqlStore) -> None:
    """However often it comes, alone, in a batch, or twice in one; after a day its id is forgotten."""
    see(store, REF)
    one, two = sent(touched(REF), scan()), sent(scan(), message_id="2")
    assert store.inbox.receive([one, one, two], NOW) == Receipt(2, 1, (REF,), ())
    store.tables.schedule_evaluation([REF], None)
    assert store.inbox.receive([two, one], LATER) == Receipt(0, 2, (), ())
    assert looks(store) == [None]
    assert sums(store)[0][2] == 2
    assert store.inbox.receive([one], NOW + DAY) == Receipt(1, 0, (REF,), ())
    with store.engine.begin() as connection:
        assert connection.execute(sa.select(RECEIVED.c.id)).scalars().all() == ["1"]


def test_an_event_that_fails_has_not_come(store: SqlStore) -> None:
    """What cannot be done whole is not done at all, and may be sent again."""
    see(store, REF)
    broken = scan(at=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        push(store, touched(REF), broken)
    assert looks(store) == [None]
    assert push(store, touched(REF)).received == 1


def test_many_at_once(store: SqlStore) -> None:
    """Whoever sends what to how many processes, every event counts once and every scan is added."""
    tables = [TableRef("lake", ("sales",), f"t{n}") for n in range(8)]
    see(store, *tables)

    def send(number: int) -> int:
        order = tables[number % 8 :] + tables[: number % 8]
        events: list[Event] = [touched(*order), *(scan(ref) for ref in order)]
        return push(store, *events, message_id=str(number // 2)).received

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(48))) == 24
    assert {row[2] for row in sums(store)} == {24}


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        (TableRef("lake", ("a.b", "c"), "d.e"), ("lake", "a", "b", "c", "d", "e")),
        (TableRef("lake", ("Sales",), "Orders"), ("lake", "sales", "orders")),
        (TableRef("lake", ("grün",), "表"), ("lake", "grün", "表")),
        (TableRef("lake", ("a",), "b_c%"), ("lake", "a", "b_c%")),
        (TableRef("lake", ("a'; --",), '"'), ("lake", "a'; --", '"')),
    ],
)
def test_names_as_senders_write_them(store: SqlStore, ref: TableRef, said: tuple[str, ...]) -> None:
    """Engines do not quote dots, and Trino writes all in lower case."""
    see(store, ref, TableRef("lake", ("a",), "bXcY"), TableRef("pond", ref.namespace, ref.name))
    assert push(store, TableTouched((said,))).tables == (ref,)


def test_the_exact_name_wins(store: SqlStore) -> None:
    """Over names that are the same but for case or for where a dot belongs."""
    exact = TableRef("lake", ("a", "b"), "c")
    see(store, exact, TableRef("lake", ("a.b",), "c"), TableRef("lake", ("A", "b"), "c"))
    assert push(store, TableTouched((exact.parts,))).tables == (exact,)


@pytest.mark.parametrize("event", [touched(OTHER), CommitReported(OTHER.parts), scan(OTHER)])
def test_a_table_that_is_not_known(store: SqlStore, event: Event) -> None:
    """Lets its catalog be asked, though nothing else is to be asked; a dropped one is not known either."""
    see(store, REF, OTHER)
    store.tables.record_listing("lake", [Pointer(REF, "m")], NOW)
    assert push(store, event, ask=False) == Receipt(1, 0, (), ("lake.sales.other",))
    assert asks(store) == LATER
    assert sums(store) == []


def test_known_tables_need_not_have_their_catalog_asked(store: SqlStore) -> None:
    """As when a table of commit reports takes the place of detection."""
    see(store, REF)
    push(store, touched(REF), ask=False)
    assert (looks(store), asks(store)) == ([LATER], NOW + timedelta(hours=1))


@pytest.mark.parametrize("how", ["event", "gap in the commit reports"])
def test_an_event_while_the_catalog_is_being_asked(store: SqlStore, how: str) -> None:
    """The answer may have been given before the table was there: the catalog is asked again at once."""
    see(store, REF)
    began, second = NOW + timedelta(hours=1), timedelta(seconds=1)
    assert store.catalogs.claim(["lake"], "me", began, began + timedelta(minutes=6))
    if how == "event":
        push(store, touched(OTHER), now=began + 120 * second)
    else:
        store.catalogs.detect_soon(["lake"], began + 120 * second)
    store.catalogs.record_read("lake", began, began + 180 * second, began + timedelta(hours=2))
    again = began + 181 * second
    assert [row.name for row in store.catalogs.claim(["lake"], "me", again, again + second)] == ["lake"]
    store.catalogs.record_read("lake", again, again + second, began + timedelta(hours=2))
    assert not store.catalogs.claim(["lake"], "me", began + timedelta(minutes=119), began + timedelta(minutes=120))


def test_how_often_events_ask_a_catalog(store: SqlStore) -> None:
    """Not again within seconds of its answer, not later than was planned, and not while it fails."""
    see(store, REF)
    soon = NOW + timedelta(seconds=1)
    push(store, touched(REF), now=soon)
    assert asks(store) == NOW + timedelta(seconds=10)
    push(store, touched(REF), now=LATER, message_id="2")
    assert asks(store) == NOW + timedelta(seconds=10)
    store.catalogs.record_failure("lake", "down", LATER)
    push(store, touched(REF), now=NOW + timedelta(minutes=1), message_id="3")
    assert asks(store) == LATER
    push(store, TableTouched((("new", "a", "b"),)), message_id="4")
    assert [row.name for row in store.catalogs.list()] == ["lake"]


@pytest.mark.parametrize(
    "location",
    [
        f"{PLACE}/metadata/2.metadata.json",
        "s3a://lake/sales/orders/metadata/2.metadata.json",
        "s3://lake//sales/orders/deep/metadata/2.metadata.json",
    ],
)
def test_a_metadata_file_lies_in_its_tables_folder(store: SqlStore, location: str) -> None:
    """However it is spelled; the folder of a table within another's is the inner one's."""
    inner, alike = TableRef("lake", ("sales", "orders"), "inner"), TableRef("lake", ("sales",), "orders_")
    see(store, REF, inner, alike)
    for ref in (REF, inner, alike):
        judge(store, ref)
    assert push(store, MetadataChanged(location)).tables == (REF,)
    assert looks(store, REF, inner) == [NOW + timedelta(minutes=10), NOW + DAY]
    found = push(store, MetadataChanged(f"{PLACE}/inner/metadata/2.metadata.json"), message_id="2")
    assert found.tables == (inner,)


def test_a_metadata_file_of_a_table_that_was_never_evaluated(store: SqlStore) -> None:
    """Its metadata file, which the catalog told, lies in the same folder."""
    see(store, REF, OTHER)
    assert push(store, MetadataChanged(f"{PLACE}/metadata/2.metadata.json")).tables == (REF,)


def test_metadata_elsewhere(store: SqlStore) -> None:
    """Where a table writes its metadata outside its location."""
    see(store, REF)
    judge(store, metadata_location="s3://meta/a%b/1.metadata.json")
    assert push(store, MetadataChanged("s3://meta/a%b/2.metadata.json")).tables == (REF,)
    assert push(store, MetadataChanged("s3://meta/aXb/2.metadata.json"), message_id="2").tables == ()


def test_a_metadata_file_that_was_evaluated_already(store: SqlStore) -> None:
    """Changes nothing: such as that of our own commit."""
    see(store, REF)
    judge(store)
    assert push(store, MetadataChanged("s3a://lake/sales/orders/metadata/1.metadata.json")) == Receipt(1, 0, (), ())
    assert (looks(store), asks(store)) == ([NOW + DAY], NOW + timedelta(hours=1))


def test_a_metadata_file_of_no_table(store: SqlStore) -> None:
    """Lets those catalogs be asked that may hold its table."""
    see(store, REF, TableRef("pond", ("a",), "b"))
    new = "s3://lake/sales/new/metadata/0.metadata.json"
    assert push(store, MetadataChanged(new, ("pond",))) == Receipt(1, 0, (), (new,))
    assert (asks(store, "pond"), asks(store)) == (LATER, NOW + timedelta(hours=1))


def test_scans_are_added_up_by_day(store: SqlStore) -> None:
    """For each table and UTC day; no table is looked at for having been read."""
    see(store, REF, OTHER)
    push(store, scan(), scan(OTHER), scan(planning_ms=0.5))
    push(store, scan(at=NOW - DAY), scan(), message_id="2")
    assert sums(store) == [
        ("orders", date(2026, 11, 20), 1, 10.5, 100, 3, 2**40),
        ("orders", date(2026, 11, 21), 3, 21.5, 300, 9, 3 * 2**40),
        ("other", date(2026, 11, 21), 1, 10.5, 100, 3, 2**40),
    ]
    assert (looks(store, REF, OTHER), asks(store)) == ([None, None], NOW + timedelta(hours=1))


def test_sums_end_at_what_can_be_counted(store: SqlStore) -> None:
    """Instead of failing."""
    see(store, REF)
    most = scan(files=2**61, bytes=2**61)
    for number in range(3):
        push(store, most, message_id=str(number))
    assert [row[5:] for row in sums(store)] == [(2**62, 2**62)]


def test_heat_comes_from_scans_and_goes(store: SqlStore) -> None:
    """Queries per day rise with each scan, fall when they are averaged anew, and are none in the end."""
    see(store, REF, OTHER)
    push(store, *[scan() for _ in range(50)], now=NOW)
    first = heat(store)
    push(store, scan(), now=NOW, message_id="2")
    assert 10 < first < heat(store) < 15
    assert heat(store, OTHER) == 0
    store.inbox.decay_query_rates(NOW + 3 * DAY)
    assert first / 2.5 < heat(store) < first / 1.5
    store.inbox.decay_query_rates(NOW + 60 * DAY)
    assert heat(store) == 0


def test_where_the_reading_of_commit_reports_ended(store: SqlStore) -> None:
    """Is kept for each catalog, whether it was asked before or not."""
    assert store.catalogs.commit_reports_read_up_to("lake") is None
    store.catalogs.record_commit_reports_read("lake", 2**62, NOW)
    see(store, REF)
    store.catalogs.record_commit_reports_read("pond", 7, NOW)
    assert (store.catalogs.commit_reports_read_up_to("lake"), store.catalogs.commit_reports_read_up_to("pond")) == (
        2**62,
        7,
    )
    store.catalogs.record_commit_reports_read("lake", None, NOW)
    assert store.catalogs.commit_reports_read_up_to("lake") is None
