"""How well files are sorted: columns of an order, bounds as values, pairs that overlap."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.sortedness import Range, ordering_columns, ordering_fields, overlap


@pytest.mark.parametrize(
    ("order", "columns"),
    [
        ("id", ("id",)),
        ("id DESC NULLS LAST, ts", ("id",)),
        ("`odd, ``name`` (1)` ASC, ts", ("odd, `name` (1)",)),
        ("a.b asc", ("a.b",)),
        ("bucket(4, id), ts", ()),
        ("zorder(a, b)", ("a", "b")),
        ("ZORDER( `a` ,b.c )", ("a", "b.c")),
        ("zorder(bucket(4, id), b)", ()),
        ("", ()),
    ],
)
def test_columns_of_an_order(order: str, columns: tuple[str, ...]) -> None:
    """The first column of a sort order and all of a z-order tell files apart; a transform does not."""
    assert ordering_columns(order) == columns


SCHEMA = {
    "fields": [
        {"id": 1, "name": "id", "type": "long"},
        {"id": 2, "name": "Place", "type": {"type": "struct", "fields": [{"id": 3, "name": "city", "type": "string"}]}},
        {"id": 4, "name": "tags", "type": {"type": "list", "element": "string", "element-id": 5}},
    ]
}


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("id",), ((1, "long"),)),
        (("place.city", "ID"), ((3, "string"), (1, "long"))),
        (("tags",), ()),
        (("id", "missing"), ()),
        ((), ()),
    ],
)
def test_fields_of_columns(names: tuple[str, ...], fields: tuple[tuple[int, str], ...]) -> None:
    """Columns are found through structs whatever their case; all of them or none."""
    assert ordering_fields(SCHEMA, names) == fields


@pytest.mark.parametrize(
    ("ranges", "share"),
    [
        ([(0, 9)], None),
        ([(0, 5), (5, 9)], 0.0),
        ([(0, 5), (4, 9)], 1.0),
        ([(3, 3), (3, 3), (3, 3)], 0.0),
        ([(3, 3), (0, 9)], 1.0),
        ([(3, 3), (3, 9)], 0.0),
        ([(0, 9), (0, 9), (9, 12)], 1 / 3),
    ],
)
def test_share_of_pairs(ranges: list[Range], share: float | None) -> None:
    """Ranges that only touch do not overlap, nor do files of the one same value."""
    assert overlap([[one] for one in ranges]) == share


RANGES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda two: (min(two), max(two)))


@given(st.lists(RANGES, min_size=2, max_size=25))
def test_counting_is_comparing_all_pairs(ranges: list[Range]) -> None:
    """For one column the count by sorting is that of comparing each pair."""
    pairs = list(combinations(ranges, 2))
    expected = sum(a[0] < b[1] and b[0] < a[1] for a, b in pairs) / len(pairs)
    assert overlap([[one] for one in ranges]) == pytest.approx(expected)


def test_boxes_overlap_in_all_columns() -> None:
    """Files of a z-order are apart when they are apart in any column; of many files some are compared."""
    quarters = [[(x, x + 1), (y, y + 1)] for x in (0, 1) for y in (0, 1)]
    assert overlap(quarters) == 0
    assert overlap([[(0, 2), (0, 2)]] * 3) == 1
    assert overlap([[(n, n + 1), (0, 9)] for n in range(1000)]) == 0
