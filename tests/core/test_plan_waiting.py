"""Nothing waits for ever: what is due for longer than its bound goes first, in a quarter of the slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.capacity import (
    MAX_WAIT,
    Active,
    Candidate,
    CatalogLimits,
    DueOperation,
    Limits,
    PoolLimits,
    Priority,
    Usage,
)
from icewright.core.layering import Policy, PolicyRule
from icewright.core.plan import IMPORTANCES, PlannedJob, make_plan
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.service import SimulatedJob
from icewright.core.simulation.writes import Source, Write
from icewright.core.table import TableRef
from icewright.core.windows import WEEK
from icewright.testing import NOW
from tests.examples import examples

COMPACT, MANIFESTS, EXPIRE = Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def table(name: str, hours: float = 0, *operations: Operation, value: float = 1.0, cost: float = 1.0) -> Candidate:
    """A table whose operations, by default a compaction, have been due for so many hours."""
    since = NOW - hours * HOUR
    found = {op: DueOperation(value, cost, f"{op} is due", since, on_pool=True) for op in operations or (COMPACT,)}
    return Candidate(TableRef("lake", ("sales",), name), f"uuid-{name}", found)


def busy(name: str, priority: Priority = Priority.VALUE, cost: float = 0.0) -> Active:
    """A running job."""
    return Active(TableRef("lake", ("sales",), name), "default", (COMPACT,), on_pool=True, cost=cost, priority=priority)


def names(jobs: Sequence[PlannedJob]) -> list[tuple[str, Priority]]:
    """Return the tables of a plan's jobs with their priorities, in order."""
    return [(job.ref.name, job.priority) for job in jobs]


HOT = [table(f"hot{n}", value=1e6) for n in range(6)]


@pytest.mark.cases(132)
@pytest.mark.parametrize(("hours", "first"), [(23.9, "hot0"), (24, "cold")])
def test_a_cold_table_goes_before_hot_ones_after_a_day(hours: float, first: str) -> None:
    """Tables that are worth a million times as much come first for 24 hours, and no longer."""
    plan = make_plan([*HOT, table("cold", hours)], Limits(2), NOW)
    assert plan.jobs[0].ref.name == first
    assert [job.why for job in plan.jobs if job.ref.name == "cold"] == (
        ["compact: compact is due; waited 24 hours"] if first == "cold" else []
    )


@pytest.mark.parametrize("importance", IMPORTANCES)
def test_more_important_tables_wait_less(importance: str) -> None:
    """The bound is by importance; a cooldown and the time before it do not count."""
    assert MAX_WAIT.keys() == IMPORTANCES.keys()
    hours = MAX_WAIT[importance] / HOUR
    for late in (False, True):
        cold = replace(table("cold", hours if late else hours - 0.1), importance=importance)
        cooled = replace(cold.due_operations[COMPACT], cooled=NOW - 5 * HOUR)
        for candidate, first in ((cold, late), (replace(cold, due_operations={COMPACT: cooled}), False)):
            (job, *_) = make_plan([*HOT, candidate], Limits(1), NOW).jobs
            assert (job.ref.name == "cold") is first


@pytest.mark.parametrize(
    ("total", "running", "overdue"),
    [
        (2, 0, 1),
        (4, 0, 1),
        (8, 0, 2),
        (8, 1, 1),  # a job that was overdue still runs
        (8, 2, 0),
    ],
)
def test_a_quarter_of_the_slots(total: int, running: int, overdue: int) -> None:
    """So many begin because they waited, the longest overdue first, and value decides about the other slots."""
    cold = [table(f"cold{n}", 40 - n) for n in range(5)]
    usage = Usage(tuple(busy(f"old{n}", Priority.OVERDUE) for n in range(running)))
    jobs = names(make_plan([*HOT, *cold], Limits(total), NOW, usage).jobs)
    assert jobs[:overdue] == [(f"cold{n}", Priority.OVERDUE) for n in range(overdue)]
    rest = jobs[overdue:]
    assert rest[:6] == [(f"hot{n}", Priority.VALUE) for n in range(min(6, total - running - overdue))]


