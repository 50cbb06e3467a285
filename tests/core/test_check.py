"""Checks on a schedule: when one is due, and from where it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.integrity import CheckLevel
from icewright.core.operations import check
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import CheckFiles, Due, NotDue, Verdict, on_pool, why
from icewright.core.table import TableMetadata
from icewright.testing import NOW, facts, knobs, metadata, partition

OF = metadata((96, 48, 24, 2))  # the sequence numbers are 1 to 4
LEARNED = {"level": 2.0, "sequence_number": 3.0, "full_hours": 0.0, "faults_found": 0.0}


def last(hours: float = 25, **learned: float) -> LastRun:
    """A check so many hours ago, to the footers of a table with three snapshots, which found no fault."""
    at = NOW - timedelta(hours=hours)
    return LastRun(Operation.CHECK, at, OperationState.COMMITTED, worked=at, recent=(LEARNED | learned,))


def verdict(
    earlier: LastRun | None, settings: Mapping[str, Any] | None = None, of: TableMetadata = OF, *, mb: int = 1
) -> Verdict:
    """The verdict on a table of ten files."""
    named = knobs({f"check.{name}": value for name, value in (settings or {}).items()})
    return check.evaluate(facts(partition(files=10, mb=mb), of=of, by=named), named, earlier, NOW)


def step(found: Verdict) -> CheckFiles:
    """The step of a verdict that is due."""
    assert isinstance(found, Due), found
    (only,) = found.work.steps
    assert isinstance(only, CheckFiles)
    return only


@pytest.mark.parametrize(
    ("earlier", "settings", "since", "reason"),
    [
        (None, {}, None, "no earlier check to go on from: all is read"),
        (last(), {}, 3, "the last check is 25 h old; 1 snapshots came since"),
        (last(hours=7), {"every_hours": 6}, 3, "the last check is 7 h old; 1 snapshots came since"),
        (last(hours=1), {"level": "rows"}, None, "no check at level rows was made yet: all is read"),
        (last(), {"level": "entries"}, 3, "the last check is 25 h old; 1 snapshots came since"),
        (last(faults_found=1), {}, None, "the last check found faults: all is read"),
        (last(full_hours=29 * 24), {}, None, "the last check that read all is 30 days old: all is read"),
        (last(full_hours=28 * 24), {}, 3, "the last check is 25 h old; 1 snapshots came since"),
        (last(full_hours=6 * 24), {"full_days": 7}, None, "the last check that read all is 7 days old: all is read"),
        (last(), {"full_days": 0}, None, "the last check that read all is 1 days old: all is read"),
        (last(sequence_number=0), {}, None, "the table has no sequence numbers that say what is new: all is read"),
        (last(sequence_number=9), {}, None, "the table has no sequence numbers that say what is new: all is read"),
    ],
)
def test_what_a_check_reads(
    earlier: LastRun | None, settings: Mapping[str, Any], since: int | None, reason: str
) -> None:
    """What is newer than the last check as deep, and all after a fault, from time to time and where that is unknown."""
    found = verdict(earlier, settings)
    assert (step(found).since, why(found)) == (since, reason)
    assert step(found).full_hours == (
        0.0 if since is None or earlier is None else earlier.learned["full_hours"] + _age(earlier)
    )


def _age(earlier: LastRun) -> float:
    return (NOW - earlier.finished) / timedelta(hours=1)


def test_a_check_waits_for_its_time() -> None:
    """Not before `check.every_hours` are over, which the verdict names as the time to look again."""
    found = verdict(last(hours=20))
    assert found == NotDue("the files were checked 20 h ago, fewer than check.every_hours", NOW + timedelta(hours=4))
    assert isinstance(verdict(None, of=replace(OF, snapshots=())), NotDue)


@pytest.mark.parametrize(
    ("settings", "mb", "by_spark"),
    [
        ({"level": "rows"}, 1024, False),
        ({"level": "rows"}, 1025, True),
        ({"level": "rows", "engine": "service"}, 1025, False),
        ({"level": "rows", "engine": "spark"}, 1, True),
        ({"level": "footers", "engine": "spark"}, 1025, False),
    ],
)
def test_spark_reads_many_rows(settings: Mapping[str, Any], mb: int, by_spark: bool) -> None:
    """Where more than 10 GB are to be read, or a setting says so; all other levels need no Spark."""
    found = verdict(None, settings, mb=mb)
    assert (step(found).level, step(found).by_spark) == (CheckLevel(settings["level"]), by_spark)
    assert on_pool(step(found)) is by_spark
    new = {"level": 3.0, "sequence_number": 4.0}
    assert isinstance(found, Due)
    assert step(verdict(last(**new), settings, mb=mb)).by_spark is (settings.get("engine") == "spark" and by_spark)


@pytest.mark.parametrize(("stated", "by_spark"), [("1", False), ("2" * 12, True), ("x", False), ("9" * 5_000, False)])
def test_bytes_that_a_summary_states(stated: str, by_spark: bool) -> None:
    """What is no size of a file counts as all that the table has."""
    newest = replace(OF.snapshots[-1], summary={"operation": "append", "added-files-size": stated})
    grown = replace(OF, snapshots=(*OF.snapshots[:-1], newest))
    assert step(verdict(last(level=3.0), {"level": "rows"}, grown)).by_spark is by_spark
