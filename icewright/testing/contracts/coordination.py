"""The contract of every store for the loops of many processes: claims, leases and heartbeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icewright.core.breakers import Breaker
from icewright.ports import CatalogSettings, FleetPause, ProcessRow, Store, StoredLimits
from icewright.testing import NOW, REF
from icewright.testing.contracts.cases import (
    EXPIRE,
    ME,
    MINUTE,
    OTHER,
    WORKER,
    StoreSuite,
    concurrently,
    enqueue_jobs,
    record_tables,
    table_refs,
)


class CatalogScheduleTests(StoreSuite):
    """The contract of catalog listings and their claims."""

    def test_each_due_catalog_is_claimed_once(self, store: Store) -> None:
        """A due catalog is claimed by one process, and is due again at its time or when somebody asks for it."""
        names = ["lake", "pond"]
        claimed = concurrently(4, lambda number: store.catalogs.claim(names, f"h:{number}:1", NOW, NOW + MINUTE))
        assert sorted(row.name for rows in claimed for row in rows) == names
        store.catalogs.record_read("lake", NOW, NOW, NOW + 5 * MINUTE)
        store.catalogs.record_failure("pond", "down", NOW + 2 * MINUTE)
        process = {row.name: (row.failures, row.error, row.detected_at) for row in store.catalogs.list()}
        assert process == {"lake": (0, None, NOW), "pond": (1, "down", None)}
        again = store.catalogs.claim(names, WORKER, NOW + 2 * MINUTE, NOW + 3 * MINUTE)
        assert [row.name for row in again] == ["pond"]
        store.catalogs.detect_soon(["lake"], NOW + 3 * MINUTE)
        assert {row.name for row in store.catalogs.claim(names, WORKER, NOW + 3 * MINUTE, NOW + 4 * MINUTE)} == {
            "lake",
            "pond",
        }

    @pytest.mark.parametrize("dead", [True, False])
    def test_claims_of_dead_processes_are_released(self, store: Store, dead: bool) -> None:
        """A claim ends at once when its process is known to be dead, otherwise at its time."""
        record_tables(store, *table_refs(3))
        store.catalogs.claim(["lake"], WORKER, NOW, NOW + MINUTE)
        assert len(store.tables.claim_evaluations(["lake"], WORKER, NOW, NOW + MINUTE, 9)) == 3
        store.processes.release_claims(lambda holder: dead and holder == WORKER, NOW)
        holders = ("other", "other", "another", "a third")
        claimed = [store.tables.claim_evaluations(["lake"], holder, NOW, NOW + MINUTE, 9) for holder in holders]
        assert [len(rows) for rows in claimed] == ([1, 0, 1, 1] if dead else [0, 0, 0, 0])  # each alone after a death
        assert len(store.catalogs.claim(["lake"], "other", NOW, NOW + MINUTE)) == (1 if dead else 0)
        third = store.tables.claim_evaluations(["lake"], "third", NOW + MINUTE, NOW + 2 * MINUTE, 2)
        assert len(third) == (1 if dead else 2)

    def test_claims_end_after_the_clock_was_set_back(self, store: Store) -> None:
        """No claim lasts that long."""
        set_back = NOW - 1440 * MINUTE
        record_tables(store, now=set_back)
        store.catalogs.claim(["lake"], WORKER, NOW, NOW + MINUTE)
        assert len(store.tables.claim_evaluations(["lake"], WORKER, NOW, NOW + MINUTE, 9)) == 1
        store.catalogs.detect_soon(["lake"], set_back)
        for holder, claimed in (("other", 1), ("third", 0)):
            assert len(store.catalogs.claim(["lake"], holder, set_back, set_back + MINUTE)) == claimed
            rows = store.tables.claim_evaluations(["lake"], holder, set_back, set_back + MINUTE, 9)
            assert len(rows) == claimed

    def test_a_table_with_a_running_job_is_not_evaluated(self, store: Store) -> None:
        """Tables with a running job are skipped, as the job evaluates them; those with a queued job are not."""
        record_tables(store, REF)
        enqueue_jobs(store, [REF])
        assert len(store.tables.claim_evaluations(["lake"], WORKER, NOW, NOW, 9)) == 1
        store.jobs.dequeue(WORKER, ["lake"], NOW, 1)
        assert store.tables.claim_evaluations(["lake"], WORKER, NOW, NOW + MINUTE, 9) == []

    def test_what_is_set_for_a_catalog_stays_until_it_is_taken_back(self, store: Store) -> None:
        """Settings are kept beside the schedule of a catalog, also of one that nobody has listed."""
        settings = CatalogSettings(enabled=False, tables="a*", interval_seconds=5)
        store.catalogs.record_settings("lake", settings, NOW)
        store.catalogs.claim(["lake", "pond"], WORKER, NOW, NOW + MINUTE)
        store.catalogs.record_read("lake", NOW, NOW, NOW + MINUTE)
        assert {row.name: row.settings for row in store.catalogs.list()} == {"lake": settings, "pond": None}
        store.catalogs.record_settings("lake", None, NOW)
        assert {row.settings for row in store.catalogs.list()} == {None}

    def test_the_position_in_commit_reports_is_stored_by_catalog(self, store: Store) -> None:
        """The position is stored by catalog, whether the catalog is scheduled or not."""
        assert store.catalogs.commit_reports_read_up_to("lake") is None
        store.catalogs.record_commit_reports_read("lake", 2**62, NOW)
        record_tables(store)
        store.catalogs.record_commit_reports_read("pond", 7, NOW)
        assert (store.catalogs.commit_reports_read_up_to("lake"), store.catalogs.commit_reports_read_up_to("pond")) == (
            2**62,
            7,
        )
        store.catalogs.record_commit_reports_read("lake", None, NOW)
        assert store.catalogs.commit_reports_read_up_to("lake") is None


class LeasesTests(StoreSuite):
    """Named leases, each of one process at a time."""

    def test_a_lease_has_one_holder_until_it_ends(self, store: Store) -> None:
        """A lease has one holder, who may renew it, until it is released or its time is over."""
        until = NOW + MINUTE
        holders = concurrently(5, lambda number: store.leases.acquire("plan", f"h:{number}:1", NOW, until))
        assert len(set(holders)) == 1
        holder = str(holders[0])
        assert store.leases.acquire("plan", holder, NOW, until + MINUTE) == holder
        assert store.leases.acquire("plan", "other", until, until + MINUTE) == holder
        assert store.leases.acquire("other thing", "other", NOW, until) == "other"
        store.leases.release("plan", "other")
        assert store.leases.acquire("plan", "other", NOW, until) == holder
        store.leases.release("plan", holder)
        assert store.leases.acquire("plan", "other", NOW, until) == "other"
        assert store.leases.acquire("plan", holder, until, until + MINUTE) == holder

    def test_a_lease_ends_after_the_clock_was_set_back(self, store: Store) -> None:
        """The lease lasts no longer than a new one would, and its holder renews it by the new time."""
        set_back = NOW - 1440 * MINUTE
        for now, until, holder, held_by in (
            (NOW, NOW + MINUTE, "dead", "dead"),
            (set_back, set_back + MINUTE, "other", "dead"),
            (set_back + MINUTE, set_back + 2 * MINUTE, "other", "other"),
            (set_back - MINUTE, set_back, "third", "other"),
            (set_back, set_back + MINUTE, "other", "other"),
            (set_back, set_back + MINUTE, "third", "other"),
        ):
            assert store.leases.acquire("plan", holder, now, until) == held_by


class LimitSettingsTests(StoreSuite):
    """The contract of limits that are set in the place of the configuration's."""

    def test_of_two_changes_at_once_one_is_refused(self, store: Store) -> None:
        """What is set comes back with its author and version; a change that is based on an older version is none."""
        assert store.limits.get() is None
        assert store.limits.put({"limits.global": 3}, "ada", NOW, 0) == 1
        assert store.limits.put({"limits.global": 4}, "bob", NOW, 0) is None
        assert store.limits.put({"limits.gb_hour_price": None}, "bob", NOW + MINUTE, 1) == 2
        assert store.limits.get() == StoredLimits({"limits.gb_hour_price": None}, "bob", NOW + MINUTE, 2)