def test_an_overdue_operation_waits_for_no_other_of_its_table() -> None:
    """Though compaction has no room, the overdue expiry after it runs; what is not overdue keeps its order."""
    both = table("cold", 30, COMPACT, EXPIRE)
    fresh = replace(both.due_operations[EXPIRE], since=NOW)
    limits, usage = Limits(4, {COMPACT: 1}), Usage((busy("old"),))
    (job,) = (plan := make_plan([both], limits, NOW, usage)).jobs
    assert (job.operations, job.priority) == ((EXPIRE,), Priority.OVERDUE)
    assert [d.reason for d in plan.deferred] == ["limit per_operation.compact (1) reached; waited 30 hours"]
    assert (
        make_plan([replace(both, due_operations={**both.due_operations, EXPIRE: fresh})], limits, NOW, usage).jobs == ()
    )


def test_what_is_overdue_has_a_reserved_slot_whatever_else_its_catalog_runs() -> None:
    """Though its catalog has its part of the slots, an overdue operation goes before the hot ones of another."""
    of_pond = [replace(one, ref=TableRef("pond", ("sales",), one.ref.name)) for one in HOT]
    (job,) = make_plan([*of_pond, table("cold", 30)], Limits(2, max_jobs=1), NOW, Usage((busy("old"),))).jobs
    assert job.ref.name == "cold"


def test_what_is_overdue_keeps_its_order_as_windows_open() -> None:
    """Of two that have waited equally long, the better one has its part of the budget, also before their window."""
    pair = [
        replace(table(name, 30, value=cost**2, cost=cost), windows="20:00-23:00") for name, cost in (("a", 1), ("b", 2))
    ]
    limits = Limits(9, pools={"default": PoolLimits(9, 4)})
    assert make_plan([*pair, table("hot", value=1e6, cost=3)], limits, NOW).jobs == ()


@pytest.mark.parametrize(
    ("cost", "spent", "begins"),
    [
        (3, 8, []),  # the rest of the day's budget is left to it
        (3, 7, ["cold"]),
        (20, 9.9, ["cold"]),  # more than the whole budget: it runs while any is left
        (20, 10, []),
    ],
)
def test_a_budget_is_left_to_what_is_overdue(cost: float, spent: float, begins: list[str]) -> None:
    """Small jobs do not use up, day after day, the budget that a large one waits for."""
    limits = Limits(9, pools={"default": PoolLimits(9, 10)}, catalogs={"lake": CatalogLimits(None, 10)})
    for usage in (Usage((), {"default": spent}), Usage((), {}, {"lake": spent})):
        plan = make_plan([table("cold", 30, cost=cost), table("hot", value=1e6, cost=0.05)], limits, NOW, usage)
        assert [job.ref.name for job in plan.jobs] == begins
        late = make_plan([table("cold", 24 * 8, cost=cost)], limits, NOW, usage)  # by a week: while any is left
        assert [job.ref.name for job in late.jobs] == (["cold"] if spent < 10 else [])
        early = make_plan([table("cold", 3, cost=cost), table("hot", value=1e6, cost=0.05)], limits, NOW, usage)
        assert [job.ref.name for job in early.jobs] == (["cold"] if cost == 3 and spent == 7 else []) or spent < 10


@pytest.mark.parametrize(
    ("cost", "hours", "windows", "begins"),
    [
        (20, 40, "20:00-23:00", []),  # more than the whole budget
        (3, 24 * 9, "20:00-23:00", []),  # by a week: else it would run while any is left
        (20, 40, None, ["longer", "large"]),
        (20, 40, "01:00-02:00", ["large"]),  # by then there is a new budget
    ],
)
def test_what_is_overdue_runs_by_turn_where_it_takes_what_is_left(
    cost: float, hours: float, windows: str | None, begins: list[str]
) -> None:
    """Large jobs, of which one is overdue each day, do not use up what a longer overdue one of a small budget needs."""
    longer = replace(table("longer", hours + 1, cost=1), windows=windows)
    limits, usage = Limits(9, pools={"default": PoolLimits(9, 4)}), Usage((), {"default": 1})
    plan = make_plan([longer, table("large", hours, cost=cost)], limits, NOW, usage)
    assert [job.ref.name for job in plan.jobs] == begins


