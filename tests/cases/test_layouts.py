"""Trials of layouts: what filters would read in other orders of rows, beside what a planner reads when it is so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icewright.core.errors import UsageError
from icewright.core.layout import LayoutReport, RowLayout, layout_candidates
from tests.cases.conftest import ground, workspace
from tests.cases.workspace import NAME, Workspace, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]

ROWS, FILES = 4_000, 8
FILTERS = ("customer = 'c017'", "customer in ('c003', 'c090') and id < 900", "day >= '2026-03-01' and id > 3000")


def rows() -> pa.Table:
    """Customers and days at random, ids as they come."""
    draw = random.Random(3)
    days = [date(2026, 1, 1) + timedelta(days=draw.randrange(90)) for _ in range(ROWS)]
    customers = [f"c{draw.randrange(100):03d}" for _ in range(ROWS)]
    return pa.table({"id": pa.array(range(ROWS), pa.int64()), "customer": customers, "day": days})


def write(workspace: Workspace, name: str, content: pa.Table, **properties: str) -> Table:
    """A table with a file for each eighth of the rows, in their order."""
    catalog = workspace.icebergs["lake"]
    catalog.create_namespace_if_not_exists("sales")
    table = catalog.create_table(name, content.schema, properties=properties)
    for number in range(FILES):
        table.append(content.slice(number * ROWS // FILES, ROWS // FILES))
    return table


def planned(table: Table, filters: Sequence[str]) -> int:
    """The bytes of the files that PyIceberg plans for the filters."""
    return sum(task.file.file_size_in_bytes for text in filters for task in table.scan(text).plan_files())


def trials(workspace: Workspace, *filters: str) -> LayoutReport:
    """The report on the table."""
    return workspace.app.runtime.engine.try_layouts(ref(NAME), filters)


def test_a_layout_reads_what_was_predicted_once_it_is_written(workspace: Workspace) -> None:
    """The files as they are count as PyIceberg plans them, and so does the best layout, within a tenth."""
    table = write(workspace, NAME, rows())
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(size // FILES)})
    report = trials(workspace, *FILTERS)
    assert report.current.bytes_read == planned(table, FILTERS)
    assert report.sampled_rows == ROWS
    by_layout = {trial.layout: trial.bytes_read for trial in report.trials}
    layout = RowLayout(("customer",))
    written = write(workspace, "sales.sorted", rows().sort_by([("customer", "ascending")]))
    assert by_layout[layout] == pytest.approx(planned(written, FILTERS), rel=0.1)
    assert report.best.bytes_read <= by_layout[layout] < report.current.bytes_read
    assert report.settings["compact.strategy"] in {"sort", "zorder"}
    assert report.runs_to_pay == -(-2 * report.table_bytes // (report.current.bytes_read - report.best.bytes_read))


def test_a_table_in_the_right_order_is_left_as_it_is(workspace: Workspace) -> None:
    """No layout is clearly better, so none is recommended; neither is one where no filter can skip a file."""
    write(workspace, NAME, rows(), **{"write.target-file-size-bytes": "2000"})
    assert trials(workspace, "id = 17").settings == {}
    report = trials(workspace, "customer is not null")
    assert (report.settings, report.runs_to_pay, report.current.bytes_read) == ({}, None, report.table_bytes)


def test_what_is_no_filter_is_refused(workspace: Workspace) -> None:
    """The text is named, with how a filter is written."""
    write(workspace, NAME, rows())
    with pytest.raises(UsageError, match="nobody"):
        trials(workspace, "id = 1", "nobody = 2")


@pytest.mark.parametrize(("columns", "layouts"), [("", 0), ("a", 1), ("ab", 5), ("abc", 13), ("abcde", 14)])
def test_candidates_grow_with_the_columns_that_filters_use(columns: str, layouts: int) -> None:
    """One column alone, and orders and curves over two and three; at most fourteen trials."""
    found = layout_candidates(list(columns))
    assert len(set(found)) == len(found) == layouts