class FleetPausesTests(StoreSuite):
    """The contract of the pause of the whole fleet."""

    def test_no_job_begins_while_the_fleet_is_paused(self, store: Store) -> None:
        """Neither queued jobs nor jobs that begin at once start until the pause ends; an undo may."""
        queued, free, undone = table_refs(3)
        record_tables(store, queued, free, undone)
        enqueue_jobs(store, [queued])
        assert store.fleet.get() is None
        pause = FleetPause("an incident", "ada", NOW)
        store.fleet.begin(pause)
        store.fleet.begin(pause)
        assert store.fleet.get() == pause
        assert store.jobs.dequeue(WORKER, ["lake"], NOW, 1) == []
        assert store.jobs.claim(free, "u", (EXPIRE,), ME, NOW) is None
        assert store.jobs.claim(undone, "u", (), ME, NOW) is not None
        assert store.fleet.end()
        assert not store.fleet.end()
        assert [job.ref for job in store.jobs.dequeue(WORKER, ["lake"], NOW, 1)] == [queued]
        assert store.jobs.claim(free, "u", (EXPIRE,), ME, NOW) is not None


class BreakersTests(StoreSuite):
    """Circuit breakers of resources that many processes share."""

    def test_one_process_probes_a_resource_that_failed(self, store: Store) -> None:
        """A probe is claimed once its time has come, by one process, until the claim ends or the breaker closes."""
        breaker = Breaker("catalog lake", 3, str(OTHER), "it does not answer", NOW, NOW + MINUTE)
        assert store.breakers.record(breaker, None)
        assert store.breakers.list() == [breaker]
        assert not store.breakers.claim_probe("catalog lake", NOW, NOW + MINUTE), "too early"
        late = NOW + 2 * MINUTE
        claims = concurrently(5, lambda _: store.breakers.claim_probe("catalog lake", late, late + MINUTE))
        assert claims.count(True) == 1
        assert store.breakers.claim_probe("catalog lake", late + MINUTE, late + 2 * MINUTE), "the claim has ended"
        assert not store.breakers.claim_probe("catalog pond", late, late + MINUTE)
        set_back = NOW - 60 * MINUTE
        assert store.breakers.claim_probe("catalog lake", set_back, set_back + MINUTE), "no wait is so long"
        assert not store.breakers.claim_probe("catalog lake", set_back, set_back + MINUTE)
        assert store.breakers.close("catalog lake")
        assert not store.breakers.close("catalog lake")
        assert store.breakers.list() == []

    def test_failures_that_are_counted_at_the_same_time_are_all_counted(self, store: Store) -> None:
        """A breaker is replaced by who has read it as it is, so that no failure is counted over another one."""
        first = Breaker("catalog lake", 1, str(OTHER), "it does not answer", NOW, NOW + MINUTE)
        second, late = replace(first, failures=2, error="refused"), NOW + 2 * MINUTE
        assert concurrently(5, lambda _: store.breakers.record(first, None)).count(True) == 1
        assert concurrently(5, lambda _: store.breakers.record(second, first)).count(True) == 1
        assert store.breakers.claim_probe("catalog lake", late, late + MINUTE)
        assert not store.breakers.record(first, second), "it is probed now"
        assert store.breakers.close("catalog lake")
        assert not store.breakers.record(first, second), "it has answered"
        assert store.breakers.list() == []


