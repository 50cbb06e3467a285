"""A set of partitions said as a filter is exact, whatever the transform, the type and the name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from icewright.core.partition_filter import admitted
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due, RewriteDataFiles
from icewright.testing import knobs
from tests.integration.bench import Bench
from tests.integration.compacting import KNOBS, at_rest, compacted
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

_VALUES = {
    "identity": ("part", "part string", ("'a'", "'b''c'", "'é\\\\n%'", "NULL", "'a b'")),
    "bucket": ("bucket(4, part)", "part bigint", ("1", "2", "3", "NULL", "5")),
    "truncate text": ("truncate(2, part)", "part string", ("'éàx'", "'ab'", "'abc'", "NULL", "'a'")),
    "truncate int": ("truncate(10, part)", "part int", ("-1", "5", "15", "NULL", "25")),
    "truncate decimal": ("truncate(50, part)", "part decimal(9, 2)", ("-1.28", "0.49", "0.51", "NULL", "9.99")),
    "year": ("years(part)", "part date", ("date'1969-07-01'", "date'1970-01-01'", "date'2026-01-01'", "NULL")),
    "month": (
        "months(part)",
        "part timestamp",
        ("timestamp'1969-12-31 23:59:59'", "timestamp'2026-01-31 00:00:00'", "timestamp'2026-02-01 00:00:00'", "NULL"),
    ),
    "day": (
        "days(part)",
        "part timestamp_ntz",
        ("timestamp_ntz'1969-12-31 23:59:59'", "timestamp_ntz'2026-02-01 00:00:00'", "NULL"),
    ),
    "hour": (
        "hours(part)",
        "part timestamp",
        ("timestamp'1969-12-31 23:59:59'", "timestamp'2026-01-31 05:59:59'", "timestamp'2026-01-31 06:00:00'", "NULL"),
    ),
    "distant date": ("part", "part date", ("date'+10000-01-01'", "date'-0001-06-01'", "date'2026-01-01'", "NULL")),
    "distant day": ("days(part)", "part date", ("date'+10000-01-01'", "date'-0001-06-01'", "date'2026-01-01'", "NULL")),
    "float": ("part", "part float", ("float(0.1)", "float(-1.5)", "NULL", "float(2)")),
    "double": ("part", "part double", ("0.1D", "-1.5D", "NULL", "1e300D")),
    "decimal": ("part", "part decimal(20, 3)", ("-0.001", "12345678901234567.125", "NULL", "1")),
    "boolean": ("part", "part boolean", ("true", "NULL", "false")),
    "date": ("part", "part date", ("date'1969-12-31'", "NULL", "date'2026-01-01'")),
    "timestamp": (
        "part",
        "part timestamp",
        ("timestamp'1969-12-31 23:59:59.000001'", "NULL", "timestamp'2026-01-01 00:00:00'"),
    ),
    "timestamp_ntz": (
        "part",
        "part timestamp_ntz",
        ("timestamp_ntz'1969-12-31 23:59:59.000001'", "NULL", "timestamp_ntz'2026-01-01 00:00:00'"),
    ),
    "several": (
        "part, bucket(2, id), truncate(1, other)",
        "part string, other string",
        ("'a', 'xy'", "'a', NULL", "NULL, 'xz'", "'b', 'y'"),
    ),
    "quoted": ("`it's a.``part`", "`it's a.``part` string", ("'a'", "NULL", "'b'")),
}


_WHERES = (
    *("n = 19", "n < 0", "n >= 20 or n is null", "not n > 0", "n in (0, 20)", "n between 0 and 19", "n <> 19"),
    *("s = 'abc'", "s > 'ab'", "s <= ''", "s is not null", "s not in ('a', '')"),
    *("d < date'1970-01-01'", "d >= '2026-01-01'", "d = date'2026-01-31'", "d >= CURRENT_DATE - INTERVAL 2 DAYS"),
    *("t < timestamp'1970-01-01 00:00:00'", "t >= date_sub(current_date(), 1)", "t <= '2026-01-31'"),
    *("w = '2026-01-01 00:30:00'", "w < date'1970-01-01'", "w > current_timestamp() - interval 2 hours"),
    *("m = 1.5", "m < 0 and n = 0", "m >= 0 and not (n = 20 or s is null)"),
)


@pytest.mark.parametrize("kind", _VALUES)
def test_only_partitions_that_are_due_are_rewritten(kind: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Said as a filter, a set of partitions is exact: those with one file, or hot ones, keep their files."""
    name = new_name("where")
    partition, column, values = _VALUES[kind]
    quoted = create(bench, name, f"id int, {column}", partition)
    rows = [f"({1}, {value})" for value in values]
    insert(bench, quoted, ", ".join(rows), ", ".join(rows[:1] + [r for r in rows if "NULL" in r]))
    verdict = bench.evaluate(name, {**KNOBS, "compact.hot_partitions": "include"}).verdicts[Operation.COMPACT]
    assert isinstance(verdict, Due)
    steps = [step for step in verdict.work.steps if isinstance(step, RewriteDataFiles)]
    assert all(step.where is not None for step in steps)
    found = compacted(bench, name, {**KNOBS, "compact.hot_partitions": "include"})
    assert len(found.removed) == 2 * len({*rows[:1], *(r for r in rows if "NULL" in r)})
    at_rest(bench, name, {**KNOBS, "compact.hot_partitions": "include"})


