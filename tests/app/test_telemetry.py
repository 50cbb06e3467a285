"""The exposition: every metric of the catalogue, the same from every replica, and nothing of a single table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from icewright.adapters.store.measures import SqlMeasures
from icewright.adapters.store.schema import TABLES, VERDICTS
from icewright.adapters.store.sql import SqlStore
from icewright.app.catalogue import CATALOGUE, MetricKind
from icewright.app.telemetry import FRESH, Telemetry
from icewright.core.alerts import AlertRule, Begin, Condition, Severity
from icewright.core.errors import StorageUnavailable
from icewright.core.policy import Operation
from icewright.core.runs import JobState, committed
from icewright.core.table import TableRef
from icewright.ports import Measures, Pointer, ProcessRow, RunRow, Trigger
from icewright.testing import NOW, REF, FixedClock

COMPACT = Operation.COMPACT
ODD = 'po"nd\\\n☃'
METRICS = {"bins_by_spark": 1, "files_merged": 10, "bytes_rewritten": 100, "gb_hours": 0.5, "gb_hours_predicted": 0.4}
MORE = {"files_deleted": 4, "bytes_deleted": 40, "snapshots_expired": 3}


@pytest.fixture
def store(copied_store: Callable[[Path], sa.Engine], tmp_path: Path) -> Iterator[SqlStore]:
    """A store with something for each metric."""
    made = SqlStore(copied_store(tmp_path / "state.db"))
    made.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    made.tables.record_listing(ODD, [Pointer(TableRef(ODD, ("a",), "t"), "m1")], NOW)
    job_id = made.jobs.claim(REF, "u1", (COMPACT,), Trigger("cycle", "me", "host:1:2"), NOW)
    assert job_id is not None
    finished = NOW + timedelta(seconds=2)
    for outcome in (committed(COMPACT, "", METRICS), committed(Operation.EXPIRE_SNAPSHOTS, "", MORE)):
        made.runs.record(RunRow(job_id, outcome, NOW, finished, "m2", "p1", {}, {}), REF)
    made.jobs.finish(job_id, JobState.SUCCEEDED, "", finished)
    with made.engine.begin() as connection:
        connection.execute(sa.update(TABLES).values(health=60, due_since=NOW, evaluated_at=NOW))
        connection.execute(sa.insert(VERDICTS).values(table_id=1, operation=COMPACT, verdict="due", reason="", at=NOW))
    made.catalogs.record_read("lake", NOW, NOW, NOW)
    made.catalogs.record_failure(ODD, "away", NOW)
    made.alerts.record_changes(
        [Begin(Condition(AlertRule.STALE, "x", "y"), Severity.WARNING, raised=True)], ["slack"], NOW
    )
    made.processes.record_heartbeat(
        ProcessRow("a:1:1", "service", NOW, NOW, 4, {"pools": {"spark": {"idle_gb_hours": 0.25}}})
    )
    made.processes.record_heartbeat(ProcessRow("b:1:1", "worker", NOW, NOW - timedelta(hours=1), 4, {}))
    yield made
    made.engine.dispose()


@dataclass
class Scraped:
    """An exposition as Prometheus reads it."""

    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, str], float] = field(default_factory=dict)  # by name and labels as JSON

    def __call__(self, name: str, **labels: str) -> float:
        """One sample."""
        return self.values[name, json.dumps(labels, sort_keys=True)]


def scraped(telemetry: Telemetry) -> Scraped:
    """Scrape it."""
    found = Scraped()
    for family in text_string_to_metric_families(telemetry.exposition().decode()):
        found.types[family.name] = family.type
        found.helps[family.name] = family.documentation
        for sample in family.samples:
            key = (sample.name, json.dumps(sample.labels, sort_keys=True))
            assert key not in found.values, "a series stands once"
            found.values[key] = sample.value
    return found


def telemetry(store: Any, clock: FixedClock | None = None, **lags: float) -> Telemetry:
    """The metrics of a process."""
    return Telemetry(store, clock or FixedClock(NOW + timedelta(hours=2)), lambda: lags)


def test_catalogs_that_nobody_looks_after_have_no_tables(store: SqlStore) -> None:
    """What is wrong in them nobody will mend: else their gauges would stand, and alert, for ever."""
    for name in ("attic", "lake"):
        store.tables.record_listing(name, [Pointer(TableRef(name, ("sales",), "orders"), "m1")], NOW)
        store.catalogs.record_read(name, NOW, NOW, NOW + timedelta(minutes=1))

    def seen(clock: FixedClock, *configured: str) -> set[str]:
        values = scraped(Telemetry(store, clock, configured=configured)).values
        names = ("icewright_tables", "icewright_catalog_detection_age_seconds")
        return {json.loads(labels)["catalog"] for name, labels in values if name in names}

    assert {"attic", "lake"} <= seen(FixedClock(NOW + timedelta(hours=2)), "lake")
    assert seen(FixedClock(NOW + timedelta(days=2)), "lake") == {"lake"}


def test_every_metric_is_there(store: SqlStore) -> None:
    """What the catalogue declares is scraped, with its type, labels and help; and nothing else of ours is."""
    made = telemetry(store, FixedClock(NOW), detect=1.5)  # while a process with a pool is alive
    made.loop_ran("detect", 0.2)
    found = scraped(made)
    types = {
        MetricKind.COUNTER: "counter",
        MetricKind.GAUGE: "gauge",
        MetricKind.HISTOGRAM: "histogram",
        MetricKind.SPREAD: "histogram",
    }
    declared = {m.name.removesuffix("_total"): m for m in CATALOGUE.values()}
    ours = {name for name in found.types if name.startswith("icewright_")}
    assert {name for name in ours if not name.endswith(("_gcount", "_gsum"))} == declared.keys()
    for name, metric in declared.items():
        assert found.types[name] == types[metric.kind]
        assert found.helps[name] == metric.help
        labels = [json.loads(key[1]).keys() for key in found.values if key[0].startswith(name)]
        assert any(set(metric.labels) == set(some) - {"le"} for some in labels)
    assert found("icewright_pool_idle_gb_hours", pool="spark") == 0.25


def test_what_they_say(store: SqlStore) -> None:
    """Numbers of now and sums over all time, by catalog and operation."""
    found = scraped(telemetry(store))
    work = {"catalog": "lake", "operation": "compact"}
    assert found("icewright_tables", catalog="lake", state="changed") == 1
    assert found("icewright_tables", catalog=ODD, state="paused") == 0
    assert found("icewright_table_health_bucket", catalog="lake", le="50.0") == 0
    assert found("icewright_table_health_bucket", catalog="lake", le="75.0") == 1
    assert found("icewright_table_health_gsum", catalog="lake") == 60
    assert found("icewright_table_success_age_seconds_bucket", catalog="lake", le="3600.0") == 0
    assert found("icewright_table_success_age_seconds_bucket", catalog="lake", le="21600.0") == 1
    assert found("icewright_runs_total", **work, result="committed") == 1
    assert found("icewright_jobs_total", result="succeeded") == 1
    assert found("icewright_files_rewritten_total", **work) == 10
    assert found("icewright_bytes_rewritten_total", **work) == 100
    assert found("icewright_gb_hours_total", **work) == 0.5
    assert found("icewright_files_deleted_total", catalog="lake", operation="expire_snapshots") == 4
    assert found("icewright_run_duration_seconds_bucket", operation="compact", le="1.0") == 0
    assert found("icewright_run_duration_seconds_bucket", operation="compact", le="3.0") == 1
    assert found("icewright_run_duration_seconds_count", operation="compact") == 1
    assert found("icewright_run_duration_seconds_sum", operation="compact") == 2
    assert found("icewright_catalog_detection_age_seconds", catalog="lake") == 7200
    assert found("icewright_catalog_failures", catalog=ODD) == 1
    assert found("icewright_catalog_errors_total", catalog=ODD) == 1
    assert found("icewright_alerts", rule="stale", severity="warning") == 1
    assert found("icewright_alert_messages_waiting", channel="slack") == 1
    assert found("icewright_queue_age_seconds", operation="compact") == 0


def test_processes_that_are_silent(store: SqlStore) -> None:
    """Who has said nothing for long is not counted, nor are its slots."""
    found = scraped(telemetry(store, FixedClock(NOW)))
    assert [found("icewright_processes", kind=kind) for kind in ("service", "worker")] == [1, 0]
    assert found("icewright_worker_slots") == 4


def test_no_series_is_a_tables(store: SqlStore) -> None:
    """Ten times the tables are not one series more."""
    before = scraped(telemetry(store)).values.keys()
    more = [Pointer(TableRef("lake", ("s",), f"t{n}"), "m") for n in range(10)]
    store.tables.record_listing("lake", [Pointer(REF, "m1"), *more], NOW)
    after = scraped(telemetry(store)).values.keys()
    assert before == after


def test_loops_of_the_process(store: SqlStore) -> None:
    """How late they are, how long their rounds take, and which failed."""
    made = telemetry(store, detect=1.5, plan=0.0)
    for seconds, failed in ((0.2, False), (2.0, True)):
        made.loop_ran("detect", seconds, failed=failed)
    found = scraped(made)
    assert found("icewright_loop_lag_seconds", loop="detect") == 1.5
    assert found("icewright_loop_duration_seconds_count", loop="detect") == 2
    assert found("icewright_loop_failures_total", loop="detect") == 1


class _Counting(SqlMeasures):
    """Measures that count how often they are read, of a store that may be away."""

    looks, away = 0, False

    def read(self, now: datetime, points: Sequence[int], seconds: Sequence[int]) -> Measures:
        """Count, then measure."""
        self.looks += 1
        if self.away:
            raise StorageUnavailable("away")
        return super().read(now, points, seconds)


def test_scrapes_share_a_look(store: SqlStore) -> None:
    """Scrapes within some seconds ask the store once, however many there are."""
    store.measures = counting = _Counting(store.db)
    clock = FixedClock()
    made = telemetry(store, clock)
    for _ in range(3):
        made.exposition()
    assert counting.looks == 1
    clock.time += FRESH
    made.exposition()
    assert counting.looks == 2


def test_a_store_that_is_away(store: SqlStore) -> None:
    """The process's own metrics are there, one says that the store is away; it is asked again at the next scrape."""
    store.measures = counting = _Counting(store.db)
    clock = FixedClock()
    made = telemetry(store, clock, detect=3.0)
    counting.away = True
    found = scraped(made)
    assert (found("icewright_store_up"), found("icewright_loop_lag_seconds", loop="detect")) == (0, 3)
    assert "icewright_tables" not in found.types
    counting.away = False
    assert scraped(made)("icewright_store_up") == 1


def test_two_replicas_say_the_same(store: SqlStore) -> None:
    """Whichever is scraped, what comes from the store is equal."""
    clock = FixedClock()

    def of_store() -> Mapping[tuple[str, str], float]:
        values = scraped(telemetry(store, clock)).values
        return {key: value for key, value in values.items() if key[0].startswith("icewright_")}

    assert of_store() == of_store()


def test_help_is_one_plain_line() -> None:
    """Each metric says what it means, and its name says its unit and kind."""
    for name, metric in CATALOGUE.items():
        assert metric.help
        assert "\n" not in metric.help
        assert name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
