"""The counters that each run increments for good, so that pruning the history decreases no metric."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from icewright.core.cost import SERVICE_MEMORY_GB, gb_hours
from icewright.core.runs import JobState, Outcome

#: Upper bounds of the classes that durations are counted in.
DURATIONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
ENDLESS = "+Inf"
#: Times, up or down, that a predicted cost may be off and is still near what the run took.
NEAR = 2.0
#: GB-hours below which what a run takes is chance, and nobody's concern: a second of the service's memory.
SMALL = gb_hours(1, SERVICE_MEMORY_GB)
#: Which sum a metric of a run adds to.
SUMS: Mapping[str, str] = {
    "files_merged": "files_rewritten",
    "files_rewritten": "files_rewritten",
    "manifests_rewritten": "files_rewritten",
    "bytes_rewritten": "bytes_rewritten",
    "bins_by_spark": "bins_by_spark",
    "files_deleted": "files_deleted",
    "orphans_removed": "files_deleted",
    "bytes_deleted": "bytes_deleted",
    "snapshots_expired": "snapshots_expired",
    "gb_hours": "gb_hours",
}


class Total(NamedTuple):
    """The key of a counter: its name, catalog, operation, and one more label such as the result."""

    name: str
    catalog: str = ""
    operation: str = ""
    label: str = ""


def of_run(catalog: str, outcome: Outcome, seconds: float) -> Mapping[Total, float]:
    """Return the counters that one run increments."""
    operation = str(outcome.operation)
    return {
        Total("runs", catalog, operation, str(outcome.state)): 1.0,
        Total("run_seconds", "", operation): seconds,
        Total("runs_by_seconds", "", operation, duration_class(seconds)): 1.0,
        **_of_prediction(catalog, outcome),
        **of_work(catalog, outcome),
    }


def _of_prediction(catalog: str, outcome: Outcome) -> Mapping[Total, float]:
    """Return the counter of a run whose predicted cost can be compared with what it took."""
    accuracy = closeness(outcome.metrics)
    return {Total("predictions", catalog, str(outcome.operation), accuracy): 1.0} if accuracy else {}


def closeness(metrics: Mapping[str, float]) -> str | None:
    """Return how near a run's cost was to the predicted one: `near`, `far` or `small`; None when either is unknown."""
    took, expected = metrics.get("gb_hours"), metrics.get("gb_hours_predicted")
    if not took or not expected:
        return None
    if max(took, expected) < SMALL:
        return "small"
    return "near" if expected / NEAR <= took <= expected * NEAR else "far"


def of_work(catalog: str, outcome: Outcome) -> Mapping[Total, float]:
    """Return the counters of finished work, whoever finished it."""
    added: dict[Total, float] = {}
    for metric, name in SUMS.items():
        if value := outcome.metrics.get(metric):
            total = Total(name, catalog, str(outcome.operation))
            added[total] = added.get(total, 0.0) + value
    return added


def of_job(state: JobState) -> Mapping[Total, float]:
    """Return the counters that one ended job increments."""
    return {Total("jobs", label=str(state)): 1.0}


def of_catalog_failure(catalog: str) -> Mapping[Total, float]:
    """Return the counters that a failed read of a catalog increments."""
    return {Total("catalog_errors", catalog): 1.0}


def duration_class(seconds: float) -> str:
    """Return the class of a duration: its upper bound."""
    index = bisect_left(DURATIONS, seconds)
    return ENDLESS if index == len(DURATIONS) else str(DURATIONS[index])
