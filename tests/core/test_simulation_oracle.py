"""The oracle's lower bound: no schedule costs less, and the default policy is near it in every named fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.capacity import Limits
from icewright.core.cost import DELETE_FILE_BYTES, REWRITES, expected_files, spark_gb_hours
from icewright.core.effective import Knobs
from icewright.core.layering import Policy, PolicyRule
from icewright.core.merging import opening_gb_hours
from icewright.core.policy import MEGABYTE
from icewright.core.rewriting import PRIOR_READS
from icewright.core.simulation.fleet import FLEETS, SCENARIOS, fleet
from icewright.core.simulation.oracle import least_gb_hours
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.writes import Source, Write
from icewright.core.steps import Kernel
from icewright.core.table import TableRef
from icewright.core.verdicts import thresholds
from tests.nightly import nightly

# test_simulation.py and the tests of what is due are traced, and fast
pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
HOURS = 24 * 10
OPEN = PRIOR_READS / 24 * opening_gb_hours(Knobs())  # of a file, for an hour
SIZES = thresholds(Knobs())
DAYS = {"monthly-trickle": 15, "hourly-200mb": 15, "daily-stream": 2, "gdpr": 7, "streams": 1.5}
FROM_ORACLE = 1.5  # times its cost, at most
SUMS = 2_000_000  # of a search: a fortieth of the usual


@pytest.mark.cases(130, 131, 136)
@pytest.mark.parametrize("name", [nightly(name) if name == "streams" else name for name in SCENARIOS])  # all streams
def test_the_default_costs_no_more_than_cron_and_at_most_half_more_than_the_least(name: str) -> None:
    """In each named fleet the default policy spends less than cron, and reads are cheaper.

    The cost of both together is at most one and a half times that of the oracle.
    """
    sources = fleet(name, min(SCENARIOS[name].tables, 4), 0, BEGIN)
    span = Span(BEGIN, BEGIN + timedelta(days=DAYS.get(name, 3)))
    cron, default = (simulate(sources, policy, span, Slots(Limits())) for policy in (None, Policy()))
    assert default.gb_hours <= cron.gb_hours
    assert default.query_mb < cron.query_mb
    least = least_gb_hours(sources, span, max_steps=SUMS)
    assert least <= default.total_gb_hours <= min(cron.total_gb_hours, FROM_ORACLE * least)


@pytest.mark.nightly
def test_the_preset_for_streams_is_better_on_streams() -> None:
    """Its reads are as cheap as by the defaults, less is stored, and its shorter retention costs a hundredth more."""
    sources, span = fleet("streams", None, 0, BEGIN), Span(BEGIN, BEGIN + timedelta(days=3))
    policies = (Policy(), Policy((PolicyRule((), {"preset": "streaming"}),)))
    default, preset = (simulate(sources, policy, span, Slots(Limits())) for policy in policies)
    assert preset.query_mb <= default.query_mb
    assert preset.average_stored_bytes < default.average_stored_bytes
    assert preset.total_gb_hours < 1.015 * default.total_gb_hours


@pytest.mark.parametrize("name", [*FLEETS, "cdc", "gdpr", "unpartitioned"])
def test_no_policy_costs_less_than_the_oracle(name: str) -> None:
    """The bound holds for cron and for an eager policy, with deletes, dropped partitions and late files."""
    sources, span = fleet(name, 4, 1, BEGIN), Span(BEGIN, BEGIN + timedelta(days=1))
    eager = Policy(command={"compact.min_input_files": 2, "value.min_return": 0.0})
    costs = [simulate(sources, policy, span, Slots(Limits())).total_gb_hours for policy in (None, eager)]
    assert least_gb_hours(sources, span) <= min(costs)


commits = st.lists(
    st.tuples(st.integers(1, HOURS - 1), st.integers(1, 30), st.integers(1, 400), st.sampled_from([0, 1, 40])),
    min_size=1,
    max_size=4,
)


@given(commits=commits, every=st.sampled_from([1, 1000]))
def test_the_bound_is_below_the_best_of_all_schedules(commits: Sequence[tuple[int, int, int, int]], every: int) -> None:
    """Trying all that each commit could be merged with finds nothing cheaper.

    Deletes go with a rewrite of all data, or are merged into one file by a job of their own.
    """
    history = [(hour, files * every, mb * MEGABYTE // every, deletes) for hour, files, mb, deletes in sorted(commits)]
    source = Source(
        TableRef("lake", ("ns",), "t"),
        lambda: (Write(BEGIN + timedelta(hours=h), n, n * size, n, delete_files=d) for h, n, size, d in history),
    )
    bound = least_gb_hours([source], Span(BEGIN, BEGIN + timedelta(hours=HOURS)))
    assert 0 < bound <= best_of_all(tuple(history), ()) * (1 + 1e-9)


@given(
    hours=st.lists(st.integers(1, HOURS - 1), min_size=2, max_size=5, unique=True),
    size=st.integers(1, 50),
    files=st.sampled_from([1, 30, 200]),
)
def test_the_bound_is_the_best_schedule_of_equal_commits(hours: Sequence[int], size: int, files: int) -> None:
    """Of equal commits whose files fit into one of the target size, the search finds a schedule at just that cost."""
    each = size * MEGABYTE // files
    source = Source(
        TableRef("lake", ("ns",), "t"),
        lambda: (Write(BEGIN + timedelta(hours=h), files, files * each, files) for h in sorted(hours)),
    )
    bound = least_gb_hours([source], Span(BEGIN, BEGIN + timedelta(hours=HOURS)))
    assert bound == pytest.approx(best_of_all(tuple((hour, files, each, 0) for hour in sorted(hours)), ()))


@pytest.mark.parametrize("minutes", [6, 60])
def test_a_job_for_several_partitions_is_paid_once(minutes: int) -> None:
    """The bound is the cost of the best of the schedules with a job after every n-th of 24 partitions."""
    hours, files, size = [1 + n * minutes / 60 for n in range(24)], 6, 1024
    source = Source(
        TableRef("lake", ("ns",), "t"),
        lambda: (
            Write(BEGIN + timedelta(hours=h), files, files * size, files, (("hour", "identity"),), (h,)) for h in hours
        ),
    )
    costs = []
    for each in range(1, len(hours) + 1):
        jobs = [hours[n : n + each] for n in range(0, len(hours), each)]
        work = sum(REWRITES[Kernel.ARROW].gb_hours(files * len(job), files * len(job) * size) for job in jobs)
        costs.append(work + OPEN * sum(files * (job[-1] - at) + HOURS - job[-1] for job in jobs for at in job))
    bound = least_gb_hours([source], Span(BEGIN, BEGIN + timedelta(hours=HOURS)))
    assert bound == pytest.approx(min(costs))


@cache
def best_of_all(
    history: tuple[tuple[int, int, int, int], ...], runs: tuple[tuple[int, int], ...], deletes: int = 0
) -> float:
    """Return the least GB-hours from the first commit on.

    `runs` are counts and bytes of the equal files before it, and `deletes` so many delete files.
    """
    (hour, files, size, added), later = history[0], history[1:]
    until = later[0][0] if later else HOURS
    runs = tuple(sorted((*runs, (files, size))))
    deletes += added
    merging = spark_gb_hours(REWRITES[Kernel.SPARK].seconds(deletes, deletes * DELETE_FILE_BYTES))
    found = [cost(later, runs, deletes, until - hour)]
    if deletes > 1:
        found.append(merging + cost(later, runs, 1, until - hour))
    for count in range(1, len(runs) + 1):
        for chosen in set(combinations(runs, count)):
            rest = list(runs)
            for run in chosen:
                rest.remove(run)
            work, after = merged(chosen, tuple(rest))
            found.append(work + cost(later, after, deletes if rest else 0, until - hour))
            if rest and deletes > 1:
                found.append(work + merging + cost(later, after, 1, until - hour))
    return min(found)


def cost(
    later: tuple[tuple[int, int, int, int], ...], runs: tuple[tuple[int, int], ...], deletes: int, hours: int
) -> float:
    """Return the GB-hours of reading these files for so many hours, and the least of all that comes later."""
    reads = OPEN * hours * (deletes + sum(files for files, _ in runs))
    return reads + (best_of_all(later, runs, deletes) if later else 0.0)


@cache
def merged(
    chosen: tuple[tuple[int, int], ...], rest: tuple[tuple[int, int], ...]
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """Return the GB-hours of merging files into as few as Iceberg's planner writes, and the files after it."""
    files, size = sum(n for n, _ in chosen), sum(n * each for n, each in chosen)
    sizes = SIZES.of(size)
    written = expected_files(size, sizes.target_bytes, sizes.min_bytes, sizes.max_bytes)
    return spark_gb_hours(REWRITES[Kernel.ARROW].seconds(files, size)), (*rest, (written, size // written))
