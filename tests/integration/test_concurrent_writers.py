"""Writers that never stop: Spark and PyIceberg commit while everything of ours runs, and nothing of theirs is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.flow.reconcile import reconcile_interrupted
from tests.integration.bench import Bench, make_old
from tests.integration.beside import beside
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

ROUNDS, MOST_ROUNDS = 3, 12  # until every operation has committed against the writers
EXPECTED = {Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS}
KNOBS = {
    "compact.min_input_files": 2,
    "compact.hot_partitions": "include",
    "rewrite_manifests.min_manifests": 2,
    "deletion.delay_hours": 0,
    "expire_snapshots.retention_hours": 1,
    "expire_snapshots.min_snapshots_to_keep": 1,
    "remove_orphans.mode": "delete",
    "remove_orphans.older_than_hours": 24,
}


@dataclass
class Writers:
    """What the writers have committed for sure."""

    bench: Bench
    name: str
    stop: threading.Event = field(default_factory=threading.Event)
    ids: list[int] = field(default_factory=list)
    refs: dict[str, int] = field(default_factory=dict)

    def spark(self) -> None:
        """Single rows, each an INSERT."""
        number = 1000
        while not self.stop.is_set():
            insert(self.bench, self.bench.lake.quoted(self.name), f"({number}, 'spark')")
            self.ids.append(number)
            number += 1
            self.stop.wait(0.5)

    def pyiceberg(self) -> None:
        """Appends, and a tag or branch on each head; a lost commit is tried again."""
        number = 1_000_000
        while not self.stop.is_set():
            try:
                table = self.bench.lake.catalog.load_table(self.name)
                schema = table.schema().as_arrow()
                table.append(pa.Table.from_pylist([{"id": number, "part": "py"}], schema=schema))
                self.ids.append(number)
                head = table.current_snapshot()
                assert head
                ref, manage = f"ref-{number}", table.manage_snapshots()
                make = manage.create_tag if number % 2 else manage.create_branch
                make(head.snapshot_id, ref).commit()
                self.refs[ref] = head.snapshot_id
            except CommitFailedException:
                continue
            finally:
                number += 1
            self.stop.wait(1)


@pytest.mark.cases(6, 75)  # writers append, tag and branch; they delete nothing
def test_nothing_of_the_writers_is_lost(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Every row, tag and branch that was committed is there afterwards, and every ref reads what it held."""
    name = new_name("busy")
    quoted = create(bench, name, "id int, part string", "part", {"commit.retry.num-retries": "20"})
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a')", "(4, 'b'), (5, 'c')", "(6, 'a')")
    backdate_all(bench, name, 90, 50)
    make_old(bench.folder(name), days=3)
    writers = Writers(bench, name)
    outcomes = []
    with beside(writers.stop, writers.spark, writers.pyiceberg) as errors:
        for number in range(MOST_ROUNDS):
            outcomes += [bench.run(name, operation, KNOBS) for operation in Operation]
            if errors or (number >= ROUNDS and _committed(outcomes) >= EXPECTED):
                break
            _grow_old(bench, name, number)
    reconcile_interrupted(bench.with_knobs(KNOBS))  # what a commit under way held back waits in the ledger
    assert not errors
    assert not [o for o in outcomes if o.state is OperationState.FAILED]
    assert _committed(outcomes) >= EXPECTED, [f"{o.operation}: {o.reason}" for o in outcomes]
    found = sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}"))  # noqa: S608 - quoted
    assert found == sorted([*range(1, 7), *writers.ids])
    _refs_are_whole(bench, name, writers)


def _committed(outcomes: Sequence[Outcome]) -> set[Operation]:
    return {o.operation for o in outcomes if o.state is OperationState.COMMITTED}


def _grow_old(bench: Bench, name: str, number: int) -> None:
    """Plant an orphan, so that the next scan has something to delete."""
    folder = bench.folder(name)
    orphan = folder / "data" / f"orphan-{number}.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x")
    make_old(folder, days=4, only=[orphan.name])


def _refs_are_whole(bench: Bench, name: str, writers: Writers) -> None:
    refs = {r.name: r.snapshot_id for r in bench.metadata(name).refs}
    assert writers.refs.items() <= refs.items()
    assert writers.refs
    read = bench.read(name, writers.refs)
    for ref in writers.refs:
        assert read[ref][0] >= 7
    planted = list((bench.folder(name) / "data").glob("orphan-*.parquet"))
    assert len(planted) <= 1
