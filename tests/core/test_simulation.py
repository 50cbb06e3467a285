"""Policies over fleets under a virtual clock: the same result each time, within the limits, and nothing for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.capacity import CatalogLimits, Limits, PoolLimits
from icewright.core.layering import Policy
from icewright.core.policy import MEGABYTE, ON_POOL, Operation
from icewright.core.simulation.fleet import FLEETS, KINDS, fleet
from icewright.core.simulation.meter import EVALUATE, Result
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.service import SimulatedJob
from icewright.core.simulation.writes import Source, Write
from icewright.core.table import TableRef
from tests.examples import examples

BEGIN = datetime.fromisoformat("2026-01-05T00:00:00+00:00")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
POLICY = Policy()


def span(days: float, every: timedelta = HOUR) -> Span:
    """So many days from the begin."""
    return Span(BEGIN, BEGIN + days * DAY, every)


def ran(
    sources: Sequence[Source],
    policy: Policy | None = POLICY,
    *,
    days: float = 2,
    limits: Limits | None = None,
    every: timedelta = HOUR,
) -> tuple[Result, list[SimulatedJob]]:
    """The result, and the jobs in the order of their ends."""
    jobs: list[SimulatedJob] = []
    return simulate(sources, policy, span(days, every), Slots(limits or Limits()), on_job=jobs.append), jobs


def source(*writes: Write, name: str = "t") -> Source:
    """One table with these commits."""
    return Source(TableRef("lake", ("n",), name), partial(iter, writes))


def commits(every: timedelta, count: int, files: int = 2, **more: Any) -> Iterator[Write]:
    """Commits of small files, from the begin on."""
    for n in range(count):
        yield Write(BEGIN + n * every, files, files * MEGABYTE, files * 1000, **more)


@pytest.mark.parametrize("policy", [None, POLICY], ids=["cron", "default"])
def test_the_same_again(policy: Policy | None) -> None:
    """A fleet, a seed and a policy give one result, to the last digit; another seed another."""
    first, again, other = (ran(fleet("mixed", 20, seed, BEGIN), policy, days=1)[0] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_default_against_cron() -> None:
    """By the defaults a mixed fleet has fewer files than cron leaves, for less than half of what cron takes."""
    sources = fleet("mixed", 40, 0, BEGIN)
    (ours, _), (cron, _) = (ran(sources, policy, days=3) for policy in (POLICY, None))
    assert ours.gb_hours < cron.gb_hours / 2
    assert ours.average_files < cron.average_files
    assert ours.average_health is not None
    assert cron.average_health is not None
    assert ours.average_health > cron.average_health
    assert cron.runs == dict.fromkeys(("compact", "expire_snapshots", "remove_orphans", "rewrite_manifests"), 40 * 3)


def test_quiet_tables_cost_nothing() -> None:
    """A healthy table that nobody writes to is looked at once a day and scanned for orphans once a week."""
    old = [source(Write(BEGIN - 30 * DAY, 3, 1500 * MEGABYTE, 1000), name=f"t{n}") for n in range(10)]
    result, jobs = ran(old, days=6)
    assert {job.operations for job in jobs} == {(Operation.REMOVE_ORPHANS,)}
    assert result.runs == {"remove_orphans": 10}
    assert result.evaluations <= 10 * 8
    assert result.average_files == pytest.approx(30)
    assert (result.final_files, result.waiting) == (30, 0)
    cron, _ = ran(old, None, days=6)
    assert cron.final_files == 30
    assert cron.gb_hours > 20 * result.gb_hours


def test_gb_hours_are_those_of_runs_and_looks() -> None:
    """What is spent is the sum of all jobs and of all evaluations."""
    result, jobs = ran(fleet("hourly", 4, 3, BEGIN))
    assert result.gb_hours == pytest.approx(sum(result.gb_hours_by_operation.values()))
    assert sum(job.gb_hours for job in jobs) + result.gb_hours_by_operation[EVALUATE] == pytest.approx(result.gb_hours)
    assert sum(result.runs.values()) == sum(len(job.operations) for job in jobs)
    last = result.series[-1]
    assert (last.files, last.deleted_files) == (result.final_files, result.deleted_files)
    assert last.gb_hours == pytest.approx(result.gb_hours)


def test_series_grow() -> None:
    """Samples are in order, from the begin to the end, and sums never fall."""
    result, _ = ran(fleet("streaming", 3, 0, BEGIN), days=1)
    hours = [s.hours for s in result.series]
    assert hours == sorted(hours)
    assert (hours[0], hours[-1]) == (0, 24)
    assert all(a.gb_hours <= b.gb_hours and a.deleted_files <= b.deleted_files for a, b in pairwise(result.series))


def test_average_files_is_weighted_by_time() -> None:
    """Ten files for a quarter of the time, and twenty after, are 17.5."""
    off = Policy(command={f"{op}.enabled": False for op in Operation})
    writes = [Write(BEGIN, 10, 10 * MEGABYTE, 10), Write(BEGIN + 6 * HOUR, 10, 10 * MEGABYTE, 10)]
    result, jobs = ran([source(*writes)], off, days=1)
    assert result.average_files == pytest.approx(17.5)
    assert not jobs


def test_a_trickle_is_compacted_and_rests() -> None:
    """A table that is written all the time is compacted as often as its cooldown allows, and no more."""
    result, jobs = ran([source(*commits(timedelta(minutes=5), 288))], days=1, every=timedelta(minutes=10))
    compactions = [job for job in jobs if Operation.COMPACT in job.operations]
    assert all(later.begun - job.ended >= HOUR for job, later in pairwise(compactions))
    assert 12 <= len(compactions) <= 24
    assert result.average_files < 40


def test_a_job_puts_nothing_off() -> None:
    """What is due when a job of the table ends begins as soon as its cooldown is over, not after another hour."""
    writes = (Write(BEGIN + n * HOUR / 6, 10, 2 * MEGABYTE, 1000) for n in range(144))
    result, jobs = ran([source(*writes)], days=1)
    compactions = [job.begun for job in jobs if Operation.COMPACT in job.operations]
    assert result.runs[Operation.REWRITE_MANIFESTS] >= 4
    assert all(later - earlier < 1.1 * HOUR for earlier, later in pairwise(compactions))


def test_hot_partitions_wait() -> None:
    """A day's partition is left to a writer that deletes rows, and compacted when it has cooled."""
    day = (BEGIN.date(),)
    writes = commits(HOUR / 2, 20, layout=(("day", "day"),), values=day, delete_files=1)
    _, jobs = ran([source(*writes)], days=1)
    (compaction,) = [job for job in jobs if Operation.COMPACT in job.operations]
    assert compaction.begun >= BEGIN + 20 * HOUR / 2 + HOUR / 2


