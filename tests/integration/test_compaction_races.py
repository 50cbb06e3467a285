"""Every kind of compaction while writers append, update and delete: the table holds what they wrote, no row more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import CommitFailedException
from pyspark.errors import PySparkException

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench
from tests.integration.beside import beside
from tests.integration.tables import create, insert
from tests.nightly import NIGHTLY

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

ROUNDS = 30 if NIGHTLY else 12
MOST_ROUNDS = 90  # until enough of them have met a table that needed work and a writer that let them commit
COMMITS = 6 if NIGHTLY else 3
PARTS = ("a", "b")
BASE: Mapping[str, object] = {
    "compact.min_input_files": 2,
    "compact.hot_partitions": "include",
    "compact.delete_file_threshold": 1,
    "rewrite_deletes.min_delete_files": 2,
}
KINDS: tuple[tuple[Operation, Mapping[str, object]], ...] = (
    (Operation.COMPACT, BASE),
    (Operation.COMPACT, {**BASE, "compact.engine": "spark"}),
    (Operation.COMPACT, {**BASE, "compact.strategy": "sort", "compact.sort_order": "id"}),
    (Operation.COMPACT, {**BASE, "compact.strategy": "zorder", "compact.sort_order": "id, v"}),
    (Operation.COMPACT, {**BASE, "compact.partial_progress_from_mb": 0}),
    (Operation.REWRITE_DELETES, BASE),
)


@dataclass
class Writers:
    """Two writers, and what they have written for sure."""

    bench: Bench
    name: str
    rows: dict[int, int] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    commits: Counter[str] = field(default_factory=Counter)

    def spark(self) -> None:
        """In a session of its own: rows appended, some updated and one deleted by a MERGE; a lost commit is lost."""
        shared = self.bench.lake.spark()
        session = shared.newSession()
        for key, value in shared.conf.getAll.items():
            if key.startswith("spark.sql.catalog."):
                session.conf.set(key, value)
        quoted = self.bench.lake.quoted(self.name)
        number = 0
        while not self.stop.is_set():
            number += 1
            fresh = [1000 * number + n for n in range(4)]
            values = ", ".join(f"({row}, 0, '{PARTS[row % 2]}')" for row in fresh)
            session.sql(f"INSERT INTO {quoted} VALUES {values}")  # noqa: S608 - quoted
            self.rows |= dict.fromkeys(fresh, 0)
            gone, changed = fresh[0], fresh[1:3]
            source = f"SELECT explode(array({gone}, {changed[0]}, {changed[1]})) AS id"
            try:
                session.sql(
                    f"MERGE INTO {quoted} t USING ({source}) s ON t.id = s.id "
                    f"WHEN MATCHED AND t.id = {gone} THEN DELETE WHEN MATCHED THEN UPDATE SET v = t.v + 1"
                )
            except (PySparkException, Py4JJavaError) as error:
                if not any(sign in str(error) for sign in ("CommitFailedException", "ValidationException")):
                    raise
                self.commits["lost"] += 1
                continue
            del self.rows[gone]
            self.rows |= dict.fromkeys(changed, 1)
            self.commits["merged"] += 1

    def pyiceberg(self) -> None:
        """Single rows; a lost commit is tried again."""
        number = 10_000_000
        while not self.stop.wait(1):
            table = self.bench.lake.catalog.load_table(self.name)
            row = {"id": number, "v": 7, "part": PARTS[number % 2]}
            try:
                table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
            except CommitFailedException:
                continue
            self.rows[number] = 7
            self.commits["appended"] += 1
            number += 1


@pytest.mark.cases(32, 33, 75, 79)
def test_no_row_is_lost_or_comes_back(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Many rounds of all strategies between appends and merges: rows as written, nothing failed."""
    name = new_name("races")
    merging = {"write.merge.mode": "merge-on-read", "write.merge.isolation-level": "snapshot"}  # appends do not disturb
    quoted = create(bench, name, "id bigint, v int, part string", "part", {**merging, "commit.retry.num-retries": "20"})
    insert(bench, quoted, "(1, 0, 'b'), (2, 0, 'a')", "(3, 0, 'b')")
    writers = Writers(bench, name, {1: 0, 2: 0, 3: 0})
    outcomes = []
    with beside(writers.stop, writers.spark, writers.pyiceberg) as errors:
        for number in range(MOST_ROUNDS):
            operation, knobs = KINDS[number % len(KINDS)]
            outcomes.append(bench.run(name, operation, knobs))
            done = sum(o.state is OperationState.COMMITTED and o.operation is Operation.COMPACT for o in outcomes)
            written = writers.commits["merged"] and writers.commits["appended"]
            if errors or (number + 1 >= ROUNDS and done >= COMMITS and written):
                break
    assert not errors
    assert not [o for o in outcomes if o.state is OperationState.FAILED]
    assert done >= COMMITS, outcomes
    assert writers.commits["merged"] > 0
    assert writers.commits["appended"] > 0
    found = {row["id"]: row["v"] for row in bench.sql(f"SELECT id, v FROM {quoted}")}  # noqa: S608 - quoted
    assert found == writers.rows
    assert bench.sql(f"SELECT count(*) FROM {quoted}")[0][0] == len(writers.rows)  # noqa: S608 - quoted
