"""The catalogue of Prometheus metrics: name, kind, labels, meaning and source of each."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product

from icewright import __version__
from icewright.core.policy import Operation
from icewright.core.steps import VERDICT_NAMES
from icewright.core.tally import DURATIONS, ENDLESS, Total
from icewright.ports import CatalogRow, Distribution, Measures, ProcessRow, QueueMeasure
from icewright.ports.views import STATES

POINTS = (10, 25, 50, 75, 90, 100)
AGES = (3600, 6 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600)


class MetricKind(enum.StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SPREAD = "gauge histogram"  # how numbers are distributed now, not over time


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of the store that one scrape reads."""

    now: datetime
    measures: Measures
    catalogs: Sequence[CatalogRow]
    processes: Sequence[ProcessRow]  # that are alive


@dataclass(frozen=True, slots=True)
class HistogramBuckets:
    """The cumulative buckets of a histogram, the last of which counts all, and the sum of the values."""

    at_most: tuple[tuple[str, float], ...]
    sum: float


Sample = tuple[tuple[str, ...], float | HistogramBuckets]
Source = Callable[[StoreState], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Declared:
    """A metric of the catalogue; one without a source is filled by the process itself."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    source: Source | None = None


def _total(name: str) -> Source:
    """Return a sum by catalog and operation."""

    def read(state: StoreState) -> Iterator[Sample]:
        for total, value in state.measures.totals.items():
            if total.name == name:
                yield (total.catalog, total.operation), value

    return read


def _catalogs(state: StoreState) -> list[str]:
    """Return the catalogs with tables; each has every series, so that no series appears or ends with its count."""
    return sorted({catalog for catalog, _ in state.measures.tables})


def _tables(state: StoreState) -> Iterator[Sample]:
    for key in product(_catalogs(state), STATES):
        yield key, state.measures.tables.get(key, 0)


def _verdicts(state: StoreState) -> Iterator[Sample]:
    for key in product(_catalogs(state), map(str, Operation), VERDICT_NAMES.values()):
        yield key, state.measures.verdicts.get(key, 0)


def _deferred(state: StoreState) -> Iterator[Sample]:
    for key in product(_catalogs(state), map(str, Operation)):
        yield key, state.measures.deferred.get(key, 0)


def _due_ages(state: StoreState) -> Iterator[Sample]:
    for key in product(_catalogs(state), map(str, Operation)):
        since = state.measures.due_since.get(key) or state.now
        yield key, max(0.0, (state.now - since).total_seconds())


def _spread(of: Callable[[Measures], Mapping[str, Distribution]], bounds: Sequence[int]) -> Source:
    """Return a source of the cumulative number of tables at each bound, by catalog."""

    def read(state: StoreState) -> Iterator[Sample]:
        for catalog, distribution in of(state.measures).items():
            at_most = [(str(float(b)), float(n)) for b, n in zip(bounds, distribution.at_most, strict=True)]
            yield (catalog,), HistogramBuckets((*at_most, (ENDLESS, float(distribution.count))), distribution.sum)

    return read


def _of_queue(of: Callable[[QueueMeasure, datetime], float]) -> Source:
    """Return a source that has a sample of each operation, with or without jobs."""

    def read(state: StoreState) -> Iterator[Sample]:
        for operation in map(str, Operation):
            yield (operation,), of(state.measures.queue.get(operation, QueueMeasure()), state.now)

    return read


def _age(queue: QueueMeasure, now: datetime) -> float:
    return max(0.0, (now - queue.oldest_queued).total_seconds()) if queue.oldest_queued else 0.0


def _durations(state: StoreState) -> Iterator[Sample]:
    totals = state.measures.totals
    for operation in sorted({total.operation for total in totals if total.name == "run_seconds"}):
        count, at_most = 0.0, []
        for bound in (*map(str, DURATIONS), ENDLESS):
            count += totals.get(Total("runs_by_seconds", "", operation, bound), 0.0)
            at_most.append((bound, count))
        yield (operation,), HistogramBuckets(tuple(at_most), totals[Total("run_seconds", "", operation)])


def _labelled(name: str) -> Source:
    """Return a sum by catalog, operation and result."""

    def read(state: StoreState) -> Iterator[Sample]:
        totals = state.measures.totals.items()
        return (((t.catalog, t.operation, t.label), value) for t, value in totals if t.name == name)

    return read


def _jobs(state: StoreState) -> Iterator[Sample]:
    return (((total.label,), value) for total, value in state.measures.totals.items() if total.name == "jobs")


def _catalog_errors(state: StoreState) -> Iterator[Sample]:
    for row in state.catalogs:
        yield (row.name,), state.measures.totals.get(Total("catalog_errors", row.name), 0.0)


def _detections(state: StoreState) -> Iterator[Sample]:
    for row in state.catalogs:
        if row.detected_at is not None:
            yield (row.name,), max(0.0, (state.now - row.detected_at).total_seconds())


def _idle_pools(state: StoreState) -> Iterator[Sample]:
    idle: Counter[str] = Counter()
    for row in state.processes:
        for pool, load in row.details.get("pools", {}).items():
            idle[pool] += load.get("idle_gb_hours", 0.0)
    return (((pool,), spent) for pool, spent in idle.items())


def _processes(state: StoreState) -> Iterator[Sample]:
    for kind in ("service", "worker"):
        yield (kind,), sum(row.kind == kind for row in state.processes)


_LABELS = ("catalog", "operation")
_C, _G, _H, _S = MetricKind

_DECLARED = (
    Declared("icewright_build_info", _G, ("version",), "always 1", lambda _: [((__version__,), 1)]),
    Declared("icewright_store_up", _G, (), "whether the state store answered; 0: only the process's own follow"),
    Declared("icewright_tables", _G, ("catalog", "state"), f"tables by state: {', '.join(STATES)}", _tables),
    Declared(
        "icewright_table_health",
        _S,
        ("catalog",),
        "tables by their health in points, of those whose health is known",
        _spread(lambda m: m.health, POINTS),
    ),
    Declared(
        "icewright_table_success_age_seconds",
        _S,
        ("catalog",),
        "tables by the time since an operation last did its work on them, of those where one ever did",
        _spread(lambda m: m.success, AGES),
    ),
    Declared(
        "icewright_table_overdue_seconds",
        _S,
        ("catalog",),
        "tables with something due, by the time since then in which nothing succeeded on them",
        _spread(lambda m: m.overdue, AGES),
    ),
    Declared("icewright_verdicts", _G, (*_LABELS, "verdict"), "verdicts of the last evaluations", _verdicts),
    Declared("icewright_deferred", _G, _LABELS, "due operations that the last plan left waiting", _deferred),
    Declared(
        "icewright_due_age_seconds",
        _G,
        _LABELS,
        "how long the longest of the due operations waits; 0 when none does",
        _due_ages,
    ),
    Declared(
        "icewright_queue_jobs",
        _G,
        ("operation",),
        "jobs that wait for a worker and have the operation",
        _of_queue(lambda queue, _: queue.queued),
    ),
    Declared(
        "icewright_queue_age_seconds",
        _G,
        ("operation",),
        "how long the oldest of them waits; 0 when none does",
        _of_queue(_age),
    ),
    Declared(
        "icewright_jobs_running",
        _G,
        ("operation",),
        "jobs that run and have the operation",
        _of_queue(lambda queue, _: queue.running),
    ),
    Declared("icewright_jobs_total", _C, ("result",), "jobs that ended, by how", _jobs),
    Declared("icewright_runs_total", _C, (*_LABELS, "result"), "operations that ran, by outcome", _labelled("runs")),
    Declared(
        "icewright_cost_predictions_total",
        _C,
        (*_LABELS, "result"),
        "runs by their cost: `near` (within twice or half the prediction), `far`, or `small` (under 0.3 GB-seconds)",
        _labelled("predictions"),
    ),
    Declared("icewright_run_duration_seconds", _H, ("operation",), "how long operations ran", _durations),
    Declared(
        "icewright_files_rewritten_total", _C, _LABELS, "files rewritten, of every kind", _total("files_rewritten")
    ),
    Declared("icewright_bytes_rewritten_total", _C, _LABELS, "bytes of the rewritten files", _total("bytes_rewritten")),
    Declared(
        "icewright_bins_by_spark_total",
        _C,
        _LABELS,
        "file groups that the Arrow engine left to Spark's own",
        _total("bins_by_spark"),
    ),
    Declared("icewright_files_deleted_total", _C, _LABELS, "files deleted, of every kind", _total("files_deleted")),
    Declared("icewright_bytes_deleted_total", _C, _LABELS, "bytes of the deleted files", _total("bytes_deleted")),
    Declared("icewright_snapshots_expired_total", _C, _LABELS, "snapshots expired", _total("snapshots_expired")),
    Declared("icewright_gb_hours_total", _C, _LABELS, "memory reserved over the time, in GB-hours", _total("gb_hours")),
    Declared("icewright_catalog_errors_total", _C, ("catalog",), "times that it could not be read", _catalog_errors),
    Declared(
        "icewright_catalog_failures",
        _G,
        ("catalog",),
        "times in a row that it could not be read, up to now",
        lambda state: (((row.name,), row.failures) for row in state.catalogs),
    ),
    Declared("icewright_catalog_detection_age_seconds", _G, ("catalog",), "time since it was last read", _detections),
    Declared("icewright_alerts", _G, ("rule", "severity"), "open alerts", lambda state: state.measures.alerts.items()),
    Declared(
        "icewright_alert_messages_waiting",
        _G,
        ("channel",),
        "what a channel has not taken yet: alerts, and their ends",
        lambda state: (((channel,), count) for channel, count in state.measures.undelivered.items()),
    ),
    Declared("icewright_processes", _G, ("kind",), "services and workers that are alive", _processes),
    Declared(
        "icewright_worker_slots",
        _G,
        (),
        "jobs that all of them together can run at the same time",
        lambda state: [((), sum(row.slots for row in state.processes))],
    ),
    Declared(
        "icewright_pool_idle_gb_hours",
        _G,
        ("pool",),
        "what the Spark applications of living processes reserved without a job, in GB-hours; no run is charged for it",
        _idle_pools,
    ),
    Declared("icewright_loop_lag_seconds", _G, ("loop",), "how late a loop of this process is"),
    Declared(
        "icewright_evaluation_memory_bytes", _G, (), "metadata and manifests that evaluations of this process hold now"
    ),
    Declared("icewright_evaluations_waiting_for_memory", _G, (), "evaluations of this process that wait for memory"),
    Declared("icewright_loop_duration_seconds", _H, ("loop",), "how long the rounds of a loop of this process take"),
    Declared("icewright_loop_failures_total", _C, ("loop",), "rounds of a loop of this process that failed"),
)
CATALOGUE: Mapping[str, Declared] = {declared.name: declared for declared in _DECLARED}
