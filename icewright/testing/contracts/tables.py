"""The contract of every store for tables, pinned snapshots and registrations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState
from icewright.core.table import TableRef
from icewright.ports import LedgerState, Pointer, Registration, SnapshotPin, Store
from icewright.testing import NOW, REF
from icewright.testing.contracts.cases import (
    EXPIRE,
    ME,
    MINUTE,
    ODD,
    OTHER,
    WORKER,
    StoreSuite,
    at_once,
    concurrently,
    enqueue_jobs,
    evaluated,
    known_table,
    record_tables,
    run_row,
    start_job,
    table_refs,
    table_row,
)


class TableStateTests(StoreSuite):
    """Listings and evaluations of tables."""

    def test_a_listing_tells_new_moved_and_dropped_tables(self, store: Store) -> None:
        """New and moved tables are counted, dropped ones keep their row and may return."""
        assert [
            record_tables(store, REF, OTHER),
            record_tables(store, REF, OTHER),
            record_tables(store, REF, OTHER, at="m2"),
        ] == [2, 0, 2]
        assert record_tables(store, OTHER, at="m2") == 0
        assert table_row(store).dropped
        assert not table_row(store, OTHER).dropped
        assert record_tables(store, REF, OTHER, at="m2") == 1
        assert not table_row(store).dropped
        store.tables.record_listing("pond", [], NOW)
        assert not any(r.dropped for r in store.tables.list())

    def test_an_error_may_quote_any_character(self, store: Store) -> None:
        """Characters that a database does not take are replaced; a name or place with one is refused as a value."""
        record_tables(store)
        store.tables.record_unreadable(REF, "no file a\0b\ud800", NOW)
        assert table_row(store).error == "no file a\ufffdb?"
        store.catalogs.record_failure("lake", "\0", NOW)
        with pytest.raises(ValueError, match="surrogates"):
            store.tables.record_listing("lake", [Pointer(REF, "m\ud800")], NOW)

    def test_changes_of_many_tables_at_once_wait_for_each_other_in_one_order(self, store: Store) -> None:
        """Whatever order the callers name them in, none of them is ended for a deadlock."""
        refs = [replace(REF, name=f"t{number}") for number in range(40)]
        record_tables(store, *refs)

        def change(number: int) -> None:
            ordered = refs[::-1] if number % 2 else refs
            for turn in range(3):
                store.tables.schedule_evaluation(ordered, NOW)
                store.tables.pause_many(ordered, f"{number}" if turn % 2 else None)
                store.tables.record_listing("lake", [Pointer(ref, f"m{number}{turn}") for ref in ordered], NOW)

        concurrently(4, change)

    def test_a_dropped_table_is_not_due_and_a_returned_one_has_changed(self, store: Store) -> None:
        """Nothing is due on a dropped table, and a table that returns counts as changed."""
        record_tables(store)
        store.tables.record_evaluation(evaluated(), NOW)
        assert table_row(store).due_since == NOW
        store.tables.record_listing("lake", [], NOW)
        assert table_row(store).due_since is None
        record_tables(store)
        assert table_row(store).evaluated_location != table_row(store).metadata_location

    def test_an_evaluation_replaces_the_one_before(self, store: Store) -> None:
        """The last evaluation holds, while `due_since` stays that of the first that found work due."""
        record_tables(store)
        store.tables.record_evaluation(evaluated(), NOW)
        later = NOW + timedelta(hours=1)
        store.tables.record_evaluation(evaluated(now=later, at="m2"), later)
        table_state, evaluation = table_row(store), store.tables.evaluation(REF)
        assert (table_state.table_uuid, table_state.location, table_state.metadata_location) == (
            "u1",
            "file:///w/t",
            "m2",
        )
        assert (table_state.evaluated_location, table_state.evaluated_at, table_state.due_since) == ("m2", later, NOW)
        assert evaluation is not None
        assert evaluation["health"] == table_state.health == 100
        assert [v["operation"] for v in evaluation["verdicts"]] == list(Operation)

    def test_an_unreadable_table_has_no_due_work_and_no_health(self, store: Store) -> None:
        """The error stays until the table is readable; `due_since` survives it."""
        record_tables(store)
        store.tables.record_evaluation(evaluated(), NOW)
        store.tables.record_unreadable(REF, "MetadataUnreadable: m1 is missing", NOW)
        table_state = table_row(store)
        assert (table_state.error, table_state.health, table_state.due_since) == (
            "MetadataUnreadable: m1 is missing",
            None,
            NOW,
        )
        assert store.planning.candidates(["lake"]) == []
        later = NOW + timedelta(hours=1)
        store.tables.record_evaluation(evaluated(now=later), later)
        assert (table_row(store).error, table_row(store).due_since) == (None, NOW)
        (candidate,) = store.planning.candidates(["lake"])
        assert {due.since for due in candidate.due_operations.values()} == {NOW}

    def test_an_unreadable_table_is_tried_again_soon_and_then_more_and_more_seldom(self, store: Store) -> None:
        """After half a minute, then after twice as long as since the last try, up to an hour; a success begins anew."""
        record_tables(store)
        waits, now = [], NOW
        for _ in range(10):
            store.tables.record_unreadable(REF, "broken", now)
            retry_at = table_row(store).evaluate_at or now
            waits.append((retry_at - now).total_seconds())
            now = retry_at
        assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
        store.tables.record_evaluation(evaluated(now=now), now)
        later = now + timedelta(hours=5)
        store.tables.record_unreadable(REF, "broken anew", later)
        assert table_row(store).evaluate_at == later + timedelta(seconds=30)

    def test_a_table_that_moved_while_it_was_unreadable_is_evaluated_soon(self, store: Store) -> None:
        """A change since the evaluation began is not overwritten by the retry."""
        record_tables(store, REF, OTHER)
        moved, retried = NOW + timedelta(seconds=20), NOW + timedelta(seconds=30)
        claimed = store.tables.claim_evaluations(["lake"], "me", NOW, NOW + timedelta(hours=1), 10)
        assert {table_state.ref for table_state in claimed} == {REF, OTHER}
        store.tables.schedule_evaluation([REF], moved)
        for ref in (REF, OTHER):
            store.tables.record_unreadable(ref, "throttled", NOW)
        assert (table_row(store).evaluate_at, table_row(store, OTHER).evaluate_at) == (moved, retried)

    @pytest.mark.cases(150)
    def test_a_table_whose_reader_died_twice_is_unreadable_and_backs_off(self, store: Store) -> None:
        """One death only lets each claimed table be evaluated alone; an evaluation that ends clears the count."""
        record_tables(store, REF, OTHER)
        minute, both = timedelta(minutes=1), {REF, OTHER}
        died, alive = "died", "alive"

        def claim(holder: str, at: datetime) -> list[TableRef]:
            rows = store.tables.claim_evaluations(["lake"], holder, at, at + minute, 9, lambda other: other == died)
            return [row.ref for row in rows]

        assert set(claim(died, NOW)) == both
        first = claim(alive, NOW + minute)
        second = claim(died, NOW + minute)
        assert (len(first), {*first, *second}) == (1, both)
        (innocent,), (suspect,) = first, second
        assert set(store.tables.deadly()) == both
        store.tables.record_evaluation(evaluated(innocent, now=NOW + minute), NOW + minute)
        store.processes.release_claims(lambda other: other == died, NOW + 2 * minute)
        row = table_row(store, suspect)
        assert (row.error, row.health) == ("unreadable: its evaluation ended a process 2 times", None)
        assert row.evaluate_at == NOW + 7 * minute
        assert store.tables.deadly() == {suspect: "unreadable: its evaluation ended a process 2 times"}
        store.tables.record_listing("lake", [Pointer(innocent, "m1"), Pointer(suspect, "moved")], NOW + 3 * minute)
        assert table_row(store, suspect).evaluate_at == NOW + 7 * minute
        assert claim(died, NOW + 7 * minute) == [suspect]
        store.processes.release_claims(lambda other: other == died, NOW + 7 * minute)
        assert table_row(store, suspect).evaluate_at == NOW + 17 * minute
        assert table_row(store, innocent).error is None
        store.tables.record_unreadable(suspect, "MetadataTooLarge", NOW + 17 * minute)
        later = NOW + 200 * minute
        assert set(claim(died, later)) == {suspect}
        store.processes.deregister([died])  # stopped in an orderly way
        assert (claim(alive, later), table_row(store, suspect).error) == ([suspect], "MetadataTooLarge")

    def test_clearing_due_work_clears_errors_too(self, store: Store) -> None:
        """Due work and errors of the named tables are gone, and the next evaluation is scheduled."""
        record_tables(store, REF, OTHER)
        store.tables.record_evaluation(evaluated(), NOW)
        store.tables.record_unreadable(REF, "broken", NOW)
        store.tables.record_evaluation(evaluated(OTHER), NOW)
        store.tables.clear_due_work([REF, TableRef("lake", ("no",), "such")], NOW + timedelta(hours=1))
        table_state = table_row(store)
        assert (table_state.error, table_state.due_since, table_state.evaluate_at) == (
            None,
            None,
            NOW + timedelta(hours=1),
        )
        assert [stored.ref for stored in store.planning.candidates(["lake"])] == [OTHER]

    def test_a_table_of_another_uuid_begins_anew(self, store: Store) -> None:
        """Another uuid under the name voids history, findings and due time of the earlier table."""
        record_tables(store)
        store.tables.record_evaluation(evaluated(), NOW)
        job_id = start_job(store)
        store.runs.record(run_row(job_id), REF)
        store.ledger.plan(job_id, REF, [FileAction("f", 1, "data")], LedgerState.FOUND, NOW)
        store.jobs.finish(job_id, JobState.SUCCEEDED, "", NOW)
        assert store.runs.history(REF, "u1").keys() == {EXPIRE}
        assert store.runs.history(REF, "u2") == {}
        later = NOW + timedelta(days=1)
        store.tables.record_evaluation(evaluated(uuid="u2", now=later), later)
        assert store.ledger.found_orphans(REF, "u1") == {}
        assert table_row(store).due_since == later

    def test_a_pause_follows_a_renamed_table(self, store: Store) -> None:
        """The pause holds from the first evaluation under the new name on, and is ended by that name."""
        record_tables(store)
        store.tables.record_evaluation(evaluated(), NOW)
        store.tables.pause(REF, "broken")
        record_tables(store, OTHER)
        later = NOW + timedelta(hours=1)
        store.tables.record_evaluation(evaluated(OTHER, now=later), later)
        assert table_row(store, OTHER).paused == "broken"
        store.tables.pause(OTHER, None)
        store.tables.record_evaluation(evaluated(OTHER, at="m2", now=later), later)
        assert table_row(store, OTHER).paused is None

    def test_odd_names_are_told_apart(self, store: Store) -> None:
        """Names with dots, quotes, percent signs, underscores or Unicode have rows, jobs and findings of their own."""
        assert record_tables(store, *ODD) == len(ODD)
        jobs = {ref: start_job(store, ref) for ref in ODD}
        for ref, job_id in jobs.items():
            store.tables.record_evaluation(evaluated(ref), NOW)
            store.ledger.plan(job_id, ref, [FileAction(f"{ref}", 1, "data")], LedgerState.FOUND, NOW)
            store.tables.pause(ref, str(ref))
            store.activity.record("odd", NOW, ref, name=str(ref))
        for ref, job_id in jobs.items():
            assert [job.job_id for job in store.jobs.list(ref)] == [job_id]
            assert store.ledger.found_orphans(ref, "u1").keys() == {table_row(store, ref).paused} == {str(ref)}
            evaluation = store.tables.evaluation(ref)
            assert evaluation is not None
            assert evaluation["table"] == str(ref)
        names = [event["details"]["name"] for event in store.activity.list()]
        assert names == [str(ref) for ref in reversed(ODD)]

    def test_times_are_returned_in_utc(self, store: Store) -> None:
        """Times of any zone come back in UTC, with microseconds."""
        created = datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
        record_tables(store)
        stored = store.jobs.get(start_job(store, now=created))
        assert stored is not None
        assert stored.created == created
        assert stored.created.tzinfo is UTC

    def test_two_processes_may_record_one_listing(self, store: Store) -> None:
        """Two listings at the same time record each table once."""
        for turn in range(10):
            new = [Pointer(TableRef("lake", (f"s{turn}",), f"t{n}"), "m") for n in range(50)]
            listed = [Pointer(row.ref, row.metadata_location) for row in store.tables.list()] + new
            at_once(*[lambda listed=listed: store.tables.record_listing("lake", listed, NOW)] * 2)
            assert len(store.tables.list()) == len(listed)


class SnapshotPinsTests(StoreSuite):
    """Snapshots that readers and rewrites need."""

    def test_a_reader_pins_one_snapshot(self, store: Store) -> None:
        """A later pin moves a reader's pin, and release removes it. It is of one uuid, under whatever name."""
        uuid = known_table(store)
        first = SnapshotPin("reader a", 2**62, NOW, NOW + timedelta(hours=1), "me")
        second, other = replace(first, snapshot_id=7), replace(first, reader="reader b")
        assert all(store.pins.add(REF, uuid, pin) for pin in (first, other, second))
        assert list(store.pins.list(REF, uuid)) == [other, second]
        assert list(store.pins.list(REF, "another")) == []
        assert store.pins.remove(REF, "reader a")
        assert not store.pins.remove(REF, "reader a")
        assert list(store.pins.list(REF, uuid)) == [other]
        assert not store.pins.add(OTHER, uuid, first), "a table that nobody knows"
        assert list(store.pins.list(OTHER, uuid)) == [other], "the same table under another name"
        assert list(store.pins.list(OTHER, "")) == []
        store.tables.record_listing(REF.catalog, [Pointer(OTHER, "m")], NOW)
        assert store.pins.add(OTHER, uuid, replace(other, snapshot_id=8))
        assert [pin.snapshot_id for pin in store.pins.list(REF, uuid)] == [8]
        assert store.pins.add(OTHER, "another", other), (
            "another table bears the name now, and the reader moves on to it"
        )
        assert list(store.pins.list(REF, uuid)) == []

    def test_a_pin_concerns_one_table(self, store: Store) -> None:
        """A reader's pins of others stay: of another uuid, of none, and of the same one in another catalog."""
        one, other, third, fourth, renamed = table_refs(5)
        elsewhere, pin = replace(one, catalog="pond"), SnapshotPin("reader a", 1, NOW, NOW + MINUTE, "me")
        record_tables(store, OTHER, one, other, third, fourth, renamed)
        store.tables.record_listing("pond", [Pointer(elsewhere, "m")], NOW)
        assert store.jobs.claim(OTHER, "o", [EXPIRE], ME, NOW), "a job on another table stops nobody"
        pinned = ((one, "u"), (other, "v"), (third, ""), (fourth, ""), (elsewhere, "u"))
        assert all(store.pins.add(ref, uuid, pin) for ref, uuid in pinned)
        assert [len(store.pins.list(ref, uuid)) for ref, uuid in pinned] == [1, 1, 1, 1, 1]
        assert not store.pins.remove(TableRef("lake", ("sales",), "unknown"), "reader a")
        store.tables.record_evaluation(evaluated(renamed, "u"), NOW)
        assert store.pins.remove(renamed, "reader a"), "the pin of the table under its earlier name"
        assert [len(store.pins.list(ref, uuid)) for ref, uuid in pinned] == [0, 1, 1, 1, 1]

    def test_nobody_else_pins_while_a_job_works(self, store: Store) -> None:
        """While a job works on the table, only that job may pin, as an expiry may be about to commit."""
        uuid = known_table(store)
        pin = SnapshotPin("reader a", 1, NOW, NOW + timedelta(hours=1), "me")
        job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
        assert job is not None
        assert not store.pins.add(REF, uuid, pin)
        assert not store.pins.add(REF, uuid, pin, job_id="another")
        assert store.pins.add(REF, uuid, replace(pin, reader="the job"), job_id=job)
        store.jobs.finish(job, JobState.SUCCEEDED, "", NOW)
        assert store.pins.add(REF, uuid, pin)
        assert [p.reader for p in store.pins.list(REF, uuid)] == ["the job", "reader a"]

    @pytest.mark.cases(157)
    @pytest.mark.parametrize("killed", [True, False])
    def test_the_pin_of_a_rewrite_goes_with_its_job(self, store: Store, killed: bool) -> None:
        """The pin goes whether the job ends itself or the service finds its process dead. A reader's pin stays."""
        uuid = known_table(store)
        reader = SnapshotPin("reader a", 1, NOW, NOW + timedelta(hours=1), "me")
        assert store.pins.add(REF, uuid, reader)
        job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
        assert job is not None
        assert store.pins.add(REF, uuid, replace(reader, reader=SnapshotPin.rewriter(job)), job_id=job)
        if killed:
            assert [row.job_id for row in store.jobs.end_interrupted(NOW, lambda _: True)] == [job]
        else:
            store.jobs.finish(job, JobState.FAILED, "", NOW)
        assert list(store.pins.list(REF, uuid)) == [reader]

    def test_a_queued_job_lets_readers_pin(self, store: Store) -> None:
        """A queued job does not stop a reader from pinning, a running one does."""
        record_tables(store, REF)
        enqueue_jobs(store, [REF])
        pin = SnapshotPin("reader", 1, NOW, NOW + MINUTE, "me")
        assert store.pins.add(REF, "u", pin)
        (job,) = store.jobs.dequeue(WORKER, ["lake"], NOW, 1)
        assert not store.pins.add(REF, "u", pin)
        assert store.pins.add(REF, "u", pin, job_id=job.job_id)
        store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
        assert store.pins.add(REF, "u", pin)


