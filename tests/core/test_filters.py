"""Filters as scan reports tell of them: what is kept of an expression, and the filters that are made of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from icewright.core.filters import Side, filter_columns, filter_of, filter_template

HOST = {"type": "eq", "term": "host", "value": "(hash-1a2b3c4d)"}
SINCE = {"type": "gt-eq", "term": {"type": "reference", "term": "ts"}, "value": "(timestamp-3-days-ago)"}
UNTIL = {"type": "lt", "term": "ts", "value": "(timestamp-about-now)"}
DAY = {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "ts"}, "value": "(date-today)"}


def drawn(column: str, side: Side, age: timedelta | None) -> str:
    """Name what was asked for."""
    return f"{column}:{side}" if age is None else f"{column}:{age}"


def joined(kind: str, left: Any, right: Any) -> dict[str, Any]:
    """Return an expression of two."""
    return {"type": kind, "left": left, "right": right}


def nested(depth: int) -> Any:
    """Return an expression that is so deep."""
    return HOST if depth == 0 else joined("and", nested(depth - 1), HOST)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (HOST, '"host" = host:both'),
        (joined("and", HOST, joined("and", SINCE, UNTIL)),
         '("host" = host:both and ("ts" >= ts:3 days, 0:00:00 and "ts" < ts:0:00:00))'),
        (joined("or", HOST, SINCE), '("host" = host:both or "ts" >= ts:3 days, 0:00:00)'),
        ({"type": "in", "term": "n", "values": [1, 2]}, '"n" in (n:both)'),
        ({"type": "lt-eq", "term": "d", "value": "(date-2-days-from-now)"}, '"d" <= d:-2 days, 0:00:00'),
        ({"type": "gt", "term": "n", "value": 17}, '"n" > n:lower'),
        ({"type": "lt", "term": "n", "value": "(2-digit-int)"}, '"n" < n:upper'),
        (joined("and", DAY, HOST), '"host" = host:both'),
        (joined("and", {"type": "not", "child": HOST}, {"type": "is-null", "term": "x"}), ""),
        (joined("or", DAY, HOST), ""),
        (nested(8), " and ".join(['"host" = host:both'] * 9)),
        (nested(40), ""),
        *((nothing, "") for nothing in (True, None, "host = 1", [HOST], {"type": "eq", "term": "", "value": 1}, DAY,
                                        {"type": "eq", "term": "x" * 2000, "value": 1})),
    ],
)  # fmt: skip
def test_a_filter_keeps_what_bounds_can_answer(expression: Any, expected: str) -> None:
    """Comparisons of columns stay, with the age of days and times; what else an `and` has goes, and an `or` with it."""
    template = filter_template(expression)
    assert (filter_of(template, drawn) if template else "").replace("(", "").replace(")", "") == expected.replace(
        "(", ""
    ).replace(")", "")


def test_no_value_is_kept() -> None:
    """Two filters that differ in values alone have one template, also where a client reports its values."""
    mails = ("a@b.org", "(hash-00000001)")
    texts = {filter_template({"type": "in", "term": "mail", "values": [mail]}) for mail in mails}
    assert texts == {'{"term":"mail","type":"in","values":1}'}
    assert filter_columns(texts.pop()) == {"mail"}
