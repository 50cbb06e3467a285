"""What a rewrite did is measured: before and after it, at no risk to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.errors import EngineUnavailable, IcewrightError, MetadataUnreadable, Refused
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import JobState
from icewright.flow.execute import JobResult
from icewright.ports import Probe
from icewright.testing import manifests
from tests.flow.bench import COMPACT, EXPIRE, MANIFESTS, Bench

QUERY = "SELECT count(*) FROM {table}"


def measured(bench: Bench, *operations: Operation) -> tuple[JobResult, list[Mapping[str, Any]]]:
    """A job on a rotten table, and its runs as the store has them."""
    ref = bench.table()
    bench.rot(ref)
    result = bench.run(*operations, ref=ref)
    assert result.job_id is not None
    return result, list(bench.store.runs.list(result.job_id))


def times(run: Mapping[str, Any], name: str = "planning_ms") -> tuple[Any, Any]:
    """Before and after."""
    return run["before"].get(name, "none"), run["after"].get(name, "none")


def test_planning_is_measured_around_each_rewrite(bench: Bench) -> None:
    """On the snapshots before and after it; what one rewrite leaves is what the next one finds, measured once."""
    bench.files.planning = {1: 0.5, 2: 0.25, 3: 0.125}
    result, runs = measured(bench, COMPACT, MANIFESTS)
    assert result.state is JobState.SUCCEEDED
    assert [times(run) for run in runs] == [(500, 250), (250, 125)]
    assert len(set(bench.files.planned)) == len(bench.files.planned) == 3


def test_what_is_no_rewrite_is_not_measured(bench: Bench) -> None:
    """Expiry lets planning as it is; an operation that was skipped too."""
    ref = bench.table()
    for _ in range(2):
        bench.run(EXPIRE, MANIFESTS, ref=ref)
    assert bench.files.planned == []


def test_nothing_is_measured_where_the_knob_says_so(bench: Bench) -> None:
    """Then the facts say nothing of it."""
    bench.settings["impact.planning"] = False
    _, runs = measured(bench, COMPACT)
    assert times(runs[0]) == ("none", "none")
    assert bench.files.planned == []


def test_large_manifests(bench: Bench) -> None:
    """Reading them only to take the time would be a cost of its own: a note says that it was not done."""
    ref = bench.table()
    bench.rot(ref)
    bench.files.manifests_of[ref] = (manifests(20, mb=4),)
    result = bench.run(COMPACT, ref=ref)
    (run,) = bench.store.runs.list(str(result.job_id))
    assert times(run) == (None, None)
    assert "planning was not measured: 80 MB of manifests (impact.max_planning_mb 64)" in run["notes"]
    assert sum(m.bytes for m in bench.files.manifests_of[ref]) == 80 * MEGABYTE


@pytest.mark.parametrize("error", [MetadataUnreadable("snap-9.avro is missing"), ValueError("a fault of ours")])
def test_what_cannot_be_measured_is_a_note(bench: Bench, error: Exception) -> None:
    """The rewrite is done whatever measuring it meets."""
    bench.files.planning = {2: error}
    result, runs = measured(bench, COMPACT)
    assert result.state is JobState.SUCCEEDED
    assert times(runs[0]) == (None, None)
    assert f"planning could not be measured: {error}" in runs[0]["notes"]
    assert f"planning could not be measured: {error}" in result.outcomes[0].notes


def test_a_probe_runs_on_the_pool_alone(bench: Bench) -> None:
    """Around what Spark did, on both snapshots; what the service did itself starts no Spark."""
    bench.settings |= {"impact.probe": QUERY, "impact.probe_timeout_seconds": 7}
    _, runs = measured(bench, COMPACT, MANIFESTS)
    (probe,) = bench.engine.probes
    before, after = runs[0]["before"]["snapshot_id"], runs[0]["after"]["snapshot_id"]
    assert (probe.query, probe.snapshot_ids, probe.limit) == (QUERY, (before, after), timedelta(seconds=7))
    assert [times(run, "probe_ms") for run in runs] == [(1000, 500), ("none", "none")]


@pytest.mark.parametrize("error", [Refused("is not one SELECT"), EngineUnavailable("Spark died"), KeyError("ours")])
def test_a_probe_that_fails_is_a_note(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A probe that fails is a note of the run, and never fails the job."""

    def failing(_: Probe) -> Sequence[float]:
        raise error

    monkeypatch.setattr(bench.engine, "probe", failing)
    bench.settings["impact.probe"] = QUERY
    result, runs = measured(bench, COMPACT)
    assert result.state is JobState.SUCCEEDED
    assert times(runs[0], "probe_ms") == (None, None)
    assert f"the probe failed: {error}" in runs[0]["notes"]


def test_a_failed_rewrite_is_not_measured(bench: Bench) -> None:
    """No query is measured for a rewrite that failed."""

    def fail(_: object) -> None:
        raise IcewrightError("no")

    bench.before = fail
    _, runs = measured(bench, COMPACT)
    assert times(runs[0]) == ("none", "none")
