"""The contract of every store for lists: filtered, sorted and paged, within what the caller may see."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.errors import UsageError
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.runs import JobState, committed
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.ports import Pointer, RunRow, Store, Trigger
from icewright.ports.views import JobQuery, RunQuery, Savings, TableQuery, TableSort, TrendStep, WaitingQuery
from icewright.testing import NOW, facts, knobs, manifests, metadata, partition
from icewright.testing.contracts.cases import StoreSuite

REFS = [TableRef("lake", (space,), f"t{n}") for space in ("hr", "sales") for n in range(4)]
SALES = (("lake", "sales"),)
_NO_TIME = "9999-12-31T23:59:59-23:59"  # of UTC
BAD_CURSORS: tuple[tuple[Any, ...], ...] = (
    ("x",),
    (1, 2, 3, 4),
    ({}, 1, 1),
    (2**70, 2**70),
    ("\0", "a", "b"),
    (_NO_TIME, 1),
)


def _evaluation(ref: TableRef, files: int, uuid: str) -> Evaluation:
    of = metadata((50, 2, 1), ref=ref, metadata_location=f"s3://w/{ref}/1", table_uuid=uuid)
    found = facts(partition(files=files, mb=1), of=of, thresholds=thresholds(knobs()), manifests_of=(manifests(20),))
    return evaluate(found, knobs(), {}, NOW)


class ViewsTests(StoreSuite):
    """Lists for people, in pages, within what they may see."""

    @pytest.fixture(autouse=True)
    def _evaluated_tables(self, store: Store) -> None:
        """Record eight tables, of which every second has something due."""
        store.tables.record_listing("lake", [Pointer(ref, f"s3://w/{ref}/1") for ref in REFS], NOW)
        for i, ref in enumerate(REFS[::2]):
            store.tables.record_evaluation(_evaluation(ref, 10 + i, f"u{i}"), NOW + timedelta(seconds=i))

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("sort", TableSort)
    def test_tables_page_by_page(self, store: Store, sort: TableSort, descending: bool) -> None:
        """Pages list each table once, in order, those without a value last; foreign cursors are refused."""
        query, after, listed = TableQuery(sort=sort, descending=descending), None, []
        while True:
            page = store.views.list_tables(query, None, after, 3)
            assert page.total == 8
            listed += [item.row.ref for item in page.items]
            if page.after is None:
                break
            after = page.after
        assert sorted(listed) == REFS
        if sort not in (TableSort.NAME, TableSort.QUERIES, TableSort.SUCCEEDED):
            first = int(sort is TableSort.NEXT and not descending)  # the others are to be evaluated first
            assert set(listed[:4]) == set(REFS[first::2])
        for bad in BAD_CURSORS:
            with pytest.raises(UsageError, match="cursor"):
                store.views.list_tables(query, None, bad, 3)

    def test_lists_show_what_is_visible(self, store: Store) -> None:
        """A caller who sees one namespace gets its tables, jobs and numbers alone."""
        trigger = Trigger("cycle", "me", "host:1:2")
        jobs = [store.jobs.claim(ref, "u", (Operation.COMPACT,), trigger, NOW) for ref in REFS]
        visible = store.views.list_tables(TableQuery(), SALES, None, 50)
        assert [item.row.ref for item in visible.items] == REFS[4:]
        assert visible.total == 4
        assert sorted(str(i.job.job_id) for i in store.views.list_jobs(JobQuery(), SALES, None, 50).items) == sorted(
            map(str, jobs[4:])
        )
        assert len(store.views.list_queue(JobQuery(), SALES, 50)) == 4
        assert store.views.list_tables(TableQuery(), (), None, 50).items == []
        assert store.views.overview(SALES, NOW).tables == 4
        assert store.views.overview(None, NOW).jobs == {"running": 8}
        store.jobs.finish(str(jobs[0]), JobState.SUCCEEDED, "", NOW)
        assert [i.ref for i in store.views.list_waiting(WaitingQuery(), SALES, None, 50).items] == []
        waiting = store.views.list_waiting(WaitingQuery(), None, None, 1)
        assert waiting.items[0].ref == REFS[0]
        assert waiting.after is not None
        rest = store.views.list_waiting(WaitingQuery(), None, waiting.after, 50).items
        assert len(rest) + 1 == waiting.total
        assert store.views.list_runs(RunQuery(), None, None, 10).items == []

    def test_due_operations_of_one_table(self, store: Store) -> None:
        """The due operations of one table are listed alone."""
        page = store.views.list_waiting(WaitingQuery(REFS[2]), None, None, 50)
        assert {item.ref for item in page.items} == {REFS[2]}
        assert page.total == len(page.items) > 1
        assert store.views.list_waiting(WaitingQuery(REFS[1]), None, None, 50).items == []
        assert store.views.list_waiting(WaitingQuery(REFS[2]), SALES, None, 50).items == []

    def test_due_operations_page_by_page(self, store: Store) -> None:
        """Due operations are found by table, catalog and operation; those of one table are on one page."""
        after, pages = None, list[set[TableRef]]()
        while True:
            page = store.views.list_waiting(WaitingQuery(), None, after, 4)
            pages.append({item.ref for item in page.items})
            after = page.after
            if after is None:
                break
        assert sorted(ref for refs in pages for ref in refs) == REFS[::2]
        every = store.views.list_waiting(WaitingQuery(), None, None, 50).items
        assert len(every) > len(pages) == len(REFS) / 2
        for query, expected in (
            (WaitingQuery(operation=Operation.COMPACT), [i for i in every if i.operation is Operation.COMPACT]),
            (WaitingQuery(search="SALES.t2"), [i for i in every if i.ref == REFS[6]]),
            (WaitingQuery(catalog="other"), []),
        ):
            found = store.views.list_waiting(query, None, None, 50)
            assert (found.items, found.total) == (expected, len(expected)), query

    def test_activity(self, store: Store) -> None:
        """Events are listed newest first, page by page, by kind and sight; those of no table need full sight.

        Without its steps a job has one event.
        """
        store.activity.record("scan_started", NOW, catalogs=["lake"])
        for n, ref in enumerate(REFS):
            store.activity.record("paused", NOW + timedelta(seconds=n), ref, jobs=n)
        first = store.views.list_activity(None, None, None, 5)
        rest = store.views.list_activity(None, None, first.after, 5)
        assert [item["ref"] for item in (*first.items, *rest.items)] == [*reversed(REFS), None]
        assert rest.after is None
        assert first.items[0]["details"] == {"jobs": 7}
        assert [item["ref"] for item in store.views.list_activity(None, SALES, None, 9).items] == REFS[:3:-1]
        assert [item["kind"] for item in store.views.list_activity("scan_started", None, None, 9).items] == [
            "scan_started"
        ]
        with pytest.raises(UsageError, match="cursor"):
            store.views.list_activity(None, None, ("x",), 5)
        steps = ("job_started", "operation_started", "progress", "operation_finished", "job_finished")
        for job, last in (("a", 5), ("b", 3)):
            for kind in steps[:last]:
                store.activity.record(kind, NOW, REFS[0], job_id=job)
        latest = store.views.list_activity(None, None, None, 2, steps=False).items
        assert [(item["job_id"], item["kind"]) for item in latest] == [("b", "job_started"), ("a", "job_finished")]

    def test_savings_are_summed(self, store: Store) -> None:
        """Savings sum the metrics of runs since then in sight, and the cost of failed runs."""
        costs = {"gb_hours": 0.5, "gb_hours_driver": 0.25, "money": 2.0}
        metrics: dict[Operation, dict[str, float]] = {
            Operation.COMPACT: {"files_merged": 100, "files_written": 4, **costs},
            Operation.REWRITE_DELETES: {"files_rewritten": 9, "files_written": 3},
            Operation.REWRITE_MANIFESTS: {"manifests_rewritten": 20, "manifests_written": 2},
            Operation.EXPIRE_SNAPSHOTS: {"snapshots_expired": 7, "files_deleted": 30, "bytes_deleted": 2**40},
            Operation.REMOVE_ORPHANS: {"orphans_removed": 5, "bytes_deleted": 1024},
        }
        for ref, when in ((REFS[4], NOW), (REFS[5], NOW - timedelta(days=30)), (REFS[0], NOW)):
            job = store.jobs.claim(ref, "u", tuple(metrics), Trigger("cycle", "me", "host:1:2"), when)
            assert job is not None
            for operation, run_metrics in metrics.items():
                run = RunRow(job, committed(operation, "", run_metrics), when, when, "m", "p", {}, {})
                store.runs.record(run, ref)
            store.jobs.finish(job, JobState.SUCCEEDED, "", when)
            (item,) = store.views.list_jobs(JobQuery(job_id=job), None, None, 1).items
            assert {name: getattr(item, name) for name in costs} == costs
        saved = store.views.overview(SALES, NOW - timedelta(days=1)).saved
        assert saved == Savings(5, 0.5, 2.0, 96, 18, 7, 35, 2**40 + 1024)
        assert store.views.overview(None, NOW - timedelta(days=1)).saved.runs == 10
        assert store.views.overview((), NOW - timedelta(days=1)).saved == Savings()
        self._trend_has_the_same_sums(store, saved)

    def _trend_has_the_same_sums(self, store: Store, saved: Savings) -> None:
        """A trend splits the sums by step and pool, for a table, a catalog or all, in sight."""

        def trend(
            visibility: VisibilityFilter, step: TrendStep, days: int, query: RunQuery
        ) -> list[tuple[datetime, int]]:
            points = store.views.trend(visibility, NOW - timedelta(days=days), step, query).points
            return [(point.at, point.saved.runs) for point in points]

        midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
        by_day = [(midnight - timedelta(days=30), 5), (midnight, 10)]
        assert trend(None, TrendStep.DAY, 40, RunQuery()) == by_day
        assert trend(None, TrendStep.DAY, 40, RunQuery(catalog="nowhere")) == []
        assert trend(None, TrendStep.HOUR, 1, RunQuery()) == [(NOW.replace(minute=0, second=0, microsecond=0), 10)]
        assert trend(None, TrendStep.MINUTE, 1, RunQuery(ref=REFS[0])) == [(NOW.replace(second=0, microsecond=0), 5)]
        (point,) = store.views.trend(SALES, NOW - timedelta(days=1), TrendStep.DAY, RunQuery()).points
        assert point.saved == saved

    def test_health_of_each_day(self, store: Store) -> None:
        """What the last evaluation of a day found counts until another finds something else."""

        def trend(since: int, query: RunQuery, visibility: VisibilityFilter = None) -> list[tuple[int, int, int]]:
            points = store.views.trend(visibility, NOW + timedelta(days=since), TrendStep.DAY, query).health
            return [((point.day - NOW.date()).days, point.tables, point.files) for point in points]

        def again(days: int, files: int, uuid: str = "u0") -> Evaluation:
            evaluation = _evaluation(REFS[0], files, uuid)
            store.tables.record_evaluation(evaluation, NOW + timedelta(days=days, seconds=files))
            return evaluation

        all_tables, one = RunQuery(), RunQuery(ref=REFS[0])
        again(2, 1)
        found = again(2, 30)
        assert trend(0, all_tables) == trend(-5, all_tables) == [(0, 4, 46), (2, 4, 66)]
        assert trend(1, all_tables) == [(1, 4, 46), (2, 4, 66)]
        assert trend(3, RunQuery(catalog="lake")) == [(3, 4, 66)]
        assert trend(0, RunQuery(catalog="nowhere")) == []
        assert (trend(0, one), trend(0, all_tables, SALES)) == ([(0, 1, 10), (2, 1, 30)], [(0, 2, 25)])
        *_, point = store.views.trend(None, NOW, TrendStep.DAY, one).health
        assert (point.health, point.bytes) == (found.health, found.facts.data_bytes)
        again(3, 5, "another table of the name")
        assert trend(0, one) == [(3, 1, 5)]
        again(500, 6, "another table of the name")
        assert trend(0, one) == [(500, 1, 6)]  # a year and more ago is forgotten
        store.tables.record_listing("lake", [Pointer(ref, "m") for ref in REFS[1:]], NOW)
        assert trend(0, all_tables) == [(0, 3, 36)]

    def test_jobs_and_events_are_found_by_table_and_time(self, store: Store) -> None:
        """A part of the table's name and a time narrow both lists."""
        for n, ref in enumerate(REFS):
            when = NOW + timedelta(hours=n)
            assert store.jobs.claim(ref, "u", (Operation.COMPACT,), Trigger("cycle", "me", "host:1:2"), when)
            store.activity.record("paused", when, ref)
        late = NOW + timedelta(hours=4)
        for search, since in ((REFS[5].name.upper(), None), (None, late), (REFS[5].name, late), ("%", None)):
            found = {
                i.job.ref for i in store.views.list_jobs(JobQuery(search=search, since=since), None, None, 50).items
            }
            expected = {
                ref
                for n, ref in enumerate(REFS)
                if (search is None or search.lower() in ref.name) and (since is None or n >= 4)
            }
            assert found == expected, (search, since)
            events = store.views.list_activity("paused", None, None, 50, search=search, since=since).items
            assert {item["ref"] for item in events} == expected

    def test_search_has_no_wildcards(self, store: Store) -> None:
        """Tables are found by a part of name, namespace or full name; pattern characters stand for themselves."""
        dotted = (("lake.sales.T1", 1), ("hr.t", 4), ("`sales`.t3", 1), ("lake.", 8), (".", 8), ("ake.hr.%", 0))
        plain = (("T1", 2), ("lake", 0), ("ALE", 4), ("%", 0), ("_", 0), ('"', 0), ("[", 0), ("\\", 0))
        for text, count in (*dotted, *plain):
            assert store.views.list_tables(TableQuery(search=text), None, None, 50).total == count, text

    def test_tables_are_filtered_by_due_operation(self, store: Store) -> None:
        """A list of tables with one due operation has each table on which it is due."""
        due = store.views.list_waiting(WaitingQuery(), None, None, 50).items
        query = TableQuery(due=due[0].operation, states=("due",))
        expected = {item.ref for item in due if item.operation == query.due}
        assert {item.row.ref for item in store.views.list_tables(query, None, None, 50).items} == expected
