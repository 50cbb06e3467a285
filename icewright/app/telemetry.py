"""Prometheus metrics, read from the store at each scrape, so that all replicas report the same fleet.

No series is about a single table: tables are counted by state, and by buckets of health and age.
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

from icewright.app.catalogue import AGES, CATALOGUE, POINTS, Declared, HistogramBuckets, MetricKind, StoreState
from icewright.core.errors import IcewrightError
from icewright.core.tally import DURATIONS
from icewright.ports import Clock, Store
from icewright.ports.memory import ROOM

FRESH = timedelta(seconds=10)  # scrapes within this time share one read of the store
SILENT = timedelta(minutes=2)  # a process without a heartbeat for so long is not counted
_FAMILIES: Mapping[
    MetricKind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | GaugeHistogramMetricFamily]
] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
    MetricKind.SPREAD: GaugeHistogramMetricFamily,
}


class Telemetry(Collector):
    """The metrics of one process. `lags` returns by how many seconds each of its loops is late.

    Tables of catalogs that no process maintains any more are left out, unless the catalog is `configured`.
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
        self._state: StoreState | None = None
        self._registry = CollectorRegistry()
        disable_created_metrics()  # else each counter has a second series with its creation time
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
        """Record the end of a round of one of this process's loops."""
        self._durations.labels(loop).observe(seconds)
        self._failures.labels(loop).inc(failed)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the store; the process's own remain when the store does not answer."""
        state = self._read_state()
        up = CATALOGUE["icewright_store_up"]
        yield GaugeMetricFamily(up.name, up.help, float(state is not None))
        lag = CATALOGUE["icewright_loop_lag_seconds"]
        late = GaugeMetricFamily(lag.name, lag.help, labels=lag.labels)
        for loop, seconds in self._lags().items():
            late.add_metric((loop,), seconds)
        yield late
        names = ("icewright_evaluation_memory_bytes", "icewright_evaluations_waiting_for_memory")
        for name, value in zip(names, ROOM.state(), strict=True):
            yield GaugeMetricFamily(name, CATALOGUE[name].help, float(value))
        if state is not None:
            for declared in CATALOGUE.values():
                if declared.source is not None:
                    yield _family(declared, state)

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering the collector does not scrape."""
        return iter(())

    def _read_state(self) -> StoreState | None:
        """Return the state of the store, at most 10 seconds old; None when it does not answer."""
        with self._lock:
            now = self._clock.now()
            if self._state is not None and abs(now - self._state.now) < FRESH:
                return self._state
            try:
                rows = self._store.catalogs.list()
                abandoned = {row.name for row in rows if row.is_abandoned(self._configured, now)}
                self._state = StoreState(
                    now=now,
                    measures=self._store.measures.read(now, POINTS, AGES).without(abandoned),
                    catalogs=[row for row in rows if row.name not in abandoned],
                    processes=[row for row in self._store.processes.list() if now - row.heartbeat < SILENT],
                )
            except IcewrightError:
                self._state = None
            return self._state


def _family(declared: Declared, state: StoreState) -> Metric:
    metric = _FAMILIES[declared.kind](declared.name, declared.help, labels=declared.labels)
    family: Any = metric  # add_metric takes other arguments for each kind
    for labels, value in declared.source(state) if declared.source else ():
        if isinstance(value, HistogramBuckets):
            family.add_metric(labels, value.at_most, value.sum)
        else:
            family.add_metric(labels, value)
    return metric
