"""Prometheus metrics, filled at scrape time from the store, so that every replica says the same of the fleet.

No series is one table's: tables are counted by state and by classes of their numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import timedelta
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from icewright.app.catalogue import AGES, CATALOGUE, POINTS, Declared, HistogramBuckets, MetricKind, Seen
from icewright.core.errors import IcewrightError
from icewright.core.tally import DURATIONS
from icewright.ports import Clock, Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH = timedelta(seconds=10)  # scrapes so near one another share one look at the store
SILENT = timedelta(minutes=2)  # a process that has said nothing for so long is not counted
_FAMILIES: Mapping[
    MetricKind,
    type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | GaugeHistogramMetricFamily],
] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
    MetricKind.SPREAD: GaugeHistogramMetricFamily,
}


class Telemetry(Collector):
    """The metrics of one process. `lags` says how many seconds each of its loops is late.

    Tables of catalogs that nobody looks after any more are left out, those of the `configured` ones never.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lags: Callable[[], Mapping[str, float]] = dict,
        configured: Container[str] = (),
    ) -> None:
        self._store, self._clock, self._lags, self._configured = store, clock, lags, configured
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._registry = CollectorRegistry()
        disable_created_metrics()  # a series beside each counter that says when it began, which nobody reads
        duration, failures = CATALOGUE["icewright_loop_duration_seconds"], CATALOGUE["icewright_loop_failures_total"]
        self._durations = Histogram(
            duration.name, duration.help, duration.labels, buckets=DURATIONS, registry=self._registry
        )
        self._failures = Counter(failures.name, failures.help, failures.labels, registry=self._registry)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def loop_ran(self, loop: str, seconds: float, *, failed: bool = False) -> None:
        """A round of a loop of this process came to its end."""
        self._durations.labels(loop).observe(seconds)
        self._failures.labels(loop).inc(failed)

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for at each scrape. A store that does not answer hides nothing of the process."""
        seen = self._look()
        up = CATALOGUE["icewright_store_up"]
        yield GaugeMetricFamily(up.name, up.help, float(seen is not None))
        lag = CATALOGUE["icewright_loop_lag_seconds"]
        late = GaugeMetricFamily(lag.name, lag.help, labels=lag.labels)
        for loop, seconds in self._lags().items():
            late.add_metric((loop,), seconds)
        yield late
        if seen is not None:
            for declared in CATALOGUE.values():
                if declared.source is not None:
                    yield _family(declared, seen)

    def describe(self) -> Iterator[Metric]:
        """Nothing: so that the registry does not scrape when it is made."""
        return iter(())

    def _look(self) -> Seen | None:
        """Return the store as it is, or was a moment ago; None when it does not answer."""
        with self._lock:
            now = self._clock.now()
            if self._seen is not None and abs(now - self._seen.now) < FRESH:
                return self._seen
            try:
                rows = self._store.catalogs.list()
                left = {row.name for row in rows if row.left(self._configured, now)}
                self._seen = Seen(
                    now=now,
                    measures=self._store.measures.read(now, POINTS, AGES).without(left),
                    catalogs=[row for row in rows if row.name not in left],
                    processes=[row for row in self._store.processes.list() if now - row.heartbeat < SILENT],
                )
            except IcewrightError:
                self._seen = None
            return self._seen


def _family(declared: Declared, seen: Seen) -> Metric:
    made = _FAMILIES[declared.kind](declared.name, declared.help, labels=declared.labels)
    family: Any = made  # each kind takes what its numbers are made of
    for labels, value in declared.source(seen) if declared.source else ():
        if isinstance(value, HistogramBuckets):
            family.add_metric(labels, value.at_most, value.sum)
        else:
            family.add_metric(labels, value)
    return made
