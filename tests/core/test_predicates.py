"""Sets of partitions said as predicates for Spark SQL: typed, quoted, or not at all."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.predicates import column_names, literal, partitions_predicate, quoted, text_literal
from icewright.core.table import PartitionField, PartitionSpec, TableRef
from icewright.testing import REF, SCHEMA, metadata, partition, spec

HOSTILE = [
    "`; drop table t; --",
    "it's",
    'dou"ble',
    "back\\slash",
    "\\'",
    "grün 表 e\u0301",
    "a\nb",
    "' or '1'='1",
    "${x}",
]


def _unquoted(text: str) -> str:
    """What Spark reads an identifier in backticks as."""
    found = re.fullmatch(r"`((?:[^`]|``)*)`", text, re.DOTALL)
    assert found is not None
    return found[1].replace("``", "`")


def _read(text: str) -> str:
    """What Spark reads a string literal as; fails when the literal ends early."""
    found = re.fullmatch(r"'((?:[^'\\]|\\.)*)'", text, re.DOTALL)
    assert found is not None
    return re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL)


@pytest.mark.cases("T12")
@given(st.text() | st.sampled_from(HOSTILE))
def test_any_name_is_one_identifier(name: str) -> None:
    """Whatever a name holds, it is read back as that name and ends nowhere else."""
    assert _unquoted(quoted(name)) == name


@given(st.text() | st.sampled_from(HOSTILE))
def test_any_text_is_one_literal(text: str) -> None:
    """Quotes and backslashes in a value neither end the literal nor change it."""
    assert _read(text_literal(text)) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (-5, "-5"),
        (2**40, "1099511627776"),
        (0.5, "0.5D"),
        (1e300, "1e+300D"),
        (Decimal("12.50"), "12.50BD"),
        ("eu", "'eu'"),
        ("", "''"),
        (date(2026, 1, 2), "date'2026-01-02'"),
        (datetime(2026, 1, 2, 3, 4, 5, 600), "timestamp'2026-01-02 03:04:05.000600'"),  # noqa: DTZ001 - Iceberg has such
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "timestamp'2026-01-02 03:00:00+00:00'"),
        (float("nan"), None),
        (float("inf"), None),
        (b"\x00", None),
        (UUID(int=1), None),
        (time(1, 2), None),
        (object(), None),
    ],
)
def test_literals(value: Any, said: str | None) -> None:
    """Each type has its own literal; what cannot be said exactly is not said."""
    assert literal(value) == said


def _said(made: PartitionSpec, *values: tuple[Any, ...], **overrides: Any) -> str | None:
    table = metadata(specs=(made,), **overrides)
    return partitions_predicate(table, [partition(*v, spec_id=made.spec_id) for v in values])


@pytest.mark.parametrize(
    ("transform", "value", "said"),
    [
        ("identity", 7, "`id` = 7"),
        ("identity", None, "`id` is null"),
        ("bucket[4]", 2, "`lake`.system.bucket(4, `id`) = 2"),
        ("bucket[4]", None, "`id` is null"),
        ("truncate[10]", 30, "`lake`.system.truncate(10, `id`) = 30"),
        ("truncate[10]", None, "`id` is null"),
        ("year", 56, "`lake`.system.years(`id`) = 56"),
        ("month", 682, "`lake`.system.months(`id`) = 682"),
        ("day", date(2026, 11, 21), "`lake`.system.days(`id`) = date'2026-11-21'"),
        ("hour", 498_000, "`lake`.system.hours(`id`) = 498000"),
        ("hour", None, "`id` is null"),
        ("void", None, None),
        ("unknown", 3, None),
        ("bucket[x]", 3, None),
        ("identity", float("nan"), None),
        ("identity", b"\x01", None),
    ],
)
def test_every_transform(transform: str, value: Any, said: str | None) -> None:
    """Transforms are said by the catalog's own functions, null as null of the column; else there is no predicate."""
    assert _said(spec(id=transform), (value,)) == said


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_stay_values(value: str) -> None:
    """A value that looks like SQL is compared with, not run."""
    said = _said(spec(region="identity"), (value,))
    assert said is not None
    column, equals, text = said.partition(" = ")
    assert (_unquoted(column), equals, _read(text)) == ("region", " = ", value)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name: str) -> None:
    """Column and catalog names are identifiers, whatever they hold."""
    schema = {"fields": [{"id": 1, "name": name, "type": "long"}]}
    said = _said(spec(id="bucket[2]"), (1,), schema=schema, ref=TableRef(name, ("n",), "t"))
    assert said == f"{quoted(name)}.system.bucket(2, {quoted(name)}) = 1"


