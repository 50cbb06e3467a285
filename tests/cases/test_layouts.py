"""Layouts: what filters would read in other orders of rows, and what is applied of that."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from icewright.adapters.engines.service.layout_trials import LayoutTrials
from icewright.core.errors import CommitConflict, ConfigError, Refused, UsageError
from icewright.core.events.model import Message
from icewright.core.events.parse import messages
from icewright.core.filters import filter_template
from icewright.core.guardrails import parse_guardrail
from icewright.core.layout import (
    FileSizes,
    LayoutDecision,
    LayoutReport,
    LayoutTrial,
    LayoutVerdict,
    RowLayout,
    layout_candidates,
)
from icewright.core.table import TableRef
from icewright.flow.layout import apply_layout, predict_layouts, recorded_filters
from tests.cases.conftest import ground, workspace
from tests.cases.workspace import NAME, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]

ROWS, FILES = 4_000, 8
TARGET = "write.target-file-size-bytes"
UNMEASURED = {"layout.apply": True, "layout.measure": False}
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
    return predict_layouts(workspace.app.runtime, ref(NAME), filters)


def test_a_layout_reads_what_was_predicted_once_it_is_written(workspace: Workspace) -> None:
    """The files as they are count as PyIceberg plans them, and so does the best layout, within a tenth."""
    table = write(workspace, NAME, rows())
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties({TARGET: str(size // FILES)})
    report = trials(workspace, *FILTERS)
    assert report.current.bytes_read == planned(table, FILTERS)
    assert report.sampled_rows == ROWS
    by_layout = {trial.layout: trial.bytes_read for trial in report.trials}
    layout = RowLayout(("customer",))
    written = write(workspace, "sales.sorted", rows().sort_by([("customer", "ascending")]))
    assert by_layout[layout] == pytest.approx(planned(written, FILTERS), rel=0.1)
    assert report.best.bytes_read <= by_layout[layout] < report.current.bytes_read
    assert report.settings["compact.strategy"] in {"sort", "zorder"}
    pair = trials(workspace, "id = 1 and customer = 'c017'").trials[-1].layout
    assert pair == RowLayout(("id", "customer"), zorder=True), "in one order in each process, else it is applied anew"
    assert report.runs_to_pay == -(-2 * report.table_bytes // (report.current.bytes_read - report.best.bytes_read))


def _set_target(value: str, document: dict[str, Any]) -> None:
    document["properties"][TARGET] = value


def test_a_table_in_the_right_order_is_left_as_it_is(workspace: Workspace) -> None:
    """No layout is clearly better, so none is recommended; neither is one where no filter can skip a file."""
    write(workspace, NAME, rows(), **{TARGET: "2000"})
    assert trials(workspace, "id = 17").settings == {}
    report = trials(workspace, "customer is not null")
    assert (report.settings, report.runs_to_pay, report.current.bytes_read) == ({}, None, report.table_bytes)


def test_smaller_files_read_what_was_predicted_once_they_are_written(workspace: Workspace) -> None:
    """A quarter of the target makes four times the files; a size beyond the partitions is not tried."""
    table = write(workspace, NAME, rows())
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    sizes = FileSizes(size / 2, opening=size / 100, others=(size / 8, 2 * size))
    found = workspace.app.runtime.engine.try_layouts(ref(NAME), FILTERS, sizes)
    assert {trial.layout.target for trial in found.trials if trial.layout} == {None, size / 8}
    by_layout = {trial.layout: trial for trial in found.trials}
    small = by_layout[RowLayout(("customer",), target=size / 8)]
    written = write(workspace, "sales.sorted", rows().sort_by([("customer", "ascending")]))
    assert small.bytes_read == pytest.approx(planned(written, FILTERS), rel=0.1)
    assert small.bytes_read < by_layout[RowLayout(("customer",))].bytes_read
    assert [small.opening, found.current.opening] == pytest.approx([8 / 100, 2 / 100])
    assert found.settings["compact.target_file_size_mb"] == size / 8 / (1 << 20)


@pytest.mark.parametrize("value", ["128MB", "0"])
def test_a_target_that_no_writer_of_iceberg_reads_is_named(value: str, workspace: Workspace) -> None:
    """Compaction runs on no such table, so that no layout would be written either."""
    write(workspace, NAME, rows())
    edit(workspace.metadata_file(), partial(_set_target, value))
    with pytest.raises(ConfigError, match=rf"property {TARGET}: '{value}'"):
        trials(workspace, "id = 17")


def test_what_is_no_filter_is_refused(workspace: Workspace) -> None:
    """The text is named, with how a filter is written."""
    write(workspace, NAME, rows())
    with pytest.raises(UsageError, match="--filters nobody = 2: the table has no column nobody"):
        trials(workspace, "id = 1", "nobody = 2")


def test_a_column_in_a_struct_is_not_the_one_of_its_name(workspace: Workspace) -> None:
    """Bounds of the column outside say nothing about it, and values of it need no type that the other has."""
    inside = pa.StructArray.from_arrays([pa.array([f"x{number}" for number in range(ROWS)])], names=["id"])
    write(workspace, NAME, rows().append_column("place", inside))
    found = trials(workspace, "place.id = 'x17'", "id = 17")
    assert found.table_bytes <= found.current.bytes_read < 1.5 * found.table_bytes
    assert found.current.bytes_read - found.table_bytes == trials(workspace, "id = 17").current.bytes_read


def test_a_list_of_many_values_is_compared_as_any_other(workspace: Workspace) -> None:
    """Dashboards write them; ten thousand values find the files that each of them finds."""
    write(workspace, NAME, rows())
    many = ", ".join(map(str, range(3 * ROWS // FILES, 3 * ROWS // FILES + 10_000)))
    one = trials(workspace, f"id >= {3 * ROWS // FILES}")
    assert trials(workspace, f"id in ({many})").current.bytes_read == one.current.bytes_read


def report(number: int, condition: object, now: datetime) -> Message:
    """The scan report of a query, as Iceberg's clients send it."""
    body = {"report-type": "scan-report", "table-name": str(ref(NAME)), "snapshot-id": number, "filter": condition}
    (message,) = messages(body, "application/json", {}, now)
    return message


