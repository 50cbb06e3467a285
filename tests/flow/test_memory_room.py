"""Room for metadata: huge tables wait in turn, none waits for ever, and small ones never do."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from icewright.core.errors import MemoryBusy
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.evaluator import Evaluator
from icewright.ports.memory import ROOM, MetadataRoom
from icewright.testing import REF
from tests.flow.bench import Bench


class Taken:
    """Threads that have taken bytes and hold them until told."""

    def __init__(self, room: MetadataRoom) -> None:
        self.room, self.release = room, threading.Event()
        self.threads: list[threading.Thread] = []

    def take(self, *lengths: int) -> threading.Event:
        """Let a table take these in a thread of its own; set when it has."""
        has = threading.Event()

        def hold() -> None:
            with self.room.table():
                for length in lengths:
                    self.room.reserve(length)
                has.set()
                self.release.wait(60)

        self.threads.append(threading.Thread(target=hold))
        self.threads[-1].start()
        return has

    def until(self, held: int, waiting: int) -> None:
        """Wait until so much is held and so many wait."""
        while self.room.state() != (held, waiting):
            self.release.wait(0.01)

    def end(self) -> None:
        """Let all go."""
        self.release.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def taken() -> Iterator[Taken]:
    """A room of 6,400 bytes, in which 100 are few."""
    made = Taken(MetadataRoom(6400))
    yield made
    made.end()


@pytest.mark.cases(150)
def test_tables_together_keep_to_the_room() -> None:
    """Thirty threads, each of which grows twice: never more than the room and one table, and all end."""
    room, most, dice = MetadataRoom(6400), [0], random.Random(7)

    def evaluate(*lengths: int) -> None:
        with room.table():
            for length in lengths:
                room.reserve(length)
                most.append(room.state()[0])

    sizes = [(dice.randint(1, 4000), dice.randint(1, 9000)) for _ in range(30)]
    threads = [threading.Thread(target=evaluate, args=size) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert max(most) <= 6400 + max(map(sum, sizes))
    assert room.state() == (0, 0)


@pytest.mark.cases(150)
def test_a_table_larger_than_the_room_is_alone(taken: Taken) -> None:
    """It waits until the others have ended, and whoever comes later waits behind it; small ones pass."""
    assert taken.take(3000).wait(60)
    huge = taken.take(9000)
    taken.until(3000, 1)
    later = taken.take(1000)
    taken.until(3000, 2)
    assert taken.take(50, 50).wait(60), "it is small"
    assert not huge.is_set()
    assert not later.is_set()
    taken.release.set()
    assert huge.wait(60)
    assert later.wait(60)


@pytest.mark.cases(150)
def test_tables_that_wait_for_each_other_go_on(taken: Taken) -> None:
    """Each holds some and wants more than is left: the oldest gets it."""
    with taken.room.table():
        taken.room.reserve(3500)
        later = taken.take(2500, 2000)
        taken.until(6000, 1)
        taken.room.reserve(3000)
        assert not later.is_set()
    assert later.wait(60)


@pytest.mark.cases(150)
def test_a_table_that_hangs_keeps_the_room_for_a_while_only() -> None:
    """Without a further read for five minutes it is not waited for."""
    now = [1.0]
    hung = Taken(MetadataRoom(6400, lambda: now[0]))
    try:
        assert hung.take(6000).wait(60)
        with hung.room.table(patience=0), pytest.raises(MemoryBusy, match=r"reading\.max_total_mb"):
            hung.room.reserve(1000)
        now[0] += 301
        with hung.room.table(patience=0):
            hung.room.reserve(1000)
    finally:
        hung.end()


@pytest.mark.cases(150)
def test_an_evaluation_without_room_is_put_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is no fault's: it has no error, and is evaluated half a minute later."""
    monkeypatch.setattr("icewright.flow.evaluator.MEMORY_PATIENCE", 0.0)
    bench.table()
    load = bench.catalog.load

    def taking(ref: TableRef) -> TableMetadata:
        ROOM.reserve(ROOM.max_bytes // 2)
        return load(ref)

    bench.catalog.load = taking  # type: ignore[method-assign]
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    evaluator, others = Evaluator(bench.runtime(), ["lake"]), Taken(ROOM)

    def evaluated_at() -> object:
        while not evaluator.due():
            pass
        row = bench.store.tables.get(REF)
        assert row is not None
        assert row.error is None
        return row.evaluated_at

    try:
        assert others.take(ROOM.max_bytes).wait(60)
        assert evaluated_at() is None
        others.end()
        bench.clock.advance(minutes=1)
        assert evaluated_at() is not None
    finally:
        others.end()
        evaluator.close()
