"""The contract of every store for the planner's input and the record of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta

from icewright.core.capacity import Active
from icewright.core.partitions import partition_text
from icewright.core.plan import Deferred
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, PartitionChange
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate
from icewright.ports import Store
from icewright.ports.views import JobQuery
from icewright.testing import NOW, REF, facts, knobs, metadata, partition
from icewright.testing.contracts.cases import (
    COMPACT,
    EXPIRE,
    PLANNER,
    WORKER,
    StoreSuite,
    evaluated,
    planned_job,
    record_cost,
    record_tables,
    run_row,
    start_job,
    table_refs,
)


class PlanningStateTests(StoreSuite):
    """Due operations, usage and pool limits."""

    def test_usage_counts_open_jobs_and_the_days_cost(self, store: Store) -> None:
        """Usage has open jobs and the cost of the day: by catalog and namespace all of it, by pool its own runs."""
        tables = table_refs(3)
        record_tables(store, *tables)
        for ref in tables:
            store.jobs.enqueue(planned_job(ref), PLANNER, NOW)
        (job,) = store.jobs.dequeue(WORKER, ["lake"], NOW, 1)
        record_cost(store, job.job_id, job.ref, COMPACT, 0.5)
        record_cost(store, job.job_id, job.ref, COMPACT, 0.25, hours=-20)  # of yesterday
        assert len(store.planning.usage(NOW).active) == 3
        store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
        manual = store.jobs.claim(job.ref, "u", (EXPIRE,), PLANNER, NOW, "default")
        assert manual is not None
        record_cost(store, manual, job.ref, EXPIRE, 0.125)
        actual = store.planning.usage(NOW.replace(hour=0))
        assert (actual.spent_by_pool, actual.spent_by_catalog) == ({"default": 0.5}, {"lake": 0.625})
        assert actual.spent_by_namespace == {job.ref.parts[:-1]: 0.625}
        waiting = {Active(ref, "default", (COMPACT,), on_pool=True, cost=0.25) for ref in tables if ref != job.ref}
        runs = Active(job.ref, "default", (EXPIRE,), on_pool=False, cost=0.0)
        assert set(actual.active) == {*waiting, runs}

    def test_work_that_is_no_operation_counts_too(self, store: Store) -> None:
        """What a job was last charged with counts in the day's cost, while it runs and on the day when it ends."""
        record_tables(store, REF)
        job_id = store.jobs.claim(REF, "u", (), PLANNER, NOW, "spark")
        assert job_id is not None
        for gb_hours in (1.0, 2.0):
            store.jobs.charge(job_id, gb_hours)
        midnight = NOW.replace(hour=0)
        assert store.planning.usage(midnight).spent_by_pool == {"spark": 2.0}
        store.jobs.finish(job_id, JobState.CANCELLED, "", NOW)
        usage = store.planning.usage(midnight)
        assert (usage.spent_by_pool, usage.spent_by_catalog) == ({"spark": 2.0}, {"lake": 2.0})
        assert store.planning.usage(midnight + timedelta(days=1)).spent_by_pool == {}
        (spent,) = store.views.overview(None, midnight).spend
        assert (spent.day, spent.catalog, spent.pool, spent.gb_hours, spent.runs) == (NOW.date(), "lake", "spark", 2, 1)
        (item,) = store.views.list_jobs(JobQuery(), None, None, 10).items
        assert item.gb_hours == 2.0

    def test_candidates_carry_the_terms_of_the_last_evaluation(self, store: Store) -> None:
        """Candidates have the due verdicts of the last evaluation, its terms, and the reason that blocks them."""
        record_tables(store, REF)
        policy_knobs = knobs({"importance": "high", "windows": "sat", "compact.min_input_files": 2})
        old = metadata([1000 - hours for hours in range(10)], ref=REF)
        store.tables.record_evaluation(evaluate(facts(partition(files=10, mb=1), of=old), policy_knobs, {}, NOW), NOW)
        (actual,) = store.planning.candidates(["lake"])
        assert actual.due_operations.keys() >= {COMPACT, EXPIRE}
        assert (actual.due_operations[COMPACT].on_pool, actual.due_operations[EXPIRE].on_pool) == (True, False)
        assert {due_operation.since for due_operation in actual.due_operations.values()} == {NOW}
        assert (actual.importance, actual.windows, actual.heat, actual.blocked) == ("high", "sat", 1, None)
        store.planning.record_deferred([Deferred(REF, COMPACT, "global limit (1) reached", 3.0, 1)])
        store.planning.record_deferred([Deferred(REF, COMPACT, "global limit (1) reached", 3.0, 1)])
        assert store.planning.candidates(["pond"]) == []
        store.tables.pause(REF, "somebody looks")
        (actual,) = store.planning.candidates(["lake"])
        assert actual.blocked == "paused: somebody looks"

    def test_the_change_token_tells_of_an_evaluation_that_began_before_a_recorded_one(self, store: Store) -> None:
        """What a slow evaluation finds is planned at once, though a later evaluation was recorded before."""
        slow, quick = table_refs(2)
        record_tables(store, slow, quick)
        assert len(store.tables.claim_evaluations(["lake"], WORKER, NOW, NOW + timedelta(minutes=2), 9)) == 2
        tokens = [store.planning.change_token()]
        for ref, began in ((quick, NOW + timedelta(seconds=1)), (slow, NOW)):
            store.tables.record_evaluation(evaluated(ref), began)
            tokens.append(store.planning.change_token())
        assert len(set(tokens)) == 3

    def test_the_change_token_tells_of_a_pause_and_a_resumption_at_once(self, store: Store) -> None:
        """A table that is paused while another is resumed is no smaller change than either alone."""
        one, other = table_refs(2)
        record_tables(store, one, other)
        store.tables.pause(one, "somebody looks")
        before = store.planning.change_token()
        store.tables.pause(one, None)
        store.tables.pause(other, "somebody looks")
        assert store.planning.change_token() != before

    def test_an_operation_waits_since_it_became_due_or_last_ran(self, store: Store) -> None:
        """Evaluations do not restart the wait of a due operation; a run of it does, and of no other."""
        record_tables(store, REF)
        old = metadata([1000 - hours for hours in range(10)], ref=REF)
        table = facts(partition(files=10, mb=1), of=old)
        due, spared = knobs({"compact.min_input_files": 2}), knobs({"compact.enabled": False})

        def since() -> Mapping[Operation, datetime]:
            return {
                op: due_operation.since
                for c in store.planning.candidates(["lake"])
                for op, due_operation in c.due_operations.items()
            }

        moments = [NOW + timedelta(hours=hours) for hours in range(4)]
        for now in moments[:2]:
            store.tables.record_evaluation(evaluate(table, due, {}, now), now)
        assert {since()[COMPACT], since()[EXPIRE]} == {NOW}
        job_id = start_job(store)
        store.runs.record(run_row(job_id, COMPACT, now=moments[1]), REF)
        store.tables.record_evaluation(evaluate(table, due, {}, moments[2]), moments[2])
        assert (since()[COMPACT], since()[EXPIRE]) == (moments[1], NOW)
        for policy in (spared, due):
            store.tables.record_evaluation(evaluate(table, policy, {}, moments[3]), moments[3])
        assert (since()[COMPACT], since()[EXPIRE]) == (moments[3], NOW)


