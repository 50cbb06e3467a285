"""When a catalog with branches is vacuumed by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from icewright.core.errors import CatalogUnavailable, LeaseLost, Refused
from icewright.core.operation import Operation
from icewright.core.runs import JobState, Outcome, committed, skipped
from icewright.core.vacuum import Content, CutoffPolicy
from icewright.flow.detect import detect
from icewright.flow.runtime import Scope
from icewright.flow.vacuum import vacuum, vacuum_due
from icewright.ports import FleetPause, LiveTable, Survey, VacuumOf
from tests.flow.bench import Bench

DAY = timedelta(days=1)


@dataclass
class Branches:
    """A catalog with branches and no tables, or one whose survey fails."""

    fault: Exception | None = None
    tables: tuple[LiveTable, ...] = ()
    surveys: list[datetime] = field(default_factory=list)

    def survey(self, now: datetime) -> Survey:
        """Look at nothing."""
        self.surveys.append(now)
        if self.fault is not None:
            raise self.fault
        return Survey(CutoffPolicy(DAY, None, DAY, "test"), now, (), self.tables)

    def expire(self, work: VacuumOf) -> Outcome:
        """There is no table."""
        raise NotImplementedError

    def sweep(self, work: VacuumOf) -> Outcome:
        """There is no table."""
        raise NotImplementedError


def vacuumed(bench: Bench, branches: Branches, *, enabled: bool = True, every: timedelta | None = DAY) -> bool:
    """Whether the catalog was surveyed now."""
    before = len(branches.surveys)
    bench.scopes["lake"] = Scope(enabled, vacuum_every=every)
    vacuum_due(bench.runtime(vacuums={"lake": branches}), ["lake"])
    return len(branches.surveys) > before


def test_a_catalog_is_vacuumed_once_in_its_time(bench: Bench) -> None:
    """At first sight, again when the time since the last vacuum is over, and when the clock was set back."""
    branches = Branches()
    found = []
    for _ in range(4):
        found.append(vacuumed(bench, branches))
        bench.clock.advance(hours=13)
    assert found == [True, False, True, False]
    bench.clock.advance(hours=-9 * 24)
    assert [vacuumed(bench, branches) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("settings", "enabled", "every"),
    [
        pytest.param({}, False, DAY, id="not enabled"),
        pytest.param({}, True, None, id="by command alone"),
        pytest.param({"windows": "mon 01:00-02:00"}, True, DAY, id="outside of its window"),
    ],
)
def test_a_catalog_that_may_not_be_vacuumed_now(
    bench: Bench, settings: dict[str, object], enabled: bool, every: timedelta | None
) -> None:
    """Nothing of it is looked at."""
    bench.settings |= settings
    assert not vacuumed(bench, Branches(), enabled=enabled, every=every)


def test_nothing_is_vacuumed_while_everything_is_paused(bench: Bench) -> None:
    """The pause holds for vacuum as for jobs."""
    bench.store.fleet.begin(FleetPause("a migration", "me", bench.clock.now()))
    assert not vacuumed(bench, Branches())
    with pytest.raises(Refused, match="lake is not vacuumed: everything is paused by me: a migration"):
        vacuum(bench.runtime(vacuums={"lake": Branches()}), "lake")
    bench.store.fleet.end()
    assert vacuumed(bench, Branches())


def test_a_dry_run_leaves_out_what_the_run_does(bench: Bench) -> None:
    """A paused table, and any table while everything is paused, is skipped with the reason."""
    table = LiveTable(bench.table("orders"), "1", (), frozenset())
    runtime = bench.runtime(vacuums={"lake": Branches(tables=(table,))})
    detect(runtime, ["lake"])
    bench.store.tables.pause(table.ref, "a migration of it")
    (job,) = vacuum(runtime, "lake", dry_run=True).jobs
    assert (job.state, job.summary) == (JobState.SKIPPED, "paused: a migration of it")
    bench.store.fleet.begin(FleetPause("a migration", "me", bench.clock.now()))
    (job,) = vacuum(runtime, "lake", dry_run=True).jobs
    assert (job.state, job.summary) == (JobState.SKIPPED, "everything is paused by me: a migration")


def test_a_bug_in_one_table_ends_no_other_table_s_vacuum(bench: Bench) -> None:
    """Its job fails, and says what happened."""
    refs = [bench.table(name) for name in ("orders", "returns")]
    contents = [Content(ref.name, (*ref.namespace, ref.name), "m.json", None) for ref in refs]
    tables = tuple(LiveTable(ref, ref.name, (), frozenset({at})) for ref, at in zip(refs, contents, strict=True))
    runtime = bench.runtime(vacuums={"lake": Branches(tables=tables)})
    detect(runtime, ["lake"])
    jobs = vacuum(runtime, "lake").jobs
    assert [job.state for job in jobs] == [JobState.FAILED, JobState.FAILED]
    assert all(job.summary.endswith("unexpected NotImplementedError: ") for job in jobs), jobs


def test_operations_with_figures_have_their_time(bench: Bench) -> None:
    """The vacuum's figures add up the time of expiries."""

    class Slow(Branches):
        def expire(self, work: VacuumOf) -> Outcome:
            bench.clock.advance(seconds=2.5)
            return committed(Operation.EXPIRE_SNAPSHOTS, work.job_id, {"snapshots_expired": 1})

        def sweep(self, work: VacuumOf) -> Outcome:
            return skipped(Operation.REMOVE_ORPHANS, work.job_id)

    table = LiveTable(bench.table("orders"), "orders", (), frozenset())
    done = vacuum(bench.runtime(vacuums={"lake": Slow(tables=(table,))}), "lake", dry_run=True)
    expired, swept = done.jobs[0].outcomes
    assert (expired.metrics["duration_ms"], swept.metrics, done.counts.iceberg_commit_time) == (2500, {}, 2.5)


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (Refused("the cut-off is NONE"), False),
        (CatalogUnavailable("it does not answer"), True),
        (KeyError("a bug"), True),
    ],
)
def test_a_refused_vacuum_waits_and_a_failed_one_is_tried_again(bench: Bench, fault: Exception, again: bool) -> None:
    """A policy stays what it is; a server comes back. Neither ends the round of other catalogs."""
    branches = Branches(fault)
    assert vacuumed(bench, branches)
    assert [kind for kind, _ in bench.told if kind == "vacuum_failed"] == ["vacuum_failed"]
    assert vacuumed(bench, branches) is again


