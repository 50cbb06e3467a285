"""A whole pass: detect, evaluate, plan, execute, record, over fakes and a fixed clock."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from icewright.core.capacity import Limits
from icewright.core.errors import CatalogUnavailable, MetadataUnreadable
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.runtime import Scope
from icewright.testing import NOW, REF, partition
from tests.flow.bench import EXPIRE, ORPHANS, YOUNG, Bench, job_states


def test_the_funnel(bench: Bench) -> None:
    """Of the tables those that changed are evaluated, of these those that are due are run, and each says how."""
    bench.table("old")
    bench.table("young", YOUNG)
    result = bench.cycle()
    assert (result.tables, result.changed, result.due, result.run) == (2, 2, 1, 1)
    (job,) = result.jobs
    assert (job.ref.name, job.state, job.summary) == ("old", JobState.SUCCEEDED, "expire_snapshots: done")
    assert len(bench.catalog.load(job.ref).snapshots) == 5
    assert not result.errors
    assert not result.deferred
    (run,) = bench.store.runs.list(str(job.job_id))
    assert (run["before"]["snapshots"], run["after"]["snapshots"]) == (10, 5)


@pytest.mark.cases(85, 93)
def test_own_commits_are_no_change(bench: Bench) -> None:
    """The next pass reads nothing and runs nothing, whatever was committed by the last."""
    bench.rot(bench.table())
    bench.cycle()
    bench.clock.advance(hours=1)
    bench.files.read_tables.clear()
    result = bench.cycle()
    assert (result.tables, result.changed, result.due, result.run) == (1, 0, 0, 0)
    assert bench.files.read_tables == []
    assert job_states(bench) == [JobState.SUCCEEDED]


def test_a_foreign_commit_is_a_change_once_the_cooldown_is_over(bench: Bench) -> None:
    """A table is evaluated at most every ten minutes, unless forced; what moved meanwhile is not forgotten."""
    ref = bench.table(ages=YOUNG)
    bench.cycle()
    bench.catalog.concurrently(ref, properties={"owner": "somebody"})
    assert bench.cycle().changed == 0
    assert bench.cycle(force=True).changed == 1
    bench.catalog.concurrently(ref, properties={"owner": "somebody else"})
    bench.clock.advance(minutes=10)
    assert [bench.cycle().changed, bench.cycle().changed] == [1, 0]


def test_a_failed_catalog_fails_whole_and_the_others_go_on(bench: Bench) -> None:
    """Its tables are neither dropped nor run; the error names it."""
    bench.table("a")
    bench.table("b", catalog="pond")
    bench.cycle()
    bench.table("c")
    bench.catalogs["pond"].down = CatalogUnavailable("pond does not answer")
    result = bench.cycle()
    assert result.errors == (("pond", "pond does not answer"),)
    assert [job.ref.name for job in result.jobs] == ["c"]
    assert not any(row.dropped for row in bench.store.tables.list())
    bench.catalogs["pond"].down = None
    assert bench.cycle().errors == ()


@pytest.mark.cases(12, 88)
def test_an_unreadable_table_is_listed_and_left_alone(bench: Bench) -> None:
    """With its reason, or as much of it as is of use, in each pass until it can be read; the others go on."""
    broken, fine = bench.table("broken"), bench.table("fine")
    bench.files.broken[broken] = MetadataUnreadable(f"s3://lake/x.avro is missing{'!' * 10**6}")
    for hours in (0, 1):
        bench.clock.advance(hours=hours)
        result = bench.cycle()
        assert [(table, "x.avro is missing" in error) for table, error in result.errors] == [(str(broken), True)]
    assert {ref for ref, _ in bench.asked} == {fine.name}
    row = next(row for row in bench.store.tables.list() if row.ref == broken)
    assert (row.health, row.due_since, len(row.error or "")) == (None, None, 4000)
    del bench.files.broken[broken]
    bench.clock.advance(hours=1)
    result = bench.cycle()
    assert (result.errors, [job.ref for job in result.jobs]) == ((), [broken])


@pytest.mark.cases(88)
def test_a_table_whose_properties_are_faulty_is_left_alone(bench: Bench) -> None:
    """A policy that cannot be read is no policy: nothing runs, and the fault is named."""
    bench.table("faulty", properties={"icewright.expire_snapshots.retention_hours": "a week"})
    result = bench.cycle()
    ((_, error),) = result.errors
    assert "'a week' is not a number" in error
    assert bench.asked == []


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("x"), OSError("disk")], ids=repr)
def test_an_unexpected_error_in_one_table_does_not_abort_the_pass(bench: Bench, error: Exception) -> None:
    """Whatever is wrong with one table's files, the others are maintained, and the error is listed."""
    broken = bench.table("broken")
    bench.table("fine")
    bench.files.broken[broken] = error
    result = bench.cycle()
    assert [job.ref.name for job in result.jobs] == ["fine"]
    assert [table for table, _ in result.errors] == [str(broken)]


def test_errors_of_other_catalogs_are_not_repeated(bench: Bench) -> None:
    """A pass over one catalog lists what could not be read in that catalog."""
    bench.files.broken[bench.table("broken", catalog="pond")] = MetadataUnreadable("gone")
    bench.cycle()
    assert bench.cycle("lake").errors == ()