class RunHistoryTests(StoreSuite):
    """The record of operations that jobs ran."""

    def test_a_run_is_recorded_once_however_often_it_is_reported(self, store: Store) -> None:
        """A run that is reported again is the same run; another end time makes another run."""
        record_tables(store)
        job_id = start_job(store)
        for run in (
            run_row(job_id),
            run_row(job_id),
            run_row(job_id, COMPACT),
            run_row(job_id, now=NOW + timedelta(minutes=1)),
        ):
            store.runs.record(run, REF)
        assert [(run["operation"], run["finished"]) for run in store.runs.list(job_id)] == [
            (EXPIRE, NOW),
            (COMPACT, NOW),
            (EXPIRE, NOW + timedelta(minutes=1)),
        ]

    def test_calibration_reads_the_newest_runs_of_each_table(self, store: Store) -> None:
        """Only the newest runs of a table count, up to a number of tables, in the catalogs of one pool."""
        names = [TableRef("lake", ("sales",), f"t{number}") for number in range(4)]
        record_tables(store, *names)
        for number, ref in enumerate((*names, *[names[0]] * 5)):
            now = NOW + timedelta(minutes=number)
            job_id = start_job(store, ref, now=now)
            store.runs.record(run_row(job_id, COMPACT, now, n=number), ref)
            store.jobs.finish(job_id, JobState.SUCCEEDED, "", now)
        assert store.runs.work_done(["lake"], NOW, 3, 2) == [(COMPACT, {"n": n}) for n in (8, 7, 3, 2)]
        assert not store.runs.work_done(["other"], NOW, 3, 2)
        assert store.runs.work_done(["lake"], NOW + timedelta(minutes=8), 3, 2) == [(COMPACT, {"n": 8})]

    def test_history_has_the_last_run_of_each_operation(self, store: Store) -> None:
        """The history has state, time, metrics and metadata file of the last run; runs come back in full."""
        record_tables(store)
        job_id = start_job(store)
        later = NOW + timedelta(hours=1)
        for run in (run_row(job_id, n=1), run_row(job_id, COMPACT), run_row(job_id, now=later, n=2)):
            store.runs.record(run, REF)
        history = store.runs.history(REF, "u1")
        assert {op: (r.finished, r.metrics, r.metadata_location) for op, r in history.items()} == {
            EXPIRE: (later, {"n": 2}, "m2"),
            COMPACT: (NOW, {}, "m2"),
        }
        runs = store.runs.list(job_id)
        assert [r["operation"] for r in runs] == [EXPIRE, COMPACT, EXPIRE]
        assert {**runs[0]}.items() >= {"before": {"files": 2}, "after": {"files": 1}, "statements": ["CALL 1"]}.items()

    def test_history_has_what_the_last_runs_that_did_work_measured(self, store: Store) -> None:
        """The metrics of the ten newest that committed, newest first, whatever failed since; other operations not."""
        record_tables(store)
        job_id = start_job(store)
        for number in range(12):
            store.runs.record(run_row(job_id, COMPACT, NOW + timedelta(minutes=number), n=number), REF)
        store.runs.record(run_row(job_id, now=NOW), REF)
        failed = run_row(job_id, COMPACT, NOW + timedelta(hours=1), n=99)
        store.runs.record(replace(failed, outcome=replace(failed.outcome, state=OperationState.FAILED)), REF)
        last = store.runs.history(REF, "u1")[COMPACT]
        assert (last.state, last.metrics, last.worked) == (
            OperationState.FAILED,
            {"n": 99},
            NOW + timedelta(minutes=11),
        )
        assert [metrics["n"] for metrics in last.recent] == [*range(11, 1, -1)]

    def test_history_has_what_compactions_rewrote(self, store: Store) -> None:
        """Partitions count as rewritten by compactions of the same policy for size or order, without files left."""
        record_tables(store)
        job_id = start_job(store)
        day = partition_text([date(2026, 1, 2)])
        rewritten = {
            "a": (PartitionChange("p=a", '0 ["a"]', 9, 90, 1, 80), PartitionChange("d", f"1 {day}", 2, 9, 2, 9)),
            "b": (PartitionChange("p=b", '0 ["b"]', 9, 90, 1, 80, by_deletes=True),),
            "c": (PartitionChange("p=c", '0 ["c"]', 0, 0, 3, 80), PartitionChange("p=a", '0 ["a"]', 3, 9, 3, 9)),
            "d": (PartitionChange("p=b", '0 ["b"]', 9, 90, 1, 80, branch="audit"),),
        }
        for hours, changes in enumerate(rewritten.values()):
            run = run_row(job_id, COMPACT, now=NOW + timedelta(hours=hours))
            store.runs.record(replace(run, outcome=replace(run.outcome, partitions=changes)), REF)
        others = (("files_left", 4, ""), ("n", 1, "another"))
        for metric, value, policy in others:
            run = run_row(job_id, COMPACT, now=NOW, **{metric: value})
            removed_partitions = (PartitionChange("p=z", '0 ["z"]', 9, 90, 1, 80),)
            store.runs.record(
                replace(run, policy=policy or run.policy, outcome=replace(run.outcome, partitions=removed_partitions)),
                REF,
            )
        store.runs.record(run_row(job_id, COMPACT, now=NOW), REF)
        last = store.runs.history(REF, "u1")[COMPACT]
        assert last.rewritten_on == {"audit": {(0, ("b",)): NOW + timedelta(hours=3)}}
        actual = last.rewritten
        assert actual == {(0, ("a",)): NOW + timedelta(hours=2), (1, (date(2026, 1, 2),)): NOW}
