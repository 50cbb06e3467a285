"""Events on their way into the store, and tables of commit reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from icewright.core.errors import BadEvent, CatalogUnavailable
from icewright.core.events.directory import CatalogEntry, Directory
from icewright.core.events.model import Message, ScanReported, TableTouched
from icewright.core.policy import Operation
from icewright.core.rewriting import PRIOR_READS
from icewright.core.steps import Due, why
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_now
from icewright.flow.evaluator import evaluate_due
from icewright.flow.events import ReceivedEvents, read_reports, receive_events
from icewright.ports import NewReports, Receipt
from icewright.testing import NOW, REF, partition
from tests.flow.bench import OLD, Bench

DIRECTORY = Directory({"lake": CatalogEntry(("iceberg",), ("s3://lake/",)), "pond": CatalogEntry()})


def touched(*names: str, message_id: str = "1", foreign: bool = False) -> Message:
    """A message that names tables."""
    return Message(message_id, (TableTouched(tuple(tuple(name.split(".")) for name in names)),), foreign)


@dataclass
class Reports:
    """A table of commit reports that says what it was told to."""

    answers: list[NewReports | CatalogUnavailable]
    asked: list[int | None] = field(default_factory=list)

    def since(self, snapshot_id: int | None) -> NewReports:
        """The next answer."""
        self.asked.append(snapshot_id)
        answer = self.answers.pop(0)
        if isinstance(answer, CatalogUnavailable):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def quiet(bench: Bench) -> Bench:
    """Two tables, both evaluated, with nothing to be done for a while."""
    for name in ("orders", "customers"):
        bench.table(name, ages=OLD[-2:])
    detect(bench.runtime(), ["lake"])
    evaluate_due(bench.runtime(), ["lake"])
    bench.clock.advance(hours=1)
    return bench


def evaluated(bench: Bench) -> Sequence[str]:
    """Which tables are evaluated now."""
    return [ref.name for ref in evaluate_due(bench.runtime(), ["lake"])]


def test_a_pushed_event_has_the_table_evaluated(quiet: Bench) -> None:
    """The next time that anybody evaluates, not when the catalog is asked next."""
    assert evaluated(quiet) == []
    found = receive_events(
        quiet.runtime(), DIRECTORY, [touched("iceberg.sales.orders"), touched("lake.sales.orders", message_id="2")]
    )
    assert found == ReceivedEvents(Receipt(2, 0, (REF,), ()), ())
    assert evaluated(quiet) == ["orders"]
    assert evaluated(quiet) == []


def test_one_bad_message_spoils_all(quiet: Bench) -> None:
    """Every fault is said once, and nothing is done."""
    with pytest.raises(BadEvent) as caught:
        receive_events(
            quiet.runtime(),
            DIRECTORY,
            [touched("lake.sales.orders"), *[touched("sea.a.b", message_id=m) for m in "23"]],
        )
    assert len(caught.value.faults) == 1
    assert evaluated(quiet) == []


def test_reported_reads_are_what_merges_are_worth(quiet: Bench) -> None:
    """An evaluation and a job alike; reports that have just begun do not say that hardly anybody reads."""
    runtime, customers = quiet.runtime(), replace(REF, name="customers")
    now = quiet.clock.now()
    for ref, last in ((REF, now), (customers, now - timedelta(days=10))):
        quiet.files.partitions[ref] = (partition(files=12, mb=180),)
        receive_events(runtime, DIRECTORY, [Message(ref.name, (ScanReported(ref.parts, last, 1, 1, 1, 1),))])
    found = {ref: evaluate_now(runtime, ref) for ref in (REF, customers)}
    assert found[REF].facts.queries == pytest.approx(PRIOR_READS, rel=0.1)
    assert isinstance(found[REF].verdicts[Operation.COMPACT], Due)
    assert "as engines reported" in why(found[customers].verdicts[Operation.COMPACT])
    for ref in found:
        quiet.run(Operation.COMPACT, ref=ref, manual=False)
    assert quiet.asked == [("orders", Operation.COMPACT)]


def test_what_is_not_ours_is_said(quiet: Bench) -> None:
    """Events about other catalogs are named in the receipt, and the rest counts."""
    scans = tuple(ScanReported((catalog, "sales", "orders"), NOW, 1, 1, 1, 1) for catalog in ("tpch", "lake"))
    found = receive_events(quiet.runtime(), DIRECTORY, [Message("1", scans, foreign=True)])
    assert found == ReceivedEvents(Receipt(1, 0, (REF,), ()), ("there is no catalog tpch",))


def test_commit_reports_name_tables(quiet: Bench) -> None:
    """With or without their catalog; the catalog itself is not asked for tables that are known."""
    names = ("sales.orders", "iceberg.sales.customers", "lake.sales.new", "", "x", "..", "pond.sales.orders")
    reports = Reports([NewReports(1, gap=True), NewReports(2, names), NewReports(2)])
    runtime = quiet.runtime()
    assert [read_reports(runtime, DIRECTORY, {"lake": reports}) for _ in range(3)] == [0, 4, 0]
    assert reports.asked == [None, 1, 2]
    assert sorted(evaluated(quiet)) == ["customers", "orders"]


def test_a_gap_in_commit_reports_has_the_catalog_asked(quiet: Bench) -> None:
    """Known tables alone do not."""
    later = quiet.clock.now() + timedelta(hours=5)
    for answer, asked in ((NewReports(1, ("sales.orders",)), later), (NewReports(2, gap=True), quiet.clock.now())):
        quiet.store.catalogs.record_read("lake", quiet.clock.now(), quiet.clock.now(), later)
        read_reports(quiet.runtime(), DIRECTORY, {"lake": Reports([answer])})
        assert quiet.store.catalogs.list()[0].detect_at == asked


def test_commit_reports_that_cannot_be_read(quiet: Bench) -> None:
    """Are told, are read again from the same place, and keep no other catalog's back."""
    broken = Reports([CatalogUnavailable("lake does not answer"), NewReports(2, ("sales.orders",))])
    other = Reports([NewReports(1, ("sales.orders",))] * 2)
    runtime = quiet.runtime()
    assert read_reports(runtime, DIRECTORY, {"lake": broken, "pond": other}) == 1
    assert quiet.events("reports_failed") == [{"catalog": "lake", "error": "lake does not answer"}]
    assert read_reports(runtime, DIRECTORY, {"lake": broken, "pond": other}) == 1
    assert (broken.asked, other.asked) == ([None, None], [None, 1])


def test_reports_that_are_read_twice_count_once(quiet: Bench) -> None:
    """As when the process ended before it wrote down how far it had come."""
    runtime = quiet.runtime()
    read_reports(runtime, DIRECTORY, {"lake": Reports([NewReports(1, ("sales.orders",))])})
    assert evaluated(quiet) == ["orders"]
    quiet.store.catalogs.record_commit_reports_read("lake", None, quiet.clock.now())
    read_reports(runtime, DIRECTORY, {"lake": Reports([NewReports(1, ("sales.orders",))])})
    assert evaluated(quiet) == []
