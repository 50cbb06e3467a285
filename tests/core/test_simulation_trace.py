"""Traces: recorded commits are read as they are, and bad lines are named with what would be right."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from icewright.core.capacity import Limits
from icewright.core.errors import ConfigError
from icewright.core.layering import Policy
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.trace import read_partition, read_trace
from icewright.core.simulation.writes import Write

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
GOOD = {"at": "2026-01-05T07:30:00Z", "table": "lake.sales.orders", "files": 3, "bytes": 3000}


def line(**more: object) -> str:
    """A line with some of its keys changed; None leaves one out."""
    return json.dumps({k: v for k, v in {**GOOD, **more}.items() if v is not None})


def test_commits_are_read() -> None:
    """By table, in the order of time, with what the commit does not say filled in."""
    lines = [
        line(at="2026-01-05T09:00:00+01:00", partition="day=2026-01-05", rows=7),
        "",
        line(),
        line(table="lake.a.b"),
    ]
    found = read_trace("t", lines)
    assert (found.first, found.last) == (datetime(2026, 1, 5, 7, 30, tzinfo=UTC), datetime(2026, 1, 5, 8, tzinfo=UTC))
    other, orders = found.sources
    assert [str(s.ref) for s in found.sources] == ["lake.a.b", "lake.sales.orders"]
    first, second = orders.writes()
    assert first == Write(found.first, 3, 3000, 30)
    assert second == Write(found.last, 3, 3000, 7, (("day", "day"),), (date(2026, 1, 5),))
    assert list(orders.writes()) == [first, second]
    assert len(list(other.writes())) == 1


def test_reads_decide_what_merges_are_worth() -> None:
    """A table that nobody reads is not compacted and costs readers nothing; one that is read a lot has fewer files."""

    def simulated(*reads: str) -> Result:
        commits = [line(at=f"2026-01-{day:02}T{hour:02}:00:00Z") for day in (5, 6, 7) for hour in range(24)]
        found = read_trace("t", [*commits, *reads])
        assert found.sources[0].reads_per_day == (None if not reads else pytest.approx(500 * len(reads) / 3, rel=0.02))
        return simulate(found.sources, Policy(), Span(found.first, found.first + timedelta(days=4)), Slots(Limits()))

    commit, reads = {"files": None, "bytes": None}, {"reads": 500}
    unknown, many = simulated(), simulated(*[line(**commit, **reads)] * 6)
    assert many.average_files < unknown.average_files / 1.3
    none = read_trace("t", [line(), line(**commit, reads=0)]).sources
    result = simulate(none, Policy(), Span(BEGIN, BEGIN + timedelta(days=4)), Slots(Limits()))
    assert (result.runs.get("compact"), result.total_gb_hours) == (None, result.gb_hours)


def test_deletes_are_read() -> None:
    """Delete files name rows, a thousand each unless it is said."""
    lines = [
        line(files=None, bytes=None, delete_files=2, operation="delete"),
        line(delete_files=1, deleted_rows=5),
        line(files=None, bytes=None, operation="delete"),
    ]
    (source,) = read_trace("t", lines).sources
    assert [(w.operation, w.files, w.delete_files, w.deleted_rows) for w in source.writes()] == [
        ("delete", 0, 2, 2000),
        ("append", 3, 1, 5),
        ("delete", 0, 0, 0),
    ]


@pytest.mark.parametrize(
    ("text", "layout", "values"),
    [
        ("", (), ()),
        ("region=eu", (("region", "identity"),), ("eu",)),
        ("day=2026-01-31/region=eu", (("day", "day"), ("region", "identity")), (date(2026, 1, 31), "eu")),
        ("hour=1970-01-02-03", (("hour", "hour"),), (27,)),
        ("day=2026-02-31", (("day", "identity"),), ("2026-02-31",)),
        ("zip=20260131", (("zip", "identity"),), ("20260131",)),
        ("a=b=c", (("a", "identity"),), ("b=c",)),
        ("a=null", (("a", "identity"),), (None,)),
    ],
)
def test_partitions_are_read(text: str, layout: object, values: object) -> None:
    """Dates are days, dates with an hour are hours, everything else is itself."""
    assert read_partition(text) == (layout, values)


BAD = {
    "no JSON": ("{at: 2026}", "no JSON: Expecting property name"),
    "no object": ("[1]", "write one object"),
    "no time": (line(at=None), "at: missing"),
    "bad time": (line(at="yesterday"), "at: 'yesterday' is no time; write it as 2026-01-31T07:30:00Z"),
    "a number for a time": (line(at=5), "at: 5 is no text"),
    "the end of time": (line(at="9999-12-31T00:00:00Z"), "at: 9999-12-31T00:00:00+00:00 is out of range; write a time"),
    "before all time": (line(at="0001-01-01T00:30:00+02:00"), "at: 0001-01-01T00:30:00+02:00 is out of range"),
    "nested": ("[" * 100_000, "no JSON: "),
    "no table": (line(table=None), "table: missing"),
    "bad table": (line(table="orders"), "'orders' is not a table name: write catalog.namespace.table"),
    "unknown key": (line(file=3), "there is no key file; known are at, table, partition, operation, files, bytes"),
    "negative": (line(files=-1), "files: -1 is not a whole number from 0 to 1000000000000000"),
    "more than a petabyte": (line(bytes=10**15 + 1), "bytes: 1000000000000001 is not a whole number from 0 to"),
    "more than any float": (line(rows=10**400), "rows: 1000"),
    "half a file": (line(files=1.5), "files: 1.5 is not a whole number"),
    "a text for a number": (line(bytes="3000"), "bytes: '3000' is not a whole number"),
    "a truth value": (line(rows=True), "rows: True is not a whole number"),
    "no bytes": (line(bytes=None), "bytes: missing; say how many bytes the files have"),
    "no files": (line(files=None), "files: missing; say how many files hold the bytes"),
    "nothing": (line(files=None, bytes=None), "files: missing; an append brings files or delete files"),
    "operation": (line(operation="merge"), "operation: 'merge' is not one of append, overwrite, delete"),
    "partition": (line(partition="2026-01-31"), "partition: '2026-01-31' has no name=value"),
    "a number for a partition": (line(partition=7), "partition: 7 is no text"),
    "rows of no delete file": (line(deleted_rows=7), "delete_files: missing; deleted_rows are those"),
}


@pytest.mark.parametrize(("bad", "said"), BAD.values(), ids=BAD)
def test_bad_lines_are_named(bad: str, said: str) -> None:
    """The number of the line, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        read_trace("trace.jsonl", [line(), "", bad, line()])
    (fault,) = caught.value.faults
    assert fault.startswith(f"trace.jsonl, line 3: {said}")


def test_many_bad_lines_are_counted() -> None:
    """The first are named, the rest counted."""
    with pytest.raises(ConfigError) as caught:
        read_trace("t", ["{}"] * 100)
    assert len(caught.value.faults) == 21
    assert caught.value.faults[-1] == "t: 80 more lines are wrong"


def test_an_empty_trace_is_a_fault() -> None:
    """It says what a line looks like."""
    with pytest.raises(ConfigError, match="t: holds no commit; write one JSON object a line"):
        read_trace("t", ["", " "])
