"""The contract of every store for pushed events: each counts once, tables are evaluated soon, scans summed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.effective import Knobs
from icewright.core.events.model import Event, Message, MetadataChanged, ScanReported, TableTouched
from icewright.core.heat import ReportedReads
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate
from icewright.ports import Pointer, Receipt, Store
from icewright.testing import NOW, REF, facts, metadata
from icewright.testing.contracts.cases import StoreSuite

OTHER = TableRef("lake", ("sales",), "other")
LATER = NOW + timedelta(minutes=5)
DAY = timedelta(days=1)
PLACE = "s3://lake/sales/orders"


def record_all(store: Store, *names: TableRef) -> None:
    """Record the tables, whose catalogs are listed again in an hour."""
    for catalog in {name.catalog for name in names}:
        refs = [name for name in names if name.catalog == catalog]
        pointers = [Pointer(ref, f"s3://lake/{'/'.join(ref.parts[1:])}/metadata/1.metadata.json") for ref in refs]
        store.tables.record_listing(catalog, pointers, NOW)
        store.catalogs.record_read(catalog, NOW, NOW, NOW + timedelta(hours=1))
    store.tables.schedule_evaluation(names, None)


def evaluate_table(store: Store, ref: TableRef = REF, now: datetime = NOW, **more: Any) -> None:
    """Record an evaluation of the table, which is then due again in a day."""
    location = f"s3://lake/{'/'.join(ref.parts[1:])}"
    at = f"{location}/metadata/1.metadata.json"
    base = metadata(**{"ref": ref, "location": location, "metadata_location": at, **more})
    store.tables.record_evaluation(evaluate(facts(of=base), Knobs(), {}, now), now)
    store.tables.schedule_evaluation([ref], now + DAY)


def sent(*events: Event, message_id: str = "1") -> Message:
    """Return a message with these events."""
    return Message(message_id, events)


def push(store: Store, *events: Event, now: datetime = LATER, message_id: str = "1", ask: bool = True) -> Receipt:
    """Receive one message with these events."""
    return store.inbox.receive([sent(*events, message_id=message_id)], now, ask=ask)


def touched(*refs: TableRef) -> TableTouched:
    """Return the event that these tables changed."""
    return TableTouched(tuple(ref.parts for ref in refs))


def scan(ref: TableRef = REF, at: datetime = NOW, **more: Any) -> ScanReported:
    """Return the event that a table was read."""
    return ScanReported(
        **{"table": ref.parts, "at": at, "planning_ms": 10.5, "duration_ms": 100, "files": 3, "bytes": 2**40, **more}
    )


def reads(store: Store) -> dict[int, datetime]:
    """Return when the table's snapshots were last read."""
    return dict(store.pins.reads(REF))


def evaluated_at(store: Store, *refs: TableRef) -> list[datetime | None]:
    """Return when the tables are evaluated next."""
    times = {row.ref: row.evaluate_at for row in store.tables.list()}
    return [times[ref] for ref in refs or (REF,)]


def listed_at(store: Store, catalog: str = "lake") -> datetime:
    """Return when the catalog is listed next."""
    return next(row.detect_at for row in store.catalogs.list() if row.name == catalog)


def queries_per_day(store: Store, ref: TableRef = REF) -> float:
    """Return the table's queries per day."""
    item = store.views.table_item(ref)
    assert item is not None
    return item.queries_per_day


