"""What every state store does with events: each once, tables looked at soon, scans added up. See `ports.Events`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from icewright.adapters.store.schema import RECEIVED, SCANS, TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.core.events.model import CommitReported, Event
from icewright.core.table import TableRef
from icewright.ports import Pointer, Receipt
from icewright.testing import NOW, REF
from icewright.testing.contracts.inbox import (
    DAY,
    LATER,
    OTHER,
    evaluated_at,
    listed_at,
    push,
    record_all,
    scan,
    sent,
    touched,
)


def sums(store: SqlStore) -> Sequence[tuple[Any, ...]]:
    """The scans of each table and day."""
    columns = [TABLES.c.name, *(SCANS.c[n] for n in ("day", "queries", "planning_ms", "duration_ms", "files", "bytes"))]
    with store.engine.begin() as connection:
        query = sa.select(*columns).select_from(SCANS).join(TABLES).order_by(TABLES.c.name, SCANS.c.day)
        return [tuple(row) for row in connection.execute(query)]


def test_an_event_counts_once(store: SqlStore) -> None:
    """However often it comes, alone, in a batch, or twice in one; after a day its id is forgotten."""
    record_all(store, REF)
    one, two = sent(touched(REF), scan()), sent(scan(), message_id="2")
    assert store.inbox.receive([one, one, two], NOW) == Receipt(2, 1, (REF,), ())
    store.tables.schedule_evaluation([REF], None)
    assert store.inbox.receive([two, one], LATER) == Receipt(0, 2, (), ())
    assert evaluated_at(store) == [None]
    assert sums(store)[0][2] == 2
    assert store.inbox.receive([one], NOW + DAY) == Receipt(1, 0, (REF,), ())
    with store.engine.begin() as connection:
        assert connection.execute(sa.select(RECEIVED.c.id)).scalars().all() == ["1"]


def test_many_at_once(store: SqlStore) -> None:
    """Whoever sends what to how many processes, every event counts once and every scan is added."""
    tables = [TableRef("lake", ("sales",), f"t{n}") for n in range(8)]
    record_all(store, *tables)

    def send(number: int) -> int:
        order = tables[number % 8 :] + tables[: number % 8]
        events: list[Event] = [touched(*order), *(scan(ref) for ref in order)]
        return push(store, *events, message_id=str(number // 2)).received

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(48))) == 24
    assert {row[2] for row in sums(store)} == {24}


@pytest.mark.parametrize("event", [touched(OTHER), CommitReported(OTHER.parts), scan(OTHER)])
def test_a_table_that_is_not_known(store: SqlStore, event: Event) -> None:
    """Lets its catalog be asked, though nothing else is to be asked; a dropped one is not known either."""
    record_all(store, REF, OTHER)
    store.tables.record_listing("lake", [Pointer(REF, "m")], NOW)
    assert push(store, event, ask=False) == Receipt(1, 0, (), ("lake.sales.other",))
    assert listed_at(store) == LATER
    assert sums(store) == []


def test_scans_are_added_up_by_day(store: SqlStore) -> None:
    """For each table and UTC day; no table is looked at for having been read."""
    record_all(store, REF, OTHER)
    push(store, scan(), scan(OTHER), scan(planning_ms=0.5))
    push(store, scan(at=NOW - DAY), scan(), message_id="2")
    push(store, scan(at=NOW - 31 * DAY), message_id="3")  # counts no more, and would stay for good
    assert sums(store) == [
        ("orders", date(2026, 11, 20), 1, 10.5, 100, 3, 2**40),
        ("orders", date(2026, 11, 21), 3, 21.5, 300, 9, 3 * 2**40),
        ("other", date(2026, 11, 21), 1, 10.5, 100, 3, 2**40),
    ]
    assert (evaluated_at(store, REF, OTHER), listed_at(store)) == ([None, None], NOW + timedelta(hours=1))


def test_sums_end_at_what_can_be_counted(store: SqlStore) -> None:
    """A sum that is too large to count stays at the largest number, and nothing fails."""
    record_all(store, REF)
    most = scan(files=2**61, bytes=2**61)
    for number in range(3):
        push(store, most, message_id=str(number))
    assert [row[5:] for row in sums(store)] == [(2**62, 2**62)]
