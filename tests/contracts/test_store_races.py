"""Processes that write to one store at a moment: nobody fails for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from icewright.adapters.store.sql import SqlStore
from icewright.core.alerts import AlertRule, Begin, Condition, Resolve, Severity
from icewright.core.table import TableRef
from icewright.ports import Pointer
from icewright.testing import NOW

TABLES = [TableRef("lake", ("s",), f"t{200 - n:04d}") for n in range(200)]  # names fall as ids rise


def _at_once(*actions: Callable[[], object]) -> None:
    """Do them at the same moment; what one raises is raised."""
    together = Barrier(len(actions))

    def do(action: Callable[[], object]) -> None:
        together.wait()
        action()

    with ThreadPoolExecutor(len(actions)) as pool:
        list(pool.map(do, actions))


def test_two_processes_list_a_catalog(store: SqlStore) -> None:
    """A pass may look while the service does: both have all tables, new ones too, each once."""
    for turn in range(10):
        new = [Pointer(TableRef("lake", (f"s{turn}",), f"t{n}"), "m") for n in range(50)]
        listed = [Pointer(row.ref, row.metadata_location) for row in store.tables.list()] + new
        _at_once(*[lambda listed=listed: store.tables.record_listing("lake", listed, NOW)] * 2)
        assert len(store.tables.list()) == len(listed)


def test_alerts_about_tables_that_move(store: SqlStore) -> None:
    """Alerts are raised in another order than detection goes, and neither waits for the other for ever."""

    def move(location: str) -> None:
        store.tables.record_listing("lake", [Pointer(ref, location) for ref in TABLES], NOW)

    def raised() -> None:
        about = [Condition(AlertRule.JOB_FAILED, str(ref), "failed", ref) for ref in TABLES]
        store.alerts.record_changes([Begin(one, Severity.WARNING, raised=True) for one in about], [], NOW)

    move("m0")
    for turn in range(1, 11):
        _at_once(lambda turn=turn: move(f"m{turn}"), raised)  # type: ignore[misc]
        store.alerts.record_changes([Resolve(alert) for alert in store.alerts.unresolved()], [], NOW)
        assert {row.metadata_location for row in store.tables.list()} == {f"m{turn}"}
