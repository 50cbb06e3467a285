"""Queries per day: an average in which the last days count most."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.heat import ReportedReads, queries_per_day

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
TODAY = NOON.date()


def steady(rate: int, days: int) -> dict[date, int]:
    """So many queries on each of the last days, half of them today until noon."""
    return {TODAY - timedelta(days=n): rate if n else rate // 2 for n in range(days)}


@pytest.mark.parametrize(("days", "share"), [(40, 1.0), (4, 1 - 2 ** (-3.5 / 3)), (1, 1 - 2 ** (-0.5 / 3))])
def test_a_steady_rate_is_found(days: int, share: float) -> None:
    """The average nears the rate, half of what is missing in each three days."""
    assert queries_per_day(steady(1000, days), NOON) == pytest.approx(1000 * share, rel=1e-3)


@pytest.mark.parametrize("days", [1, 4, 40])
@pytest.mark.parametrize("rate", [0, 3, 1000])
def test_a_prior_fades_as_reports_come(rate: int, days: int) -> None:
    """Of a table whose reads are as the prior says, nothing else is ever expected; of others soon what they are."""
    reads = ReportedReads(queries_per_day(steady(2 * rate, days), NOON), TODAY - timedelta(days=days - 1))
    share = 2 ** ((0.5 - days) / 3)
    assert reads.expected(6, NOON) == pytest.approx(6 * share + 2 * rate * (1 - share), abs=0.01)


def test_it_halves_in_three_days_without_queries() -> None:
    """And again in three more."""
    known = steady(100, 10)
    first, second, third = (queries_per_day(known, NOON + timedelta(days=3 * n)) for n in (1, 2, 3))
    assert [second / first, third / second] == pytest.approx([0.5, 0.5], rel=1e-6)


def test_midnight_changes_nothing() -> None:
    """A day that ends weighs as much a moment later."""
    known = steady(100, 10)
    midnight = datetime(2026, 11, 22, tzinfo=UTC)
    before, after = (queries_per_day(known, midnight + timedelta(seconds=s)) for s in (-1, 1))
    assert before == pytest.approx(after, rel=1e-4)


@given(
    st.dictionaries(st.dates(date(2026, 9, 1), date(2026, 12, 31)), st.integers(0, 2**31)),
    st.datetimes(datetime(2026, 11, 1), datetime(2026, 12, 1)),  # noqa: DTZ001 - made aware below
)
def test_it_is_never_negative_nor_beyond_the_sum(known: dict[date, int], naive: datetime) -> None:
    """Whatever the days say, days to come among them."""
    heat = queries_per_day(known, naive.replace(tzinfo=UTC))
    assert 0 <= heat <= sum(known.values())