def test_a_policys_where_narrows_the_choice(bench: Bench, new_name: Callable[[str], str]) -> None:
    """`compact.where` and the chosen partitions both hold; the dry run says that its list may be narrowed."""
    name = new_name("narrow")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a'), (4, 'b')")
    settings = {**KNOBS, "compact.hot_partitions": "include", "compact.where": "part = 'a'"}
    result = bench.run(name, Operation.COMPACT, settings, dry_run=True)
    assert any("compact.where narrows" in note for note in result.notes)
    done = bench.run(name, Operation.COMPACT, settings)
    assert {f.path for f in done.files} < {f.path for f in result.files}
    assert all("part=a" in f.path for f in done.files)
    assert len(done.files) == 2
    at_rest(bench, name, settings)


def test_partitions_that_where_leaves_out_hold_no_row_that_matches(
    bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Spark finds the rows that match only in admitted partitions, whatever transforms and literals there are."""
    name = new_name("admitted")
    columns = "n int, s string, d date, t timestamp, w timestamp_ntz, m decimal(9, 2)"
    quoted = create(bench, name, columns, "truncate(10, n), n, truncate(2, s), days(t), hours(w), months(d), m")
    rows = [
        "(-1, 'ab', date'1969-12-31', timestamp'1969-12-31 23:30:00', timestamp_ntz'2026-01-01 00:30:00', 1.50)",
        "(0, 'abc', date'1970-01-01', timestamp'1970-01-01 00:00:00', timestamp_ntz'2026-01-01 01:00:00', -1.50)",
        "(19, '', date'2026-01-31', timestamp'2026-01-31 10:00:00', timestamp_ntz'1900-01-01 01:00:00', 0)",
        "(20, 'a', current_date(), current_timestamp(), current_timestamp(), 7)",
        "(NULL, NULL, NULL, NULL, NULL, NULL)",
    ]
    insert(bench, quoted, ", ".join(rows))
    facts = bench.evaluate(name, KNOBS).facts
    by_size = []
    for where in _WHERES:
        found = bench.sql(f"SELECT DISTINCT struct(_partition.*) AS p FROM {quoted} WHERE {where}")  # noqa: S608 - quoted
        matching = {tuple(row.p)[1] for row in found}
        kept = {p.values[1] for p in admitted(facts, knobs({"compact.where": where}), datetime.now(UTC))}
        assert matching <= kept, where
        by_size.append((len(matching), len(kept)))
    exact = sum(found == kept for found, kept in by_size)
    assert exact >= 20, by_size  # truncation hides the rest


def test_times_are_those_of_utc(bench: Bench) -> None:
    """Whatever zone a pool's settings name: partitions are left out by what `compact.where` says in UTC."""
    (row,) = bench.sql(
        "SELECT current_timezone() AS zone, timestamp'1970-01-01 00:00:00' = timestamp_seconds(0) AS same"
    )
    assert (row.zone, row.same) == ("UTC", True)


@pytest.mark.parametrize("hot", [False, True], ids=["", "hot"])
def test_partitions_that_no_filter_can_say(hot: bool, bench: Bench, new_name: Callable[[str], str]) -> None:
    """The whole table is asked for, and the dry run lists exactly that; but never when that would touch a hot one."""
    name = new_name("binary")
    quoted = create(bench, name, "id int, part binary", "part")
    insert(bench, quoted, "(1, x'00'), (2, x'01'), (3, x'02')", "(4, x'00'), (5, x'02')")
    backdate_all(bench, name, 20, 10)
    if not hot:
        assert compacted(bench, name).removed
        return
    # no append stream, whose hot partitions are merged
    bench.sql(f"UPDATE {quoted} SET id = 6 WHERE id = 3")  # noqa: S608 - a generated name
    before = bench.live(name)
    done = bench.run(name, Operation.COMPACT, KNOBS)
    assert (done.state, "no filter tells them apart" in done.reason) == (OperationState.SKIPPED, True), done
    assert bench.live(name) == before


@pytest.mark.cases(41)
def test_files_of_an_older_spec_are_told_of(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Files of older specs are one group, which no filter tells apart: the dry run lists them, and a note says so."""
    name = new_name("specs")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a'), (2, 'b')")
    bench.sql(f"ALTER TABLE {quoted} REPLACE PARTITION FIELD part WITH bucket(2, id)")
    insert(bench, quoted, "(1, 'a')", "(1, 'b')")
    backdate_all(bench, name, 20, 10)
    found = compacted(bench, name)
    assert len(found.removed) == 4
    assert any("other partition specs" in note for note in found.outcome.notes)
