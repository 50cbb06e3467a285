"""What detection makes of catalogs that answer oddly, and of tables that are out of sight for a while."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any

import pytest

from icewright.core.errors import (
    CatalogUnavailable,
    EngineUnavailable,
    IcewrightError,
    StorageUnavailable,
    StoreUnavailable,
)
from icewright.flow.detect import detect
from icewright.flow.evaluator import evaluate_due
from icewright.flow.runtime import Scope
from icewright.ports import Pointer
from icewright.testing import NOW, REF, partition
from tests.flow.bench import Bench, detect_due
from tests.flow.test_loops import looked

AGEING = tuple(100 - hours for hours in range(10))  # snapshots that are due for expiry in three days


def test_ctrl_c_waits_for_no_catalog(bench: Bench) -> None:
    """A command that asks a mute catalog ends at once."""
    answer, waited = threading.Event(), []
    main, interrupted = threading.main_thread().ident or 0, threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def mute() -> Sequence[Pointer]:
        while sys._current_frames()[main].f_back.f_code.co_name != "result":  # type: ignore[union-attr]
            pass  # it starts threads still, and does not wait yet
        while not interrupted.is_set():  # a signal right before the wait begins does not end it
            signal.pthread_kill(main, signal.SIGINT)
            interrupted.wait(0.01)
        waited.append(answer.wait(10))
        return []

    bench.scopes["lake"] = Scope(enabled=True, timeout=timedelta(minutes=5))
    bench.catalog.pointers = mute  # type: ignore[method-assign]
    running = set(threading.enumerate())
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            detect(bench.runtime(), ["lake"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert waited == []
    answer.set()
    for lane in set(threading.enumerate()) - running:
        lane.join(10)


@pytest.mark.cases(150)
def test_a_table_of_more_bytes_than_a_store_can_count(bench: Bench) -> None:
    """It is unreadable, and says why; the evaluation of others goes on."""
    huge, well = bench.table("huge"), bench.table("well")
    bench.files.partitions[huge] = (partition(files=1, mb=1 << 45),)
    detect_due(bench.runtime())
    assert set(evaluate_due(bench.runtime(), ["lake"])) == {huge, well}
    rows = {row.ref: row for row in bench.store.tables.list()}
    assert "OverflowError" in (rows[huge].error or "")
    assert (rows[well].error, rows[well].health is not None) == (None, True)


def test_a_fault_of_ours_with_one_catalog_is_none_of_the_others(bench: Bench) -> None:
    """It is told as if the catalog had failed, which is asked again after a while."""
    bench.table()
    bench.table(catalog="pond")

    def odd() -> Sequence[Pointer]:
        raise ValueError("an answer that nobody foresaw")

    bench.catalog.pointers = odd  # type: ignore[method-assign]
    found = detect_due(bench.runtime())
    said = "catalog lake could not be listed: unexpected ValueError: an answer that nobody foresaw"
    assert (found.tables, found.errors) == (1, (("lake", said),))
    assert {row.ref.catalog for row in bench.store.tables.list()} == {"pond"}
    assert {row.name: row.failures for row in bench.store.catalogs.list()} == {"lake": 1, "pond": 0}


def test_a_store_that_fails_is_no_fault_of_the_catalog(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that the store does not take is kept and recorded when it does; no breaker opens in between."""
    ref, answers = bench.table(), iter([StoreUnavailable("locked"), None, StoreUnavailable("locked")])
    record, recorded = bench.store.tables.record_listing, bench.store.catalogs.record_read

    def fails_or(call: Callable[..., Any], *arguments: Any) -> Any:
        if (error := next(answers, None)) is not None:
            raise error
        return call(*arguments)

    monkeypatch.setattr(bench.store.tables, "record_listing", partial(fails_or, record))
    monkeypatch.setattr(bench.store.catalogs, "record_read", partial(fails_or, recorded))
    assert detect_due(bench.runtime()).errors == ()
    assert [row.ref for row in bench.store.tables.list()] == [ref]
    assert (bench.store.catalogs.list()[0].failures, bench.store.breakers.list()) == (0, [])

    monkeypatch.setattr(bench.store.tables, "record_listing", partial(fails_or, record))
    answers = repeat(StoreUnavailable("away"))
    bench.clock.advance(hours=12)
    with pytest.raises(StoreUnavailable, match="away"):
        detect_due(bench.runtime())
    assert (bench.store.catalogs.list()[0].failures, bench.store.breakers.list()) == (0, [])


@pytest.mark.parametrize("error", [CatalogUnavailable, StorageUnavailable, EngineUnavailable])
def test_a_limit_of_this_process_opens_no_breaker(bench: Bench, error: type[IcewrightError]) -> None:
    """A process that may open no more files could ask nobody: its tables wait, and those of other processes do not."""
    said = error("[Errno 24] Too many open files")
    for number in range(4):
        bench.table(f"t{number}")
    detect_due(bench.runtime())
    bench.files.broken = dict.fromkeys([row.ref for row in bench.store.tables.list()], said)
    evaluate_due(bench.runtime(), ["lake"])
    assert all("Too many open files" in str(row.error) for row in bench.store.tables.list())
    bench.catalog.down = said
    bench.clock.advance(hours=12)
    assert detect_due(bench.runtime()).errors == (("lake", str(said)),)
    assert bench.store.breakers.list() == []


def test_a_table_that_comes_back_into_scope_is_looked_at(bench: Bench) -> None:
    """Though neither the policy nor, perhaps, the table is another: time alone makes it due."""
    ref = bench.table(ages=AGEING)
    looked(bench)
    bench.scopes["lake"] = Scope(enabled=True, tables="other*")
    for _ in range(4):
        bench.clock.advance(hours=12)
        looked(bench)
    bench.catalog.concurrently(ref, properties={"moved": "meanwhile"})
    bench.scopes.clear()
    bench.clock.advance(hours=12)
    looked(bench)
    row = bench.store.tables.get(ref)
    assert row is not None
    assert row.evaluated_location == row.metadata_location
    assert row.evaluate_at is not None


def test_a_table_that_is_gone_for_a_moment_is_looked_at_again(bench: Bench) -> None:
    """Renamed and renamed back between two listings, it has not moved in any of them."""
    ref = bench.table(ages=AGEING)
    looked(bench)
    row = bench.store.tables.get(ref)
    assert row is not None
    assert row.evaluate_at is not None
    bench.clock.time = row.evaluate_at
    away = bench.catalog.tables.pop(ref)
    evaluate_due(bench.runtime(), ["lake"])
    bench.catalog.tables[ref] = away
    for _ in range(8):
        bench.clock.advance(hours=12)
        looked(bench)
    row = bench.store.tables.get(REF)
    assert row is not None
    assert row.evaluated_at is not None
    assert row.evaluated_at > NOW + timedelta(days=3)