@pytest.mark.parametrize(
    ("windows", "blocked", "begins"),
    [
        ("20:00-23:00", None, []),
        ("01:00-02:00", None, ["hot"]),  # by then there is a new budget
        ("20:00-23:00", "paused", ["hot"]),
    ],
)
def test_a_budget_is_left_to_what_is_overdue_and_opens_later(
    windows: str, blocked: str | None, begins: list[str]
) -> None:
    """Others do not use up, day after day, the budget before the window of an overdue operation opens."""
    cold = replace(table("cold", 30, cost=3), windows=windows, blocked=blocked)
    limits, usage = Limits(9, pools={"default": PoolLimits(9, 10)}), Usage((), {"default": 8})
    plan = make_plan([cold, table("hot", value=1e6, cost=0.05)], limits, NOW, usage)
    assert [job.ref.name for job in plan.jobs] == begins
    assert [d.reason for d in plan.deferred if d.ref.name == "cold"] == [
        blocked or f"outside of its maintenance window, which opens 2026-11-2{2 - (not begins)} {windows[:5]} UTC"
    ]


STEP, LASTS = 6 * HOUR, 3  # between two plans; the longest job takes so many of them
WEEKLY = ("sat", "tue 06:00-24:00")
WINDOWS = (None, None, "06:00-24:00", "12:00-06:00", *WEEKLY)  # at least as long as the longest job


@dataclass
class _Waits:
    """A fleet in which every operation is due again as soon as it has run."""

    tables: Mapping[TableRef, Candidate]
    since: dict[tuple[TableRef, Operation], datetime]
    longest: timedelta = timedelta(0)

    def due(self, running: Mapping[TableRef, object]) -> list[Candidate]:
        """Return the candidates of a plan."""
        return [
            replace(
                one,
                due_operations={
                    op: replace(due_operation, since=self.since[ref, op])
                    for op, due_operation in one.due_operations.items()
                },
                blocked="held by a job" if ref in running else None,
            )
            for ref, one in self.tables.items()
        ]


@st.composite
def _fleets(draw: st.DrawFn) -> _Waits:
    tables = {}
    for number in range(draw(st.integers(2, 6))):
        ref = TableRef(draw(st.sampled_from(["lake", "pond"])), (draw(st.sampled_from("nm")),), f"t{number}")
        found = {
            op: DueOperation(10.0 ** draw(st.integers(0, 9)), draw(st.integers(1, 4)), "due", NOW, draw(st.booleans()))
            for op in draw(st.sets(st.sampled_from([COMPACT, MANIFESTS, EXPIRE]), min_size=1))
        }
        importance = draw(st.sampled_from(sorted(IMPORTANCES)))
        pool, windows = draw(st.sampled_from(["small", "large"])), draw(st.sampled_from(WINDOWS))
        tables[ref] = Candidate(ref, ref.name, found, importance, windows=windows, pool=pool)
    return _Waits(tables, {(ref, op): NOW for ref, one in tables.items() for op in one.due_operations})


BUDGETS = st.none() | st.integers(4, 12)
LIMITS = st.builds(
    Limits,
    st.integers(1, 8),
    st.fixed_dictionaries({}, optional={op: st.integers(1, 2) for op in (COMPACT, MANIFESTS, EXPIRE)}),
    st.integers(1, 6),
    pools=st.fixed_dictionaries({"small": st.builds(PoolLimits, st.integers(1, 2), BUDGETS)}),
    catalogs=st.fixed_dictionaries({"lake": st.builds(CatalogLimits, st.none() | st.integers(1, 2), BUDGETS)}),
    namespaces=st.dictionaries(
        st.sampled_from([("lake", "n"), ("*", "m")]), st.builds(CatalogLimits, st.none() | st.integers(1, 2), BUDGETS)
    ),
)