def test_windows_are_kept() -> None:
    """Nothing begins outside of its window."""
    policy = Policy(command={"windows": "20:00-22:00"})
    _, jobs = ran(fleet("daily", 10, 0, BEGIN), policy)
    assert jobs
    assert {job.begun.hour for job in jobs} <= {20, 21}


def test_budgets_are_kept() -> None:
    """A catalog's jobs of one day cost no more than its budget, but for the first of the day."""
    budget = 0.005
    limits = Limits(catalogs={"lake": CatalogLimits(gb_hours_per_day=budget)})
    result, jobs = ran(fleet("daily", 30, 0, BEGIN), limits=limits)
    for day in (0, 1):
        spent = [job.gb_hours for job in jobs if job.ended.date() == (BEGIN + day * DAY).date()]
        assert len(spent) > 1
        assert sum(spent) < 2 * budget
    assert result.waiting > 0


LIMITS = st.builds(
    Limits,
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(Operation), st.integers(1, 2)),
    pools=st.dictionaries(st.just("default"), st.builds(PoolLimits, st.integers(1, 2))),
)


@examples(6)
@given(st.sampled_from(sorted(FLEETS)), st.integers(0, 10**6), LIMITS)
def test_no_limit_is_passed_at_any_moment(name: str, seed: int, limits: Limits) -> None:
    """Jobs at the same time: in all, by operation, by pool; one a table."""
    result, jobs = ran(fleet(name, 8, seed, BEGIN), days=1, limits=limits)
    edges = [(job.begun, 1, job) for job in jobs] + [(job.ended, 0, job) for job in jobs]
    active: Counter[object] = Counter()
    for _, begins, job in sorted(edges, key=lambda edge: edge[:2]):
        on_pool = ["pool"] if ON_POOL & set(job.operations) else []
        change = Counter(["all", f"table {job.number}", *on_pool, *job.operations])
        active.update(change) if begins else active.subtract(change)
        assert min(active.values()) >= 0
        assert active["all"] <= limits.total
        assert max(count for key, count in active.items() if str(key).startswith("table")) <= 1
        assert all(active[op] <= most for op, most in limits.per_operation.items())
        assert all(active["pool"] <= pool.max_concurrent for pool in limits.pools.values())
    assert result.average_files >= 0


@pytest.mark.parametrize("name", sorted(KINDS))
def test_fleets_are_drawn_in_the_order_of_time(name: str) -> None:
    """Commits of a made-up table never go back in time, and bring what they say."""
    for made in fleet(name, 5, 0, BEGIN):
        writes = made.writes()
        first = [next(writes) for _ in range(300)]
        assert [w.at for w in first] == sorted(w.at for w in first)
        assert all((w.files > 0) == (w.bytes > 0) for w in first)
        assert first[0].at < BEGIN
        again = made.writes()
        assert first == [next(again) for _ in range(300)]


def test_a_mixed_fleet_has_all_kinds() -> None:
    """In the shares that it names."""
    kinds = Counter(made.ref.namespace[0] for made in fleet("mixed", 200, 0, BEGIN))
    assert kinds == {name: 200 * share for name, share in FLEETS["mixed"].items()}


def test_cron_takes_its_time() -> None:
    """Tables go through as many lanes as there are places; a night that lasts too long takes the next one's."""
    sources = [source(*commits(HOUR, 2, files=20_000), name=f"t{n}") for n in range(60)]
    slow, quick = (ran(sources, None, days=3, limits=Limits(total))[0] for total in (1, 8))
    assert quick.runs["compact"] == 60 * 3
    assert slow.runs["compact"] < 60 * 3


def test_presets_differ() -> None:
    """Another policy is another result: what is deleted sooner is stored no longer."""
    sources = fleet("streaming", 2, 0, BEGIN)
    policies: Mapping[str, Policy] = {
        "default": POLICY,
        "compliance": Policy(command={"expire_snapshots.retention_hours": 20}),
    }
    stored = {name: ran(sources, policy, days=2)[0].average_stored_bytes for name, policy in policies.items()}
    assert stored["compliance"] < stored["default"]
