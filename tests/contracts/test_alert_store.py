"""What every store keeps of alerts: one open alert a key, deliveries claimed by one process; and what rules look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.schema import ALERTS, DELIVERIES, TABLES, VERDICTS
from icewright.adapters.store.sql import SqlStore
from icewright.core.alerts import AlertRule, Forget
from icewright.core.conditions import Failure, TableInputs
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import AlertQuery
from icewright.testing import NOW, REF
from icewright.testing.contracts.alerts import (
    DOWN,
    FAILING,
    HOUR,
    NO_SPACE,
    OTHER,
    POND,
    SLACK,
    beginning,
    claimed,
    raised,
    record_all,
    run_job,
)
from icewright.testing.contracts.cases import COMPACT, EXPIRE, MINUTE


def test_what_went_away_in_time_leaves_nothing(store: SqlStore) -> None:
    """A forgotten condition has no row, and nobody is to be told."""
    store.alerts.record_changes([beginning(DOWN, raised=False)], [SLACK], NOW)
    store.alerts.record_changes([Forget(store.alerts.unresolved()[0])], [SLACK], NOW + MINUTE)
    assert claimed(store, SLACK) == []
    with store.engine.begin() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(ALERTS)).scalar() == 0


def test_an_alert_takes_its_tellings_with_it(store: SqlStore) -> None:
    """Whoever prunes old alerts need not know of deliveries."""
    alert = raised(store, SLACK)
    with store.engine.begin() as connection:
        connection.execute(sa.delete(ALERTS).where(ALERTS.c.id == alert.id))
        assert connection.execute(sa.select(sa.func.count()).select_from(DELIVERIES)).scalar() == 0


def test_a_rule_of_a_newer_release_is_left_to_it(store: SqlStore) -> None:
    """Replicas of two releases may share a store: the older one lists, raises and resolves what it knows."""
    known = raised(store, SLACK)
    store.alerts.record_changes([beginning(DOWN)], [SLACK], NOW + MINUTE)
    (unknown, _) = store.alerts.list()
    with store.engine.begin() as connection:
        connection.execute(sa.update(ALERTS).where(ALERTS.c.id == unknown.id).values(rule="of_tomorrow"))
    assert [one.id for one in store.alerts.list(AlertQuery(resolved=None))] == [known.id]
    assert [one.id for one in store.alerts.unresolved()] == [known.id]
    assert [delivery.alert.id for delivery in claimed(store, SLACK, now=NOW + HOUR)] == [known.id]
    assert store.alerts.count_open(None) == {known.severity: 1}


# -- what rules look at


def change(store: SqlStore, ref: TableRef, **values: Any) -> None:
    """Set columns of a table's row."""
    with store.engine.begin() as connection:
        mine = (TABLES.c.catalog == ref.catalog) & (TABLES.c.name == ref.name)
        connection.execute(sa.update(TABLES).where(mine).values(**values))


SIGNS: Sequence[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"health": 50}, None),
    ({"health": 49}, {"health": 49}),
    ({"paused": "by hand", "health": 90}, {"paused": "by hand", "health": 90}),
    ({"error": "broken"}, {"error": "broken"}),
    ({"due_since": NOW - HOUR}, None),
    ({"due_since": NOW - 24 * HOUR}, {"overdue_since": NOW - 24 * HOUR}),
    ({"due_since": NOW - 24 * HOUR, "error": "torn"}, {"error": "torn"}),
    ({"due_since": NOW - 24 * HOUR, "succeeded_at": NOW - HOUR}, None),
    ({"due_since": NOW - 72 * HOUR, "succeeded_at": NOW - 25 * HOUR}, {"overdue_since": NOW - 25 * HOUR}),
    ({"due_since": NOW - 72 * HOUR, "succeeded_at": NOW - 99 * HOUR}, {"overdue_since": NOW - 72 * HOUR}),
    ({"succeeded_at": NOW - 99 * HOUR}, None),
    ({"health": 1, "dropped": True}, None),
    ({"health": 1, "windows": "sat"}, {"health": 1, "windows": "sat"}),
]