class ProcessRegistryTests(StoreSuite):
    """Heartbeats and pool limits of processes."""

    def test_a_process_that_drains_gets_no_jobs(self, store: Store) -> None:
        """The store gives it none from the moment of the request; another process gets them, and heartbeats say so."""
        record_tables(store, *table_refs(1))
        enqueue_jobs(store, table_refs(1))
        row = ProcessRow(WORKER, "worker", NOW, NOW, 2, {})
        assert not store.processes.record_heartbeat(row)
        assert not store.processes.request_drain("nobody:1:1", NOW)
        assert store.processes.request_drain(WORKER, NOW)
        assert store.processes.request_drain(WORKER, NOW + MINUTE)
        assert store.processes.record_heartbeat(row)
        assert [process.drain_since for process in store.processes.list()] == [NOW]
        assert store.jobs.dequeue(WORKER, ["lake"], NOW, 1) == []
        assert len(store.jobs.dequeue("other:1:1", ["lake"], NOW, 1)) == 1

    def test_heartbeats_from_before_the_clock_was_set_back_count_as_sent_now(self, store: Store) -> None:
        """A process that sends no more of them is missed two minutes later, not when that time comes again."""
        set_back = NOW - 1440 * MINUTE
        for now in (NOW, set_back):
            store.processes.record_heartbeat(ProcessRow(f"{WORKER}{now:%d}", "worker", now, now, 2, {}))
        store.processes.release_claims(lambda _: False, set_back + MINUTE)
        assert {p.heartbeat for p in store.processes.list()} == {set_back, set_back + MINUTE}

    def test_the_newest_heartbeat_and_limit_hold(self, store: Store) -> None:
        """The newest heartbeat and pool limit replace earlier ones, and a deregistered process is gone."""
        row = ProcessRow(WORKER, "worker", NOW, NOW, 2, {"pools": {}})
        later = ProcessRow(WORKER, "worker", NOW + MINUTE, NOW + MINUTE, 3, {"pools": {"default": {"cores": 2}}})
        store.processes.record_heartbeat(row)
        store.processes.record_heartbeat(later)
        (process,) = store.processes.list()
        assert (process.started, process.heartbeat, process.slots, process.details) == (
            NOW,
            NOW + MINUTE,
            3,
            later.details,
        )
        store.processes.deregister([WORKER])
        assert store.processes.list() == []
        store.planning.set_pool_limit("default", 2, NOW)
        store.planning.set_pool_limit("default", 1, NOW)
        assert store.planning.pool_limits() == {"default": 1}