@pytest.mark.cases(132)
@examples(30)
@given(_fleets(), LIMITS, st.data())
def test_every_due_operation_is_chosen_within_a_bound(waits: _Waits, limits: Limits, data: st.DataObject) -> None:
    """No operation waits longer than its bound, and a day and a job for each that may be before it.

    Windows open for as long as the longest job takes, each day or each week: then a week for each instead, as a window
    may pass while one that has waited longer runs.
    """
    running: dict[TableRef, tuple[PlannedJob, int]] = {}
    now, spent, day = NOW, Usage(), NOW.date()
    operations = len(waits.since)
    for _ in range(8 * operations + 60):
        if now.date() != day:
            spent, day = Usage(), now.date()
        usage = replace(spent, active=tuple(job.active() for job, _ in running.values()))
        for job in make_plan(waits.due(running), limits, now, usage).jobs:
            running[job.ref] = job, data.draw(st.integers(1, LASTS), "plans that the job lasts")
        now += STEP
        for ref, (job, left) in list(running.items()):
            running[ref] = job, left - 1
            if left == 1:
                del running[ref]
                waits.since |= {(ref, op): now for op in job.operations}
                by_pool, by_catalog = dict(spent.spent_by_pool), dict(spent.spent_by_catalog)
                by_pool[job.pool] = by_pool.get(job.pool, 0) + (job.cost if job.on_pool else 0)
                by_catalog[ref.catalog] = by_catalog.get(ref.catalog, 0) + job.cost
                by_namespace = dict(spent.spent_by_namespace)
                by_namespace[ref.parts[:-1]] = by_namespace.get(ref.parts[:-1], 0) + job.cost
                spent = Usage((), by_pool, by_catalog, by_namespace)
        for (ref, _op), since in waits.since.items():
            each = WEEK if waits.tables[ref].windows in WEEKLY else DAY + LASTS * STEP
            assert now - since <= limits.max_wait[waits.tables[ref].importance] + max(2, operations) * each


def _small(number: int) -> Iterator[Write]:
    """Yield the commits of a table that is due again a minute after it was compacted."""
    for minute in range(30):
        yield Write(NOW + timedelta(minutes=minute, seconds=number % 60), 40, 40 * MEGABYTE, 40_000)


def _cold() -> Iterator[Write]:
    """Yield the one commit of a table whose compaction costs much and spares little."""
    yield Write(NOW, 60, 60 * 150 * MEGABYTE, 600_000)


@pytest.mark.cases(132)
@pytest.mark.no_cover
@pytest.mark.slow
def test_a_cold_table_beside_hot_ones_in_a_simulation() -> None:
    """With one slot that hot tables fill, a cold one is compacted within the bound; by value alone it is not."""
    sources = [Source(TableRef("lake", ("n",), f"t{n:02d}"), partial(_small, n)) for n in range(90)]
    sources.append(Source(TableRef("lake", ("n",), "cold"), _cold))
    policy = Policy(command={"compact.cooldown_minutes": 0, "evaluate.cooldown_minutes": 0})
    begun: dict[bool, datetime] = {}
    for bounded in (True, False):
        jobs: list[SimulatedJob] = []
        limits = Limits(1, max_wait=dict.fromkeys(MAX_WAIT, HOUR / 3 if bounded else 99 * DAY))
        span = Span(NOW, NOW + HOUR / 2, every=HOUR / 30)
        simulate(sources, policy, span, Slots(limits), on_job=jobs.append)
        cold = [job.begun for job in jobs if job.number == 90 and COMPACT in job.operations]
        begun[bounded] = min(cold, default=span.end)
    assert begun[True] <= NOW + 0.4 * HOUR
    assert begun[False] == NOW + HOUR / 2


@pytest.mark.no_cover
@pytest.mark.slow
def test_a_budget_waits_for_a_window_in_a_simulation() -> None:
    """Hot tables leave a cold one that may begin in the last minutes its part of the day's budget."""
    sources = [Source(TableRef("lake", ("n",), f"t{n:02d}"), partial(_small, n)) for n in range(30)]
    sources.append(Source(TableRef("lake", ("n",), "cold"), _cold))
    settings = {"compact.cooldown_minutes": 0, "evaluate.cooldown_minutes": 0, "remove_orphans.enabled": False}
    rule = PolicyRule(("lake", "n", "cold"), {"windows": "12:20-12:30"})
    jobs: list[SimulatedJob] = []
    limits = Limits(1, pools={"default": PoolLimits(1, 0.1)}, max_wait=dict.fromkeys(MAX_WAIT, HOUR / 12))
    span = Span(NOW, NOW + HOUR / 2, every=HOUR / 60)
    simulate(sources, Policy((rule,), command=settings), span, Slots(limits), on_job=jobs.append)
    assert [job.begun >= NOW + HOUR / 3 for job in jobs if job.number == 30 and COMPACT in job.operations] == [True]
    assert len(jobs) > 50
