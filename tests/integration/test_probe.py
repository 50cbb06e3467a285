"""Probes on Spark: timed on the table before and after a compaction, cancelled when they take too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import Cancelled, Refused
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.ports import Probe
from tests.integration.bench import Bench
from tests.integration.compacting import KNOBS
from tests.integration.tables import create, insert

pytestmark = pytest.mark.spark
QUERY = "SELECT region, count(*), max(id) FROM {table} WHERE id > 0 GROUP BY region"


@pytest.fixture
def small(bench: Bench, new_name: Callable[[str], str]) -> str:
    """A table of four small files."""
    name = new_name("probed")
    create(bench, name, "id bigint, region string")
    for number in range(4):
        insert(bench, bench.lake.quoted(name), f"({number}, 'eu'), ({number + 10}, 'it''s')")
    return name


def test_a_compaction_is_probed(bench: Bench, small: str) -> None:
    """Its run has the times of planning and of the query, before and after it; the rows stay."""
    before = bench.read(small)
    done = bench.run(small, Operation.COMPACT, {**KNOBS, "compact.hot_minutes": 0, "impact.probe": QUERY})
    assert done.state is OperationState.COMMITTED, done
    assert not [note for note in done.notes if "probe" in note or "planning" in note]
    (job, *_) = bench.runtime.store.jobs.list(bench.ref(small))
    (run,) = bench.runtime.store.runs.list(job.job_id)
    for facts in (run["before"], run["after"]):
        assert 0 < facts["planning_ms"] < 60_000
        assert 0 < facts["probe_ms"] < 60_000
    assert bench.read(small) == before


def test_a_probe_of_what_is_not_there(bench: Bench, small: str) -> None:
    """What Spark says of it is a note of the run, which is as good as it would be without."""
    query = "SELECT nothing FROM {table}"
    done = bench.run(small, Operation.COMPACT, {**KNOBS, "compact.hot_minutes": 0, "impact.probe": query})
    assert done.state is OperationState.COMMITTED
    (said,) = [note for note in done.notes if note.startswith("the probe failed: ")]
    assert "nothing" in said
    assert "\n" not in said


def test_what_is_no_probe(bench: Bench, small: str) -> None:
    """Spark is not even asked."""
    with pytest.raises(Refused, match="is not one SELECT"):
        bench.runtime.engine.probe(replace(asked(bench, small), query="DROP TABLE {table}"))
    assert bench.read(small)["main"][0] == 8


def test_a_probe_that_takes_too_long(bench: Bench, small: str) -> None:
    """It is cancelled in Spark, which then serves the next."""
    slow = " JOIN ".join(f"{{table}} t{number}" for number in range(10))
    probe = replace(asked(bench, small), query=f"SELECT count(*) FROM {slow}", limit=timedelta(seconds=1))  # noqa: S608
    with pytest.raises(Cancelled, match=r"impact\.probe_timeout_seconds \(1\)"):
        bench.runtime.engine.probe(probe)
    assert bench.runtime.engine.probe(asked(bench, small))[0] > 0


def asked(bench: Bench, name: str) -> Probe:
    """A probe of the table as it is."""
    table = bench.metadata(name)
    assert table.current_snapshot_id is not None
    return Probe("job", table, QUERY, (table.current_snapshot_id,), timedelta(minutes=5))
