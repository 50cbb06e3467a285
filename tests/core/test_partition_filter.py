"""`compact.where` and partition values: a partition is left out only when no row of it can match."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from icewright.core.operations import compact
from icewright.core.partition_filter import admitted
from icewright.core.steps import Due, NotDue, RewriteDataFiles
from icewright.core.table import PartitionField, PartitionSpec, TableFacts
from icewright.core.verdicts import evaluate
from icewright.testing import NOW, facts, knobs, metadata, partition

_TYPES = {"n": "int", "s": "string", "d": "date", "t": "timestamptz", "w": "timestamp", "m": "decimal(9, 2)"}
_TYPES |= {"f": "float", "b": "boolean", "u": "uuid", "A": "int", "a": "int"}
_FIELDS = [{"id": number, "name": name, "type": kind} for number, (name, kind) in enumerate(_TYPES.items(), 1)]
_INNER = {"type": "struct", "fields": [{"id": 21, "name": "x", "type": "int"}]}
_SCHEMA = {"schema-id": 0, "fields": [*_FIELDS, {"id": 20, "name": "st", "type": _INNER}]}
_IDS = {**{name: number for number, name in enumerate(_TYPES, 1)}, "st.x": 21, "dropped": 99}


def _table(partitioning: tuple[tuple[str, str], ...], *tuples: tuple[Any, ...]) -> TableFacts:
    fields = (PartitionField(_IDS[c], 1000 + i, f"f{i}", t) for i, (c, t) in enumerate(partitioning))
    table = metadata(schema=_SCHEMA, specs=(PartitionSpec(0, tuple(fields)),))
    return facts(*(partition(*values) for values in tuples), metadata=table)


TODAY = NOW.date()
NUMBER, TEXT, DAY, DATE = ("n", "identity"), ("s", "identity"), ("t", "day"), ("d", "identity")


@pytest.mark.parametrize(
    ("field", "value", "where", "admits"),
    [
        (NUMBER, 1, "n = 1", True),
        (NUMBER, 0, "n = 1", False),
        (NUMBER, None, "n = 1", False),
        (NUMBER, None, "n is null", True),
        (NUMBER, 1, "n is null", False),
        (NUMBER, 1, "n is not null", True),
        (NUMBER, None, "not n = 1", False),  # not null is null
        (NUMBER, 0, "not n = 1", True),
        (NUMBER, 1, "N <> 1", False),
        (NUMBER, 1, "1 < n", False),
        (NUMBER, 2, "1 < n", True),
        (NUMBER, 1, "2 >= n", True),
        (NUMBER, -5, "n = -5", True),
        (NUMBER, 2, "n in (1, 3)", False),
        (NUMBER, 3, "n in (1, 3)", True),
        (NUMBER, None, "n not in (1, 3)", False),
        (NUMBER, 2, "n between 3 and 5", False),
        (NUMBER, 5, "n between 3 and 5", True),
        (NUMBER, 1, "n = 1 and s = 'x'", True),
        (NUMBER, 0, "n = 1 and s = 'x'", False),
        (NUMBER, 0, "n = 1 or s = 'x'", True),
        (NUMBER, 0, "(n = 1) or (n = 2)", False),
        (NUMBER, 0, "n > 0.5", False),
        (NUMBER, 0, "n = '1'", True),  # Spark casts the text; Python does not try
        (NUMBER, 0, "n <=> 1", True),  # unknown here
        (NUMBER, 0, "n = ", True),
        (("n", "void"), None, "n = 1", True),  # a void field says nothing
        (("n", "bucket[4]"), 1, "n = 1", True),
        (("n", "bucket[4]"), None, "n = 1", False),
        (("n", "truncate[10]"), 10, "n = 19", True),
        (("n", "truncate[10]"), 10, "n >= 20", False),
        (("n", "truncate[10]"), -10, "n = -1", True),
        (("n", "truncate[10]"), -10, "n < -10", False),
        (("dropped", "identity"), 0, "n = 1", True),
        (("a", "identity"), 0, "a = 1", True),  # or is it `A`?
        (("st.x", "identity"), 0, "st.x = 1", False),
        (TEXT, "a'b", r"s = 'a\'b'", True),
        (TEXT, "", "s > ''", False),
        (TEXT, "ab", "s like 'x%'", True),
        (("s", "truncate[2]"), "ab", "s = 'abc'", True),
        (("s", "truncate[2]"), "ab", "s = 'ac'", False),
        (("s", "truncate[2]"), "ab", "s < 'ab'", False),
        (("s", "truncate[2]"), "a", "s = 'a'", True),
        (("m", "identity"), Decimal("1.50"), "m = 1.5", True),
        (("m", "identity"), Decimal("1.50"), "m > 1.5", False),
        (("f", "identity"), 0.1, "f = 0.2", True),  # single precision is Spark's matter
        (("b", "identity"), False, "b = true", False),
        (("u", "identity"), b"0", "u = '0'", True),
        (DATE, date(1969, 12, 31), "d < date'1970-01-01'", True),
        (DATE, date(1969, 12, 31), "d >= '1970-01-01'", False),
        (DATE, date(2026, 1, 1), "d = '20260101'", True),  # Spark reads no such date
        (DATE, TODAY - timedelta(days=2), "d >= CURRENT_DATE - INTERVAL 2 DAYS", True),
        (DATE, TODAY - timedelta(days=3), "d >= CURRENT_DATE - INTERVAL 2 DAYS", False),
        (DATE, TODAY - timedelta(days=3), "d >= date_sub(current_date(), 2)", False),
        (DATE, TODAY - timedelta(days=2), "d >= date_add(current_date(), -2)", True),
        (DATE, TODAY - timedelta(days=3), "d >= current_date() - 2", False),
        (DATE, TODAY, "d < CURRENT_DATE + INTERVAL 1 WEEK", True),
        (DATE, TODAY, "d >= CURRENT_DATE + INTERVAL 1 MONTH", True),  # months are Spark's matter
        (("d", "month"), -1, "d = '1969-12-31'", True),
        (("d", "month"), -1, "d >= '1970-01-01'", False),
        (("d", "year"), 10_000, "d < '1970-01-01'", True),  # a year that Python does not have
        (("d", "day"), date(9999, 12, 31), "d < '1970-01-01'", True),  # whose end Python does not have
        (DATE, date(2026, 1, 1), "d >= '2026-01-01 10:00:00'", True),  # Spark casts the text to a date
        (DATE, date(2026, 1, 1), "d > '2026-01-01T23:00:00-02:00'", False),
        (DATE, date(2026, 1, 1), "d >= timestamp'2026-01-01 10:00:00'", False),  # and here the date to a timestamp
        (DAY, date(2026, 1, 1), "t > timestamp'2026-01-01 23:59:59'", True),
        (DAY, date(2026, 1, 1), "t >= timestamp'2026-01-02 00:00:00'", False),
        (DAY, date(2026, 1, 1), "t >= timestamp'2026-01-02 01:00:00+02:00'", True),
        (DAY, TODAY - timedelta(days=2), "t >= current_timestamp() - interval 3 hours", False),
        (("w", "hour"), 24, "w = '1970-01-02 00:30:00'", True),
        (("w", "hour"), 24, "w = '1970-01-02 01:00:00'", False),
        (("w", "hour"), 24, "w = '1970-01-02 01:00:00+01:00'", True),  # Spark drops the zone
        (("w", "hour"), 24, "w = timestamp_ntz'1970-01-02 00:30:00+02:00'", True),  # here too
        (("t", "hour"), 24, "t = timestamp_ntz'1970-01-02 01:00:00+02:00'", False),
    ],
)
def test_a_partition_that_cannot_match_is_left_out(
    field: tuple[str, str], value: object, where: str, admits: bool
) -> None:
    """Values of identity, times, truncations and nulls decide; whatever else a predicate says may be true."""
    table = _table((field,), (value,))
    assert bool(admitted(table, knobs({"compact.where": where}), NOW)) is admits


def test_all_fields_of_a_column_say_what_it_holds() -> None:
    """A bucket beside an identity takes nothing from it."""
    table = _table((("n", "bucket[4]"), NUMBER), (1, 0), (2, 1))
    assert [p.values for p in admitted(table, knobs({"compact.where": "n = 1"}), NOW)] == [(2, 1)]


def test_partitions_that_where_excludes_are_neither_due_nor_counted() -> None:
    """What matches is rewritten without a filter of its own; when it has been, nothing is due and health is full."""
    small, merged = (0,), partition(1, files=1, mb=512)
    settings = knobs({"compact.where": "n = 1"})
    table = _table((NUMBER,), small, (1,))
    verdict = compact.evaluate(table, settings, None, NOW)
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, RewriteDataFiles)
    assert (step.files, step.where, step.partitions) == (10, None, ((0, (1,)),))
    rested = facts(partition(*small), merged, metadata=table.metadata)
    assert isinstance(compact.evaluate(rested, settings, None, NOW), NotDue)
    assert evaluate(rested, settings, {}, NOW).parts["small_files"].score == 100