def test_signs_of_tables(store: SqlStore) -> None:
    """Tables with which something may be wrong, of the catalogs that were asked for."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(len(SIGNS))]
    record_all(store, *refs, POND)
    change(store, POND, health=0)
    for ref, (values, _) in zip(refs, SIGNS, strict=True):
        change(store, ref, **values)
    found = {signs.ref: signs for signs in store.alerts.table_inputs(["lake"], ["lake"], 50, NOW - 24 * HOUR)}
    wanted = zip(refs, SIGNS, strict=True)
    assert found == {ref: TableInputs(ref, **signs) for ref, (_, signs) in wanted if signs is not None}
    at_rest = store.alerts.table_inputs(["lake"], [], 50, NOW - 24 * HOUR)
    assert [(signs.paused, signs.error) for signs in at_rest] == [("by hand", None), (None, "broken"), (None, "torn")]


def test_failures_of_a_table_that_is_another_now(store: SqlStore) -> None:
    """A failure of the table's earlier uuid counts for nothing, nor does one of a dropped table."""
    record_all(store, REF, OTHER)
    change(store, REF, table_uuid="u2")
    run_job(store, FAILING, state=JobState.FAILED)
    assert store.alerts.failures(["lake"]) == []
    run_job(store, FAILING, state=JobState.FAILED, uuid="u2")
    assert store.alerts.failures(["lake"]) == [Failure(REF, *NO_SPACE)]
    record_all(store, OTHER)
    assert store.alerts.failures(["lake"]) == []


def judge(store: SqlStore, verdicts: Mapping[TableRef, Mapping[str, str]], **values: Mapping[str, str]) -> None:
    """Record verdicts by table and operation, with more of what the rows hold by operation."""
    with store.engine.begin() as connection:
        by_place = {(r.catalog, r.name): r.id for r in connection.execute(sa.select(TABLES))}
        for ref, of_table in verdicts.items():
            for operation, verdict in of_table.items():
                row = {"table_id": by_place[ref.catalog, ref.name], "operation": operation, "verdict": verdict}
                more = {name: of_operation.get(operation) for name, of_operation in values.items()}
                connection.execute(sa.insert(VERDICTS).values(**row, reason="encrypted", at=NOW, **more))


def test_unsupported_tables(store: SqlStore) -> None:
    """Tables of which no operation is due or not due, and one at least says that it cannot."""
    verdicts = {REF: ("unsupported", "blocked"), OTHER: ("unsupported", "not_due"), POND: ("unsupported", "due")}
    record_all(store, *verdicts)
    judge(store, {ref: {COMPACT: first, EXPIRE: second} for ref, (first, second) in verdicts.items()})
    assert store.alerts.reported(AlertRule.UNMAINTAINABLE, ["lake", "pond"]) == {REF: "encrypted"}
    assert store.alerts.reported(AlertRule.UNMAINTAINABLE, ["pond"]) == {}


def test_tables_whose_operations_warn(store: SqlStore) -> None:
    """One of the warnings stands for a table; SQLite finds them by an index of their own, and asks it once."""
    record_all(store, REF, OTHER)
    judge(store, {REF: {COMPACT: "due", EXPIRE: "due"}}, warning={COMPACT: "a", EXPIRE: "b"})
    judge(store, {OTHER: {COMPACT: "due"}})
    asked = list[tuple[str, Any]]()
    sa.event.listen(store.engine, "before_cursor_execute", lambda *call: asked.append(call[2:4]))
    warned = [store.alerts.reported(AlertRule.READER_UNPINNED, [catalog]) for catalog in ("lake", "pond")]
    assert warned == [{REF: "a"}, {}]
    (statement, values), _ = (call for call in asked if "warning" in call[0])
    if store.engine.dialect.name == "sqlite":
        with store.engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        assert "SCAN verdicts USING INDEX ix_verdicts_warning" in [step[3] for step in plan]
