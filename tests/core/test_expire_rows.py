"""Rows that are too old: when a table has some, and which predicate says them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta

import pytest

from icewright.core.operations.expire_rows import evaluate
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Blocked, Due, ExpireRows, NotDue
from icewright.core.table import TableMetadata
from icewright.testing import NOW, facts, knobs, metadata, partition

MIDNIGHT = datetime.combine(NOW.date() + timedelta(days=1), datetime.min.time(), NOW.tzinfo)
CUTOFF = NOW.date() - timedelta(days=30)
DAYS = (CUTOFF - date(1970, 1, 1)).days
POLICY: Mapping[str, object] = {"expire_rows.column": "seen.at", "expire_rows.days": 30}


def table(kind: str) -> TableMetadata:
    """A table whose rows are as old as `seen.at` says, which is of this type."""
    struct = {"type": "struct", "fields": [{"id": 8, "name": "at", "required": False, "type": kind}]}
    seen = {"id": 7, "name": "seen", "required": False, "type": struct}
    return metadata(schema={"type": "struct", "schema-id": 0, "fields": [seen]})


@pytest.mark.parametrize(
    ("kind", "ticks", "literal"),
    [
        ("date", 1, f"date'{CUTOFF}'"),
        ("timestamp", 86_400_000_000, f"timestamp_ntz'{CUTOFF} 00:00:00'"),
        ("timestamptz", 86_400_000_000, f"timestamp'{CUTOFF} 00:00:00+00:00'"),
        ("timestamp_ns", 86_400_000_000_000, f"timestamp_ntz'{CUTOFF} 00:00:00'"),
        ("timestamptz_ns", 86_400_000_000_000, f"timestamp'{CUTOFF} 00:00:00+00:00'"),
    ],
)
def test_rows_from_before_the_day(kind: str, ticks: int, literal: str) -> None:
    """Due when a file's least value is before midnight of the day, whatever the column's type."""
    old, young = partition("a", lowest=DAYS * ticks - 1), partition("b", lowest=DAYS * ticks)
    found = evaluate(facts(old, young, partition("c"), of=table(kind)), knobs(POLICY), None, NOW)
    assert isinstance(found, Due)
    (step,) = found.work.steps
    assert isinstance(step, ExpireRows)
    assert (step.where, step.partitions) == (f"`seen`.`at` < {literal}", (old.key,))
    assert (step.before, step.ticks, step.field_id) == (CUTOFF, DAYS * ticks, 8)


def test_nothing_is_old_until_tomorrow() -> None:
    """A table without such rows is looked at again when the day has changed."""
    found = evaluate(facts(partition("b", lowest=DAYS), of=table("date")), knobs(POLICY), None, NOW)
    assert found == NotDue(f"no file holds rows with seen.at before {CUTOFF}", MIDNIGHT)


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({}, "date", "expire_rows.column and expire_rows.days say which rows go: set both"),
        ({"expire_rows.days": 3}, "date", "expire_rows.column and expire_rows.days say which rows go: set both"),
        ({**POLICY, "expire_rows.column": "when"}, "date", "has no column when"),
        (POLICY, "string", "seen.at is a string, and only dates and timestamps grow old"),
    ],
)
def test_a_policy_that_says_too_little(settings: Mapping[str, object], kind: str, reason: str) -> None:
    """Nothing is deleted by half a policy, or by a column that does not say how old a row is."""
    found = evaluate(facts(partition(lowest=0), of=table(kind)), knobs(settings), None, NOW)
    assert isinstance(found, Blocked)
    assert reason in found.reason


@pytest.mark.parametrize(("days_ago", "due"), [(0, False), (1, True)])
def test_once_a_day(days_ago: int, due: bool) -> None:
    """Bounds that still name old rows after a run, as deletes leave them, start nothing on the same day."""
    of = table("date")
    last = LastRun(
        Operation.EXPIRE_ROWS, NOW - timedelta(days=days_ago), OperationState.COMMITTED, of.metadata_location
    )
    assert isinstance(evaluate(facts(partition(lowest=0), of=of), knobs(POLICY), last, NOW), Due) is due


def test_an_empty_table() -> None:
    """A table without a snapshot has no rows."""
    of = metadata((), schema=table("date").schema, current_snapshot_id=None)
    assert evaluate(facts(of=of), knobs(POLICY), None, NOW) == NotDue("no current snapshot")
