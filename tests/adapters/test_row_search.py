"""Which rows match where they are looked for, to be erased, and which delete files apply to a data file."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.row_predicate import RowPredicate
from icewright.adapters.engines.service.row_search import applies
from icewright.core.errors import UsageError

DATA, POSITIONS, KEYS = 0, 1, 2


def _file(content: int, sequence: int, partition: Any, spec_id: int = 0) -> ContentFile:
    values = {100: f"{content}.parquet", 101: "PARQUET", 102: {"p": float(partition)}, 134: content}
    return ContentFile("m.avro", spec_id, 1, sequence, values)


@pytest.mark.parametrize("content", [POSITIONS, KEYS])
@pytest.mark.parametrize(
    ("of_data", "of_delete", "apply"),
    [("1", "1", True), ("1", "2", False), ("nan", "nan", True), ("0.0", "-0.0", False), ("-0.0", "-0.0", True)],
)
def test_deletes_apply_to_files_of_their_partition(content: int, of_data: str, of_delete: str, apply: bool) -> None:
    """NaN is one partition, though not equal to itself; zeros of both signs are two, though equal."""
    assert applies(_file(content, 2, of_delete), _file(DATA, 1, of_data), ()) is apply


def test_equality_deletes_without_a_partition_apply_everywhere() -> None:
    """So do those of a spec whose fields were all dropped, which still has a value for each: null."""
    delete, data = _file(KEYS, 2, "1", spec_id=1), _file(DATA, 1, "2")
    assert applies(delete, data, {1})
    assert not applies(delete, data, {2})
    assert not applies(delete, _file(DATA, 2, "2"), {1})
    assert not applies(_file(POSITIONS, 2, "1", spec_id=1), data, {1})


_ROWS = pa.table(
    {
        "s": ["Ann", "An_a", None, ""],
        "i": pa.array([1, 2, None, 2**31 - 1], pa.int32()),
        "g": [float("nan"), 1.5, None, -0.0],
        "d": pa.array([0, 20_000, None, -1], pa.date32()),
        "m": pa.array([Decimal("1.50"), Decimal(0), None, Decimal("9.99")], pa.decimal128(3, 2)),
        "f": pa.array([float("nan"), float("inf"), None, 1.5], pa.float32()),
        "p": pa.array([{"e": "x"}, None, {"e": "y"}, {"e": "x"}], pa.struct([pa.field("e", pa.string())])),
    }
)
_PERSON = {"type": "struct", "fields": [{"id": 9, "name": "e", "required": True, "type": "string"}]}
_KINDS = [
    ("s", "string"),
    ("i", "int"),
    ("g", "double"),
    ("d", "date"),
    ("m", "decimal(3, 2)"),
    ("f", "float"),
    ("p", _PERSON),
]
_FIELDS = [
    {"id": number, "name": name, "required": False, "type": kind} for number, (name, kind) in enumerate(_KINDS, 1)
]


@pytest.mark.parametrize(
    "text",
    [
        *("s like 'An%'", "s like 'Ann'", "not s like 'Ann%'", "s not in ('Ann', 'Bob')", "not s in ('Ann', 'Bob')"),
        *("g > 'inf'", "g <= 'inf'", "i > 1", "i not in (1, 3)", "i <> 1 or s = 'x like ''a_b'' y'"),
        *("g > 1", "g >= 7.5", "not (g <= 1)", "g > 1 and i < 3", "g < 2", "not (g > 1)", "g = 0", "g != 1.5"),
        *(
            "g in (0, 7)",
            "not g in (0, 7)",
            "g in (1.5, 7.5) or g in (0, 2)",
            "d in ('1970-01-01', '2024-10-04')",
            "m < 2",
        ),
        *("f > 'inf' or i = 2", "f in ('inf', '-inf')", "f >= '-Infinity' and f < 'inf'", "not (f <> 'inf')"),
        *("p.e is null or i = 7", "p.e is not null and i > 0", "p.e != 'x'"),
    ],
)
def test_a_predicate_matches_the_rows_that_duckdb_finds(text: str) -> None:
    """NaN is above all numbers, no null is in or outside of a list, and a struct that is null has no value."""
    predicate = RowPredicate.of(text, [{"fields": _FIELDS}])
    found = predicate.count([_ROWS.column(field["name"]).combine_chunks() for field in predicate.fields])
    with duckdb.connect() as connection:
        expected = connection.register("rows", _ROWS).execute(f"SELECT count(*) FROM rows WHERE {text}").fetchone()  # noqa: S608 - from above
    assert (found,) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s like 'An_a%'",
        "i = 1 or s not LIKE 'An\\%'",
        "i > 1.5",
        "not (i in (1.5, 2.5))",
        "i like '1%'",
        *("i not in (99999999999, 1)", "i <> 99999999999 or s = 'Ann'"),
        *("m < 100", "m in (1, 100)", "d = 20000", "d in ('20241004', '1970-01-01')", "d > '2024-W40-5'"),
    ],
)
def test_what_engines_take_for_another_condition_is_refused(text: str) -> None:
    """What a wider or narrower condition finds proves nothing about the rows that are asked for."""
    with pytest.raises(UsageError, match="write it as in"):
        RowPredicate.of(text, [{"fields": _FIELDS}])


def test_a_number_that_single_precision_rounds_is_refused() -> None:
    """Spark compares with the number itself, and DuckDB with the rounded one; that one both take alike."""
    assert RowPredicate.every("f > 0.5 and g > 0.1", [{"fields": _FIELDS}])
    with pytest.raises(UsageError, match=r"write 0\.10000000149011612"):
        RowPredicate.every("i = 1 or not (f <= 0.1)", [{"fields": _FIELDS}])
    assert RowPredicate.every("f > 0.10000000149011612", [{"fields": _FIELDS}])


@pytest.mark.parametrize("text", ["g is nan", "i = 1 or not (s = 'Ann' and g is nan)"])
def test_a_search_for_nan_is_one_that_engines_understand(text: str) -> None:
    """SQL has no such condition: a certificate with it could not be rechecked."""
    with pytest.raises(UsageError, match="write > 'inf'"):
        RowPredicate.every(text, [{"fields": _FIELDS}])