def test_filters_that_engines_report_need_no_file(workspace: Workspace) -> None:
    """Values come from the rows, days from their age; what is of no column is left out, and each filter can be read."""
    table = spread(workspace)
    customer = {"type": "eq", "term": "customer", "value": "(hash-41d6cbd5)"}
    lately = {"type": "gt-eq", "term": "day", "value": "(date-20-days-ago)"}
    span = {"type": "and", "left": {"type": "gt", "term": "id", "value": "(4-digit-int)"},
            "right": {"type": "lt", "term": "id", "value": "(4-digit-int)"}}  # fmt: skip
    with pytest.raises(UsageError, match="no scan report"):
        recorded_filters(workspace.app.runtime, ref(NAME))
    conditions = [*[customer] * 8, {"type": "and", "left": customer, "right": lately}, span]
    conditions += [{"type": "eq", "term": "nobody", "value": 1}, True]
    now = workspace.clock.now()
    sent = [report(number, condition, now) for number, condition in enumerate(conditions)]
    workspace.app.runtime.store.inbox.receive(sent, now)
    filters, runs = recorded_filters(workspace.app.runtime, ref(NAME))
    rates = workspace.app.runtime.store.inbox.filters(ref(NAME), now)
    assert runs == pytest.approx(sum(rates.values()) * 10 / 11 / len(filters)), "nobody's filter does not count"
    kinds = Counter(re.sub(r"'c\d+'|\d+$|(?<=[<>] )\d+", "?", text) for text in filters)
    day = (now - timedelta(days=20)).date()
    assert kinds == {
        '"customer" = ?': 80,
        f'("customer" = ? and "day" >= \'{day}\')': 10,
        '("id" > ? and "id" < ?)': 10,
    }
    assert all(table.scan(text).to_arrow().num_rows for text in filters if "customer" not in text)
    best = predict_layouts(workspace.app.runtime, ref(NAME), filters).settings
    assert str(best["compact.sort_order"]).startswith("customer")