def test_a_vacuum_that_another_process_is_at_counts_when_it_has_ended(bench: Bench) -> None:
    """One by hand in another process is no failure, and if it comes to nothing the next round vacuums."""
    branches, now = Branches(), bench.clock.now()
    bench.store.leases.acquire("vacuum lake", "elsewhere:1:1", now, now + DAY)
    assert not vacuumed(bench, branches)
    assert not [kind for kind, _ in bench.told if kind == "vacuum_failed"]
    bench.store.leases.release("vacuum lake", "elsewhere:1:1")
    assert vacuumed(bench, branches)


@pytest.mark.parametrize("dry_run", [True, False])
def test_one_vacuum_at_a_time_in_a_process(bench: Bench, dry_run: bool) -> None:
    """Another one, dry or not, would begin the marks of what is live anew while the first deletes by them."""

    class Busy(Branches):
        def survey(self, now: datetime) -> Survey:
            with pytest.raises(Refused, match="this process vacuums catalog lake"):
                vacuum(runtime, "lake", dry_run=dry_run)
            return super().survey(now)

    branches = Busy()
    runtime = bench.runtime(vacuums={"lake": branches})
    vacuum(runtime, "lake")
    vacuum(runtime, "lake", dry_run=True)
    assert len(branches.surveys) == 2


@pytest.mark.parametrize("branched", [False, True], ids=["tables", "branches"])
def test_a_vacuum_whose_lease_another_process_has_taken_ends(bench: Bench, *, branched: bool) -> None:
    """As one that made no progress for an hour: it deletes no further file, and goes on with no other table."""
    refs = [bench.table(name) for name in ("orders", "refunds")]

    def take_lease(_work: object) -> None:
        bench.store.leases.release("vacuum lake", runtime.trigger.holder)
        bench.store.leases.acquire("vacuum lake", "elsewhere:1:1", bench.clock.now(), bench.clock.now() + DAY)

    class Overtaken(Branches):
        def expire(self, work: VacuumOf) -> Outcome:
            take_lease(work)
            work.check()
            raise AssertionError("it would delete")

    tables = tuple(
        LiveTable(ref, ref.name, (), frozenset({Content(ref.name, ("sales", ref.name), "a.json", 1)})) for ref in refs
    )
    runtime = bench.runtime(vacuums={"lake": Overtaken(tables=tables)} if branched else {})
    detect(runtime, ["lake"])
    bench.before = take_lease
    with pytest.raises(LeaseLost, match="another process vacuums catalog lake by now"):
        vacuum(runtime, "lake")
    (job,) = bench.store.jobs.list()
    assert job.state is (JobState.INTERRUPTED if branched else JobState.SUCCEEDED)
    assert bench.store.leases.acquire("vacuum lake", "third", bench.clock.now(), bench.clock.now()) == "elsewhere:1:1"