def test_what_waited_is_judged_again_when_it_begins(bench: Bench) -> None:
    """It is not read anew while it waits; and a verdict of yesterday does nothing to a table of today."""
    ref = bench.table()
    bench.limits = Limits(max_jobs=1)
    other = bench.table("other")
    first = bench.cycle()
    (waits,) = first.deferred
    assert waits.reason == "limit max_jobs_per_detection (1) reached"
    assert waits.position == 1
    left = waits.ref
    assert {left, first.jobs[0].ref} == {ref, other}
    made = bench.catalog.load(left)
    bench.catalog.put(replace(made, properties={"gc.enabled": "false"}))  # the same metadata file, re-read
    second = bench.cycle()
    assert (second.changed, second.due, second.run) == (1, 1, 1)
    (job,) = second.jobs
    assert (job.state, job.summary) == (JobState.SKIPPED, "expire_snapshots: gc.enabled is false on the table")
    assert bench.asked == [(first.jobs[0].ref.name, EXPIRE)]
    assert bench.cycle().due == 0


@pytest.mark.cases("T18")
def test_a_catalog_that_is_not_enabled_is_looked_at_only(bench: Bench) -> None:
    """Nothing automatic runs without the master switch, and the reason says how to turn it."""
    bench.table()
    bench.enabled = False
    (waits,) = bench.cycle().deferred
    assert waits.reason == "catalog lake is not enabled: set catalogs.lake.enabled to true"
    assert bench.asked == []
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED


def test_tables_out_of_scope_are_not_touched(bench: Bench) -> None:
    """They are not counted, and come back when the scope does; what was due of them is then due again."""
    bench.table("inside")
    outside = bench.table("outside")
    bench.plan()
    bench.scopes["lake"] = Scope(enabled=True, tables="in*")
    result = bench.cycle()
    assert (result.tables, [job.ref.name for job in result.jobs]) == (1, ["inside"])
    bench.scopes.clear()
    assert [job.ref for job in bench.cycle().jobs] == [outside]


def test_time_alone_makes_a_quiet_table_due(bench: Bench) -> None:
    """Nobody commits any more, and yet its snapshots are expired when they are old enough."""
    ref = bench.table(ages=tuple(100 - hours for hours in range(10)))
    assert bench.cycle().due == 0
    row = next(row for row in bench.store.tables.list() if row.ref == ref)
    assert row.evaluate_at is not None
    assert row.evaluate_at > NOW
    runs = 0
    for _ in range(12):
        bench.clock.advance(hours=12)
        runs += bench.cycle().run
    assert runs >= 1
    assert len(bench.catalog.load(ref).snapshots) == 5


def test_a_dry_run_writes_nothing(bench: Bench) -> None:
    """It goes the same way to the engine's door, and no further: no commit, no job, no deletion planned."""
    bench.rot(bench.table())
    bench.table("other")
    before = {ref: bench.catalog.load(ref) for ref in bench.catalog.tables}
    result = bench.cycle(dry_run=True)
    assert (result.due, result.run) == (2, 2)
    assert all(job.dry_run and job.job_id is None for job in result.jobs)
    assert bench.asked
    assert all(request.dry_run for request in bench.engine.requests)
    assert before == bench.catalog.tables
    assert not bench.store.jobs.list()
    assert not bench.store.ledger.unfinished(bench.clock.now())
    assert bench.cycle().run == 2


def test_missing_evidence_means_no_action(bench: Bench) -> None:
    """A table without snapshots, or of a format from the future, or encrypted, is judged and left alone."""
    bench.table("empty", (), snapshots=(), current_snapshot_id=None)
    bench.table("future", format_version=4)
    bench.table("hidden", properties={"encryption.key-id": "k"})
    bench.settings = {}
    result = bench.cycle()
    assert (result.tables, result.changed) == (3, 3)
    assert {operation for _, operation in bench.asked} <= {ORPHANS}  # a scan that only reports
    assert (said := bench.store.tables.evaluation(TableRef("lake", ("sales",), "future"))) is not None
    assert {v["verdict"] for v in said["verdicts"]} == {"unsupported"}


@pytest.mark.cases(90)
def test_a_faulty_evaluation_does_not_hide_another_operation(bench: Bench) -> None:
    """An operation whose evaluation fails is blocked with the error; the expiry that is due runs."""
    ref = bench.table()
    bench.files.partitions[ref] = (partition("value of no field", spec_id=99),)
    bench.cycle()
    assert bench.asked == [("orders", EXPIRE)]


def test_the_pass_is_written_down(bench: Bench) -> None:
    """Listeners hear of each stage, with counts."""
    bench.table()
    bench.cycle()
    kinds = [kind for kind, _ in bench.told]
    assert " ".join(kinds) == "detected evaluated job_started operation_started operation_finished job_finished"
    assert bench.events("operation_finished")[0]["state"] is OperationState.COMMITTED
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", bench.events("job_finished")[0]["job_id"])
    assert bench.events("job_finished")[0]["table"] == str(REF)


@pytest.mark.cases(86)
def test_another_policy_is_a_change(bench: Bench) -> None:
    """A quiet table is judged anew when its policy changes, though neither its metadata nor the time asks for it."""
    bench.table(ages=YOUNG)
    bench.cycle()
    bench.clock.advance(hours=1)
    assert bench.cycle().changed == 0
    bench.settings["expire_snapshots.retention_hours"] = 2.0
    assert bench.cycle().changed == 1
    assert bench.cycle(force=True).changed == 0
