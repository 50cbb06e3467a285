"""Stretches of time and the search of tables: what the lists, charts and the trend of the API show of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from icewright.app.web.api import PREFIX as API
from icewright.app.web.api import models
from icewright.app.web.api.overview import steps_since
from icewright.app.web.pages import charts
from icewright.app.web.pages.urls import TimeRange
from icewright.ports.views import TrendStep
from tests.web.conftest import Served
from tests.web.test_api import add
from tests.web.test_pages import BROWSER, PAGE, follow

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "since", "step", "steps"),
    [
        (1, datetime(2026, 3, 4, 4, 7, tzinfo=UTC), TrendStep.MINUTE, 60),
        (2, datetime(2026, 3, 4, 3, 7, tzinfo=UTC), TrendStep.MINUTE, 120),
        (6, datetime(2026, 3, 4, 0, 0, tzinfo=UTC), TrendStep.HOUR, 6),
        (48, datetime(2026, 3, 2, 6, 0, tzinfo=UTC), TrendStep.HOUR, 48),
        (7 * 24, datetime(2026, 2, 26, tzinfo=UTC), TrendStep.DAY, 7),
        (90 * 24, datetime(2025, 12, 5, tzinfo=UTC), TrendStep.DAY, 90),
    ],
)
def test_a_trend_has_whole_steps(hours: int, since: datetime, step: TrendStep, steps: int) -> None:
    """The last step is the one of now, and there are as many as the stretch has."""
    assert steps_since(NOW, hours) == (since, step)
    assert since + steps * step.length > NOW >= since + (steps - 1) * step.length


def test_the_chart_of_costs_counts_what_is_too_small_to_judge() -> None:
    """Its title adds up to the points that it shows."""
    pairs = ((1.0, 1.5), (1.0, 9.0), (0.00001, 0.00005))
    runs = [
        models.Run.model_construct(operation="compact", metrics={"gb_hours_predicted": predicted}, gb_hours=real)
        for predicted, real in pairs
    ]
    chart = charts.costs(runs)
    assert chart is not None
    assert (chart.title.partition(": ")[2], len(chart.rows)) == ("1 of 2 within 2x, 1 too small to judge", 3)


def test_health_and_files_are_drawn_from_the_second_day_on() -> None:
    """What was known on a day lasts until today."""
    day = models.HealthDay(day=NOW.date(), tables=3, health=66.666, files=12, bytes=9)
    trend = models.Trend(since=NOW, step=TrendStep.DAY, points=[], health=[day])
    assert charts.health_and_files(trend, NOW, "7 days") == []
    health, files = charts.health_and_files(trend, NOW + timedelta(days=2), "7 days")
    assert (health.title, files.title) == (
        "Health by day, the last 7 days, the mean of 3 tables",
        "Data files by day, the last 7 days",
    )
    assert health.rows == ((NOW.date(), 66.7), (NOW.date() + timedelta(days=2), 66.7))
    assert [number for _, number in files.rows] == [12, 12]


def test_ranges_in_words() -> None:
    """Each stretch begins as long ago as its name says."""
    assert [choice.words for choice in TimeRange] == [
        "1 hour",
        "6 hours",
        "24 hours",
        "7 days",
        "14 days",
        "30 days",
        "90 days",
    ]
    assert TimeRange.WEEK.since(NOW) == NOW.replace(second=0) - timedelta(days=7)


@pytest.mark.external
def test_lists_of_a_time_and_a_table(served: Served) -> None:
    """Jobs and events are found by a part of the table's name and by time; other values are refused."""
    served.evaluate()
    served.job()
    served.bench.store.activity.record("paused", served.bench.clock.now(), served.ref)
    client = served.client()
    for path in ("/jobs", "/activity"):
        assert "orders" in client.get(f"{path}?search=ORD&range=1h", headers=BROWSER).text
        assert "Reset" in client.get(f"{path}?search=nowhere", headers=BROWSER).text
        assert 'href="/tables/lake/sales/orders"' not in client.get(f"{path}?search=nowhere", headers=BROWSER).text
        assert client.get(f"{path}?range=2h", headers=BROWSER).status_code == 422
    served.bench.clock.advance(days=8)
    assert "No job matches" in client.get("/jobs?range=7d", headers=BROWSER).text
    assert "orders" in client.get("/jobs?range=14d", headers=BROWSER).text
    assert client.get(f"{API}/jobs", params={"since": served.bench.clock.now().isoformat()}).json()["items"] == []
    for live in ("/live/jobs?search=ord", "/live/settings"):
        assert next(follow(client, live)) == "part"


@pytest.mark.external
def test_charts_of_every_range(served: Served) -> None:
    """The overview and a table's runs are shown for each stretch, and the trend of the API has its steps."""
    served.evaluate()
    client = served.client()
    for choice in TimeRange:
        assert f"No run in the last {choice.words}" in client.get(f"/?range={choice}", headers=BROWSER).text
        assert (
            f"No run in the last {choice.words}" in client.get(f"{PAGE}?show=runs&range={choice}", headers=BROWSER).text
        )
    assert client.get("/?range=1y", headers=BROWSER).status_code == 422
    assert "by 0 runs of lake<" in client.get("/?catalog=lake", headers=BROWSER).text
    assert client.get("/?catalog=pond", headers=BROWSER).status_code == 422
    found = client.get(f"{API}/trend", params={"hours": 24, "table": "lake.sales.orders"}).json()
    assert (found["step"], found["points"], [day["tables"] for day in found["health"]]) == ("hour", [], [1])
    assert client.get(f"{API}/trend", params={"table": "lake.sales.nowhere"}).status_code == 404


@pytest.mark.external
def test_the_search_of_every_page_leads_to_the_table(served: Served) -> None:
    """One match is opened, and the table that was named in full; several are listed."""
    served.evaluate()
    client = served.client()
    assert 'name="jump"' in client.get("/queue", headers=BROWSER).text
    found = client.get("/tables?search=orders&jump=yes", headers=BROWSER, follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, PAGE)
    add(served, "orders_old")
    assert client.get("/tables?search=orders&jump=yes", headers=BROWSER, follow_redirects=False).status_code == 200
    whole = client.get("/tables?search=lake.sales.orders&jump=yes", headers=BROWSER, follow_redirects=False)
    assert (whole.status_code, whole.headers["location"]) == (303, PAGE)
    assert client.get("/tables?search=orders_old", headers=BROWSER, follow_redirects=False).status_code == 200


@pytest.mark.external
def test_a_headline_is_true(served: Served) -> None:
    """An evaluation that is overdue comes with the next pass; an unreadable table says when it is tried again."""
    served.evaluate()
    client = served.client()
    store, now = served.bench.store, served.bench.clock.now()
    fault = "the manifest list is not there: s3://w/snap.avro"
    for again, words in ((now + timedelta(hours=3), ">in 3 h<"), (now, "with the next pass")):
        store.tables.record_unreadable(served.ref, fault, now)
        store.tables.schedule_evaluation([served.ref], again)
        page = client.get(PAGE, headers=BROWSER).text
        assert re.search(r"s3://w/snap\.avro\. The next try is\s[^.]*" + words, page)
