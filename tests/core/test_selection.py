"""Which tables a selection holds."""

from __future__ import annotations

from typing import Any

import pytest

from icewright.core.errors import UsageError
from icewright.core.selection import TableSelection
from icewright.core.table import TableRef

ORDERS = TableRef("lake", ("sales",), "orders")
DEEP = TableRef("lake", ("sales", "eu"), "orders")
STAR = TableRef("lake", ("sales",), "*")
LOGS = TableRef("pond", ("logs",), "raw")


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (TableSelection(("lake.sales.orders",)), [ORDERS]),
        (TableSelection(("lake.sales.*",)), [ORDERS, DEEP, STAR]),  # as in policy rules: namespaces below it too
        (TableSelection(("*.logs",)), [LOGS]),
        (TableSelection((str(STAR),)), [STAR]),  # a table of that name is no pattern
        (TableSelection(("lake.sales.order?", "pond.*")), [ORDERS, LOGS]),
        (TableSelection(catalog="lake"), [ORDERS, DEEP, STAR]),
        (TableSelection(everything=True), [ORDERS, DEEP, STAR, LOGS]),
    ],
)
def test_a_selection_holds_names_patterns_catalogs_or_all(selection: TableSelection, selected: list[TableRef]) -> None:
    """A plain name is one table; a pattern is matched part by part; a catalog is all that it has."""
    assert [ref for ref in (ORDERS, DEEP, STAR, LOGS) if selection.contains(ref)] == selected
    assert selection.without_match(selected) == []
    assert selection.without_match([]) == list(selection.names)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"names": ("lake.sales.orders",), "everything": True},
        {"catalog": "lake", "everything": True},
        {"names": ("lake.sales",)},  # no table, and no pattern
        {"names": ("",)},
    ],
)
def test_a_selection_is_made_in_one_way(options: dict[str, Any]) -> None:
    """Nothing, two ways at once and a name that is no table's are refused before anything is changed."""
    with pytest.raises(UsageError):
        TableSelection(**options)