def test_filters_are_made_of_odd_values_and_names(workspace: Workspace) -> None:
    """What the parser of filters cannot read is not drawn: the rest of the values and columns make filters."""
    kinds: dict[str, Any] = {
        "text": ["it's", "back\\slash", "new\nline", ""],
        "number": [float("nan"), float("inf"), 1e-9, -2.5e22],
        "day": [date(1, 1, 1), date(9999, 12, 31), date(2026, 1, 1), None],
        "at": pa.array([0, 1, -1, 1_700_000_000_123_456], pa.timestamp("us", "UTC")),
        "order by": [True, False, None, True],
        "a.b": [1, 2, 3, 4],
    }
    catalog = workspace.icebergs["lake"]
    catalog.create_namespace_if_not_exists("sales")
    content = pa.table(kinds)
    catalog.create_table(NAME, content.schema).append(content)
    templates = {filter_template({"type": "gt-eq", "term": name, "value": 1}): 1.0 for name in kinds}
    engine = workspace.app.runtime.engine
    filters = engine.draw_filters(ref(NAME), templates, workspace.clock.now())
    assert {text.partition(" >=")[0] for text in filters} == {'"text"', '"number"', '"day"', '"at"', '"order by"'}
    assert engine.try_layouts(ref(NAME), filters, FileSizes(1 << 20)).filters == len(filters)


@pytest.mark.parametrize(("columns", "layouts"), [("", 0), ("a", 1), ("ab", 5), ("abc", 13), ("abcde", 14)])
def test_candidates_grow_with_the_columns_that_filters_use(columns: str, layouts: int) -> None:
    """One column alone, and orders and curves over two and three; at most fourteen trials."""
    found = layout_candidates(list(columns))
    assert len(set(found)) == len(found) == layouts


def applied(workspace: Workspace, *, dry_run: bool = False, often: float = 100, **knobs: object) -> LayoutDecision:
    """What is decided where the policy allows it, for queries that run often."""
    said = {name.replace("__", "."): value for name, value in knobs.items()}
    runtime = workspace.runtime({**UNMEASURED, **said})
    return apply_layout(runtime, ref(NAME), FILTERS[:1], often, dry_run=dry_run)[1]


def rule(workspace: Workspace) -> Mapping[str, Any]:
    """The stored settings of the table."""
    versions = workspace.app.runtime.store.rules.versions(ref(NAME).parts)
    return versions[0].settings if versions else {}


def set_rule(workspace: Workspace, **settings: object) -> None:
    """Set the table's rule as a person does."""
    said = {name.replace("__", "."): value for name, value in settings.items()}
    workspace.app.runtime.store.rules.put(ref(NAME).parts, said, "a person", workspace.clock.now(), None)