class EventInboxTests(StoreSuite):
    """Events that other systems push."""

    def test_a_changed_table_is_due_at_once(self, store: Store) -> None:
        """A changed table, and no other, is due for evaluation, and its catalog for a listing."""
        record_all(store, REF, OTHER)
        assert push(store, touched(REF)) == Receipt(1, 0, (REF,), ())
        assert evaluated_at(store, REF, OTHER) == [LATER, None]
        assert listed_at(store) == LATER
        assert [row.ref for row in store.tables.claim_evaluations(["lake"], "me", LATER, LATER + DAY, 10)] == [REF]

    def test_the_evaluation_cooldown_holds_for_events(self, store: Store) -> None:
        """An event does not shorten the evaluation cooldown, nor delay an earlier evaluation."""
        record_all(store, REF, OTHER)
        evaluate_table(store)
        push(store, touched(REF))
        rested = NOW + timedelta(minutes=10)
        assert evaluated_at(store) == [rested]
        push(store, touched(REF), now=rested + DAY, message_id="2")
        assert evaluated_at(store) == [rested]

    def test_an_event_during_an_evaluation(self, store: Store) -> None:
        """A table that changed while it was evaluated is evaluated again after its cooldown."""
        record_all(store, REF, OTHER)
        store.tables.schedule_evaluation([REF, OTHER], NOW)
        assert len(store.tables.claim_evaluations(["lake"], "me", NOW, NOW + DAY, 10)) == 2
        push(store, touched(REF), now=NOW + timedelta(seconds=1))
        for ref in (REF, OTHER):
            store.tables.record_evaluation(evaluate(facts(of=metadata(ref=ref)), Knobs(), {}, NOW), NOW)
        first, other = evaluated_at(store, REF, OTHER)
        assert first == NOW + timedelta(minutes=10)
        assert other is not None
        assert other > NOW + timedelta(hours=12)

    def test_a_message_is_applied_as_a_whole(self, store: Store) -> None:
        """A message that cannot be applied as a whole changes nothing, and may be sent again."""
        record_all(store, REF)
        broken = scan(at=None)  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            push(store, touched(REF), broken)
        assert evaluated_at(store) == [None]
        assert push(store, touched(REF)).received == 1

    @pytest.mark.parametrize(
        ("ref", "name"),
        [
            (TableRef("lake", ("a.b", "c"), "d.e"), ("lake", "a", "b", "c", "d", "e")),
            (TableRef("lake", ("Sales",), "Orders"), ("lake", "sales", "orders")),
            (TableRef("lake", ("grün",), "表"), ("lake", "grün", "表")),
            (TableRef("lake", ("a",), "b_c%"), ("lake", "a", "b_c%")),
            (TableRef("lake", ("a'; --",), '"'), ("lake", "a'; --", '"')),
        ],
    )
    def test_names_as_senders_write_them(self, store: Store, ref: TableRef, name: tuple[str, ...]) -> None:
        """Tables are found by names without quotes around dots, and by names in lower case, as Trino sends them."""
        record_all(store, ref, TableRef("lake", ("a",), "bXcY"), TableRef("pond", ref.namespace, ref.name))
        assert push(store, TableTouched((name,))).tables == (ref,)

    def test_the_exact_name_wins(self, store: Store) -> None:
        """The exact name is preferred to names that differ in case or in the place of a dot."""
        exact = TableRef("lake", ("a", "b"), "c")
        record_all(store, exact, TableRef("lake", ("a.b",), "c"), TableRef("lake", ("A", "b"), "c"))
        assert push(store, TableTouched((exact.parts,))).tables == (exact,)

    def test_known_tables_need_no_listing(self, store: Store) -> None:
        """With `ask=False` an event about a known table does not make its catalog due."""
        record_all(store, REF)
        push(store, touched(REF), ask=False)
        assert (evaluated_at(store), listed_at(store)) == ([LATER], NOW + timedelta(hours=1))

    @pytest.mark.parametrize("how", ["event", "gap in the commit reports"])
    def test_an_event_during_a_listing(self, store: Store, how: str) -> None:
        """A catalog that changed while it was listed is listed again at once."""
        record_all(store, REF)
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

    def test_events_do_not_hurry_a_catalog(self, store: Store) -> None:
        """Events do not make a catalog due within seconds of its last listing, nor while it fails."""
        record_all(store, REF)
        soon = NOW + timedelta(seconds=1)
        push(store, touched(REF), now=soon)
        assert listed_at(store) == NOW + timedelta(seconds=10)
        push(store, touched(REF), now=LATER, message_id="2")
        assert listed_at(store) == NOW + timedelta(seconds=10)
        store.catalogs.record_failure("lake", "down", LATER)
        push(store, touched(REF), now=NOW + timedelta(minutes=1), message_id="3")
        assert listed_at(store) == LATER
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
    def test_a_metadata_file_lies_in_its_tables_folder(self, store: Store, location: str) -> None:
        """A metadata file belongs to the table with the innermost location, however its path is spelled."""
        inner, alike = TableRef("lake", ("sales", "orders"), "inner"), TableRef("lake", ("sales",), "orders_")
        record_all(store, REF, inner, alike)
        for ref in (REF, inner, alike):
            evaluate_table(store, ref)
        assert push(store, MetadataChanged(location)).tables == (REF,)
        assert evaluated_at(store, REF, inner) == [NOW + timedelta(minutes=10), NOW + DAY]
        receipt = push(store, MetadataChanged(f"{PLACE}/inner/metadata/2.metadata.json"), message_id="2")
        assert receipt.tables == (inner,)

    def test_a_metadata_file_of_a_table_that_was_never_evaluated(self, store: Store) -> None:
        """A table without an evaluation is found by the folder of the metadata file that its catalog named."""
        record_all(store, REF, OTHER)
        assert push(store, MetadataChanged(f"{PLACE}/metadata/2.metadata.json")).tables == (REF,)

    def test_metadata_elsewhere(self, store: Store) -> None:
        """A table that writes its metadata outside its location is found by that folder."""
        record_all(store, REF)
        evaluate_table(store, metadata_location="s3://meta/a%b/1.metadata.json")
        assert push(store, MetadataChanged("s3://meta/a%b/2.metadata.json")).tables == (REF,)
        assert push(store, MetadataChanged("s3://meta/aXb/2.metadata.json"), message_id="2").tables == ()

    def test_a_metadata_file_that_was_evaluated_already(self, store: Store) -> None:
        """A metadata file that was evaluated already, such as that of our own commit, changes nothing."""
        record_all(store, REF)
        evaluate_table(store)
        assert push(store, MetadataChanged("s3a://lake/sales/orders/metadata/1.metadata.json")) == Receipt(1, 0, (), ())
        assert (evaluated_at(store), listed_at(store)) == ([NOW + DAY], NOW + timedelta(hours=1))

    def test_a_metadata_file_of_no_table(self, store: Store) -> None:
        """A metadata file of no known table makes the catalogs due that may hold its table."""
        record_all(store, REF, TableRef("pond", ("a",), "b"))
        new = "s3://lake/sales/new/metadata/0.metadata.json"
        assert push(store, MetadataChanged(new, ("pond",))) == Receipt(1, 0, (), (new,))
        assert (listed_at(store, "pond"), listed_at(store)) == (LATER, NOW + timedelta(hours=1))

    def test_queries_per_day_decay(self, store: Store) -> None:
        """Queries per day rise with each scan, and decay to zero."""
        record_all(store, REF, OTHER)
        push(store, *[scan() for _ in range(50)], now=NOW)
        first = queries_per_day(store)
        push(store, scan(), now=NOW, message_id="2")
        assert 10 < first < queries_per_day(store) < 15
        assert queries_per_day(store, OTHER) == 0
        assert store.inbox.reported_reads(REF) == ReportedReads(queries_per_day(store), NOW.date())
        assert store.inbox.reported_reads(OTHER) is None
        store.inbox.decay_query_rates(NOW + 3 * DAY)
        assert first / 2.5 < queries_per_day(store) < first / 1.5
        store.inbox.decay_query_rates(NOW + 60 * DAY)
        assert queries_per_day(store) == 0
        assert store.inbox.reported_reads(REF) is None, "nobody has reported a read for so long: nobody knows"

    def test_filters_of_scans_are_counted_by_day(self, store: Store) -> None:
        """The newest count most, scans without a filter none, and other tables have their own; a month forgets them."""
        record_all(store, REF, OTHER)
        push(store, *[scan(filter="a") for _ in range(30)], scan(filter="b"), scan(), scan(OTHER, filter="c"))
        push(store, scan(filter="b"), message_id="2")
        rates = store.inbox.filters(REF, LATER)
        assert rates.keys() == {"a", "b"}
        assert rates["a"] == pytest.approx(15 * rates["b"])
        assert store.inbox.filters(REF, LATER + 3 * DAY)["a"] < rates["a"]
        assert store.inbox.filters(REF, NOW + 40 * DAY) == {}
        push(store, scan(at=NOW + 40 * DAY, filter="d"), now=NOW + 40 * DAY, message_id="3")
        assert store.inbox.filters(REF, NOW).keys() == {"d"}, "what is forgotten is not stored any more"

    def test_a_flood_of_filters_is_bounded(self, store: Store) -> None:
        """The hundred filters of each day that queries had most often are retained."""
        record_all(store, REF)
        often = [scan(filter=f"often {n}") for n in range(95) for _ in range(2)]
        push(store, *often, *[scan(filter=f"once {n:03d}") for n in range(50)])
        kept = store.inbox.filters(REF, LATER)
        assert kept.keys() == {f"often {n}" for n in range(95)} | {f"once {n:03d}" for n in range(5)}

    def test_the_last_read_of_each_snapshot_is_kept(self, store: Store) -> None:
        """A late report moves none back, a report without a snapshot counts none, and old reads are forgotten."""
        record_all(store, REF, OTHER)
        push(store, scan(snapshot_id=-7), scan(at=LATER, snapshot_id=-7), scan(snapshot_id=8), scan())
        push(store, scan(snapshot_id=-7), scan(OTHER, snapshot_id=9), message_id="2")
        assert reads(store) == {-7: LATER, 8: NOW}
        push(store, scan(at=NOW + 15 * DAY, snapshot_id=10), now=NOW + 15 * DAY, message_id="3")
        assert reads(store) == {10: NOW + 15 * DAY}

    def test_a_flood_of_reads_is_bounded(self, store: Store) -> None:
        """A thousand snapshots that were read last stay."""
        record_all(store, REF)
        push(store, *[scan(at=NOW + timedelta(seconds=n), snapshot_id=n) for n in range(1010)], now=NOW + DAY)
        assert sorted(reads(store)) == list(range(10, 1010))