class RegistrationsTests(StoreSuite):
    """Every table that any catalog named, with its places."""

    def test_places_are_added_and_never_removed(self, store: Store) -> None:
        """A table that moved keeps its former places, and the first ones are known as such."""
        first = Registration(REF, "u1", "file:///a/metadata/1", ("file:///a",), ("file:///x",), seen=NOW)
        moved = Registration(REF, "u1", "file:///b/metadata/2", ("file:///b",), ("file:///y",), seen=NOW)
        store.registrations.record([first, replace(first, table_uuid="u2")], NOW)
        store.registrations.record([moved], NOW)
        store.registrations.record([moved], NOW)
        stored = store.registrations.get(REF, "u1")
        assert stored is not None
        assert (stored.metadata_location, stored.places) == ("file:///b/metadata/2", ("file:///a", "file:///b"))
        assert (stored.folders, stored.first_places) == (("file:///x", "file:///y"), ("file:///a",))
        assert {registration.table_uuid for registration in store.registrations.list()} == {"u1", "u2"}
        assert store.registrations.get(OTHER, "u1") is None

    def test_adoptions_belong_to_a_table_uuid(self, store: Store) -> None:
        """What was adopted for one uuid is returned for that uuid alone, once however often it is adopted."""
        store.registrations.adopt("u1", ["file:///old", "u0"], "me", NOW)
        store.registrations.adopt("u1", ["u0", "file:///new"], "you", NOW)
        assert store.registrations.adopted("u1") == {"file:///old", "file:///new", "u0"}
        assert store.registrations.adopted("u2") == frozenset()