def spread(workspace: Workspace) -> Table:
    """A table whose customers are in every file."""
    table = write(workspace, NAME, rows())
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(size // FILES)})
    workspace.detect()
    return table


def test_a_layout_is_applied_only_where_a_policy_allows_it(workspace: Workspace) -> None:
    """Without `layout.apply` nothing happens; a dry run decides as the run does, and other settings stay.

    It goes with its column, by which no compaction could sort.
    """
    table = spread(workspace)
    with pytest.raises(Refused, match=r"layout\.apply is false"):
        apply_layout(workspace.app.runtime, ref(NAME), FILTERS, 1)
    set_rule(workspace, importance="high")
    assert "nobody knows how often" in apply_layout(
        workspace.runtime({"layout.apply": True}), ref(NAME), FILTERS, None
    )[1].reason  # fmt: skip
    said = applied(workspace, dry_run=True)
    assert (said.verdict, rule(workspace)) == (LayoutVerdict.APPLY, {"importance": "high"})
    assert applied(workspace) == said
    order = {"compact.strategy": "sort", "compact.sort_order": "customer"}
    assert rule(workspace) == {"importance": "high", **order, "layout.read_before": 1.0}
    assert "no compaction" in applied(workspace).reason
    (event,) = workspace.app.runtime.store.views.list_activity("layout_changed", None, None, 9).items
    assert (event["ref"], event["details"]) == (ref(NAME), {"summary": said.reason, **order})
    with table.update_schema() as change:
        change.rename_column("customer", "client")
    gone = apply_layout(workspace.runtime(UNMEASURED), ref(NAME), ("id = 17",), 100)[1]
    assert (gone.verdict, rule(workspace)) == (LayoutVerdict.TAKE_BACK, {"importance": "high"})


@pytest.mark.parametrize("where", ["stored", "elsewhere", "table", "property"])
def test_an_order_that_a_person_chose_is_left(where: str, workspace: Workspace) -> None:
    """Whatever says how rows lie, before or after the layout was applied, holds: the layout is not applied, or goes."""
    table = spread(workspace)

    def choose() -> None:
        match where:
            case "stored":
                set_rule(workspace, compact__sort_order="id")
            case "elsewhere":
                store = workspace.app.runtime.store
                store.rules.put(("lake", "sales"), {"compact.strategy": "binpack"}, "one", workspace.clock.now(), None)
            case "table":
                with table.refresh().update_sort_order() as change:
                    change.asc("id", IdentityTransform())
            case "property":
                with table.refresh().transaction() as change:
                    change.set_properties({"icewright.compact.sort_order": "id"})

    if where != "stored":  # a person's version is in the place of ours
        assert applied(workspace).verdict is LayoutVerdict.APPLY
        choose()
        assert applied(workspace).verdict is LayoutVerdict.TAKE_BACK
        assert rule(workspace) == {}
    else:
        choose()
    before = rule(workspace)
    found = applied(workspace)
    assert (found.verdict, rule(workspace)) == (LayoutVerdict.KEEP, before)
    assert "that stays as it is" in found.reason


@dataclass
class SmallerFiles:
    """An engine that finds the quarter of the default target best, where it is among those to try."""

    of: Any

    def try_layouts(self, table: TableRef, filters: Sequence[str], sizes: FileSizes) -> LayoutReport:
        """Find less to read in small files, and most as the files are."""
        assert sizes.target == 512 << 20 or not sizes.others
        order = RowLayout(("customer",))
        trials = [LayoutTrial(None, 1000), LayoutTrial(order, 500)]
        trials += [LayoutTrial(replace(order, target=size), 100) for size in sizes.others[:1]]
        return LayoutReport(table, len(filters), 1000, ROWS, tuple(trials), target=sizes.target)

    def __getattr__(self, name: str) -> object:
        return getattr(self.of, name)


@pytest.mark.parametrize("who", ["nobody", "the rule", "a namespace", "the table", "a guardrail", "a namespace, later"])
def test_a_target_is_set_only_where_nobody_else_sets_one(who: str, workspace: Workspace) -> None:
    """It goes with the layout that it came with; a person's stays, and is what the layouts are tried with."""
    table = write(workspace, NAME, rows())
    workspace.detect()
    rules, now = workspace.app.runtime.store.rules, workspace.clock.now()
    if who == "the rule":
        set_rule(workspace, compact__target_file_size_mb=256.0)
    if who == "a namespace":
        rules.put(("lake", "sales"), {"compact.target_file_size_mb": 256.0}, "one", now, None)
    if who == "the table":
        with table.transaction() as change:
            change.set_properties({TARGET: str(256 << 20)})
    own = dict(rule(workspace))

    def decided() -> LayoutDecision:
        runtime = workspace.runtime(UNMEASURED)
        bounds = (parse_guardrail("", "compact.target_file_size_mb >= 256"),) if who == "a guardrail" else ()
        policy, engine = replace(runtime.policy(), guardrails=bounds), SmallerFiles(runtime.engine)
        runtime = replace(runtime, engine=engine, policy=lambda: policy)  # type: ignore[arg-type] # but for two calls
        return apply_layout(runtime, ref(NAME), FILTERS[:1], 100)[1]

    assert decided().verdict is LayoutVerdict.APPLY
    small = {"compact.target_file_size_mb": 128.0} if who in {"nobody", "a namespace, later"} else {}
    order = {"compact.strategy": "sort", "compact.sort_order": "customer", "layout.read_before": 1.0}
    assert rule(workspace) == own | order | small
    set_rule(workspace, **rule(workspace), importance="high")
    assert "no compaction" in decided().reason, "it is known again, also where a person sets something else"
    if who == "a namespace, later":
        rules.put(("lake", "sales"), {"compact.target_file_size_mb": 256.0}, "one", now, None)
    else:
        rules.put(("lake", "sales"), {"compact.sort_order": "id"}, "one", now, None)
    assert (decided().verdict, rule(workspace)) == (LayoutVerdict.TAKE_BACK, own | {"importance": "high"})


@pytest.mark.parametrize(("dry_run", "measure"), [(True, True), (True, False), (False, False)])
def test_no_layout_passes_a_guardrail(workspace: Workspace, *, dry_run: bool, measure: bool) -> None:
    """What the guardrails of the configuration do not allow is refused, by the dry run too."""
    spread(workspace)
    runtime = workspace.runtime({**UNMEASURED, "layout.measure": measure})
    policy = replace(runtime.policy(), guardrails=(parse_guardrail("", "compact.strategy in binpack"),))
    with pytest.raises(ConfigError, match="passes the guardrail"):
        apply_layout(replace(runtime, policy=lambda: policy), ref(NAME), FILTERS[:1], 100, dry_run=dry_run)
    assert rule(workspace) == {}


def test_a_rule_that_changes_during_the_trials_wins(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person sets meanwhile is not overwritten: the run ends, and the next one sees it."""
    spread(workspace)
    trial = LayoutTrials.run

    def meanwhile(self: LayoutTrials, sizes: FileSizes) -> LayoutReport:
        set_rule(workspace, compact__sort_order="day")
        return trial(self, sizes)

    monkeypatch.setattr(LayoutTrials, "run", meanwhile)
    with pytest.raises(CommitConflict, match="rule of the table was changed"):
        applied(workspace)
    assert rule(workspace) == {"compact.sort_order": "day"}


def test_a_crash_leaves_a_layout_with_its_record_or_none(workspace: Workspace) -> None:
    """Killed right after the rule was set, the next run knows the layout, what was before, and watches it."""
    spread(workspace)

    class Killed(BaseException):
        """A kill is no error."""

    def kill(*_: object) -> None:
        raise Killed

    dying = replace(workspace.runtime(UNMEASURED), emit=kill)
    with pytest.raises(Killed):
        apply_layout(dying, ref(NAME), FILTERS[:1], 100)
    assert rule(workspace)["layout.read_before"] == 1.0
    found = applied(workspace)
    assert (found.verdict, "100% before" in found.reason) == (LayoutVerdict.KEEP, True)


def test_a_person_s_undo_is_the_last_word(workspace: Workspace) -> None:
    """Settings that a person removes are not applied again, and those that a person sets again are the person's."""
    spread(workspace)
    applied(workspace)
    order = dict(rule(workspace))
    set_rule(workspace)
    assert "was applied before" in applied(workspace).reason
    set_rule(workspace, **order)
    assert "that stays as it is" in applied(workspace).reason