def test_one_field_becomes_a_list() -> None:
    """Values of one field are listed; null stands beside the list."""
    assert _said(spec(region="identity"), ("eu",), ("us",), (None,)) == (
        "(`region` is null) or (`region` in ('eu', 'us'))"
    )


def test_several_fields_are_alternatives() -> None:
    """Partitions of several fields are each said whole."""
    made = spec(region="identity", id="bucket[2]")
    assert _said(made, ("eu", 0)) == "`region` = 'eu' and `lake`.system.bucket(2, `id`) = 0"
    assert _said(made, ("eu", 0), (None, 1)) == (
        "(`region` = 'eu' and `lake`.system.bucket(2, `id`) = 0) or "
        "(`region` is null and `lake`.system.bucket(2, `id`) = 1)"
    )


@pytest.mark.cases(43)
def test_void_fields_say_nothing() -> None:
    """A field that was removed from a v1 spec is passed over; a spec of nothing else has no predicate."""
    assert _said(spec(region="void", id="identity"), (None, 1), (None, 2)) == "`id` in (1, 2)"
    assert _said(spec(region="void", id="void"), (None, None)) is None
    assert _said(spec(), ()) is None


@pytest.mark.cases(41, 42)
def test_evolved_specs_stand_side_by_side() -> None:
    """Partitions of several specs are said by the fields of each."""
    old, new = spec(0, region="identity"), spec(1, ts="day")
    table = metadata(specs=(old, new))
    said = partitions_predicate(table, [partition("eu"), partition(date(2026, 1, 2), spec_id=1)])
    assert said == "(`region` = 'eu') or (`lake`.system.days(`ts`) = date'2026-01-02')"


def test_one_unsayable_partition_leaves_no_predicate() -> None:
    """A predicate that left out a partition would be wrong, so there is none for the set."""
    assert _said(spec(region="identity"), ("eu",), (b"\x01",)) is None
    table = metadata(specs=(spec(0, region="identity"), spec(1)))
    assert partitions_predicate(table, [partition("eu"), partition(spec_id=1)]) is None
    assert partitions_predicate(table, []) is None


@pytest.mark.cases(44)
def test_a_dropped_column_cannot_be_named() -> None:
    """Fields are found by id: a column of the same name added later is another one."""
    readded = {"fields": [{"id": 9, "name": "region", "type": "string"}]}
    assert _said(spec(region="identity"), ("eu",), schema=readded) is None
    assert _said(spec(region="identity"), (None,), schema=readded) is None


@pytest.mark.cases(45)
def test_a_renamed_column_is_found_by_its_id() -> None:
    """The name is that of the current schema."""
    renamed = {"fields": [{"id": 2, "name": "area", "type": "string"}]}
    assert _said(spec(region="identity"), ("eu",), schema=renamed) == "`area` = 'eu'"


def test_nested_columns() -> None:
    """A column within structs is named by its path, each part quoted; lists and maps are not walked."""
    inner = {"type": "struct", "fields": [{"id": 5, "name": "a.b", "type": "int"}]}
    schema = {
        "fields": [
            {"id": 4, "name": "outer", "type": inner},
            {"id": 6, "name": "many", "type": {"type": "list", "element-id": 7, "element": "int"}},
        ]
    }
    assert column_names(schema) == {4: ("outer",), 5: ("outer", "a.b"), 6: ("many",)}
    made = PartitionSpec(0, (PartitionField(5, 1000, "p", "identity"),))
    assert _said(made, (1,), schema=schema) == "`outer`.`a.b` = 1"
    assert column_names({}) == {}
    assert column_names(SCHEMA)[3] == ("ts",)


def test_the_catalog_is_the_table_s() -> None:
    """Transform functions are those of the catalog that the table is in."""
    said = _said(spec(id="bucket[2]"), (1,), ref=TableRef("other", REF.namespace, REF.name))
    assert said == "`other`.system.bucket(2, `id`) = 1"
