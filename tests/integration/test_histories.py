"""Random histories: whatever writers did to a table, expiry in-service lets go what Spark's procedure lets go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench, snapshot_ids, spark_time
from tests.integration.tables import backdate_all, create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning"),
]

_NUMBERS = itertools.count(1)
_STEP = st.sampled_from(
    ["append", "append", "append", "delete", "overwrite", "tag", "branch", "branch write", "rollback", "compact"]
)


class History:
    """A table and what is done to it; most steps are PyIceberg's, which commits in a few milliseconds."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.name = bench, f"test.history_{next(_NUMBERS)}"
        self.quoted = create(bench, self.name, "id int, part string", "part")
        self.number = 0
        self.branches: list[str] = []

    def rows(self, schema: pa.Schema) -> pa.Table:
        """Two rows that no other step writes."""
        self.number += 1
        made = [{"id": self.number * 10 + i, "part": "ab"[i]} for i in range(2)]
        return pa.Table.from_pylist(made, schema=schema)

    def do(self, step: str) -> None:
        """One step; those that need a history are skipped without one."""
        table = self.bench.lake.catalog.load_table(self.name)
        snapshots = table.metadata.snapshots
        steps: dict[str, Callable[[], Any]] = {
            "append": lambda: table.append(self.rows(table.schema().as_arrow())),
            "delete": lambda: table.delete(f"id < {self.number * 5}"),
            "overwrite": lambda: table.overwrite(self.rows(table.schema().as_arrow()), "part = 'a'"),
            "tag": lambda: self._tag(snapshots),
            "branch": lambda: self._branch(snapshots),
            "branch write": lambda: self._branch_write(table),
            "rollback": lambda: self._rollback(snapshots),
            "compact": lambda: self.bench.call(
                "rewrite_data_files", self.name, "options => map('rewrite-all', 'true')"
            ),
        }
        if step == "append" or table.current_snapshot() is not None:
            steps[step]()

    def _tag(self, snapshots: list[Any]) -> None:
        chosen = snapshots[self.number % len(snapshots)].snapshot_id
        self._ref("create_tag", chosen, 40 if self.number % 2 else None)

    def _branch(self, snapshots: list[Any]) -> None:
        chosen = snapshots[self.number * 7 % len(snapshots)].snapshot_id
        self.branches.append(self._ref("create_branch", chosen, None))

    def _ref(self, make: str, snapshot_id: int, max_age_hours: int | None) -> str:
        self.number += 1
        name = f"ref{self.number}"
        with self.bench.lake.catalog.load_table(self.name).manage_snapshots() as manage:
            age = None if max_age_hours is None else max_age_hours * 3_600_000
            getattr(manage, make)(snapshot_id, name, max_ref_age_ms=age)
        return name

    def _branch_write(self, table: Any) -> None:
        if self.branches:
            table.append(self.rows(table.schema().as_arrow()), branch=self.branches[-1])

    def _rollback(self, snapshots: list[Any]) -> None:
        metadata = self.bench.metadata(self.name)
        head = metadata.current_snapshot
        if head is not None and head.parent_id is not None and head.parent_id in metadata.by_id:
            self.bench.call("rollback_to_snapshot", self.name, f"snapshot_id => {head.parent_id}")


@pytest.mark.cases(1, 2, 7, 10, 11, 17, 19)
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: the first failure is shown as it is
    suppress_health_check=list(HealthCheck),
)
@given(steps=st.lists(_STEP, min_size=6, max_size=14), hours=st.sampled_from([1, 30, 55]), keep=st.integers(1, 3))
def test_expiry_equals_sparks(bench: Bench, steps: list[str], hours: int, keep: int) -> None:
    """Of any history both leave the same snapshots and refs and delete the same files; kept versions read alike."""
    history = History(bench)
    for step in ("append", *steps):
        history.do(step)
    name = history.name
    backdate_all(bench, name, 80, 2)
    read, files = bench.read(name, bench.versions(name)), bench.files(name)
    cutoff = spark_time(datetime.now(UTC) - timedelta(hours=hours))
    with bench.aside(name):
        bench.call("expire_snapshots", name, f"older_than => {cutoff}, retain_last => {keep}")
        theirs = _state(bench, name, files)
    knobs = {"expire_snapshots.retention_hours": hours, "expire_snapshots.min_snapshots_to_keep": keep}
    done = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs)
    assert done.state in (OperationState.COMMITTED, OperationState.SKIPPED), done
    assert _state(bench, name, files) == theirs
    kept = bench.versions(name)
    assert bench.read(name, kept) == {version: read[version] for version in kept}


def _state(bench: Bench, name: str, files: frozenset[str]) -> tuple[frozenset[int], frozenset[str], frozenset[str]]:
    metadata = bench.metadata(name)
    return snapshot_ids(metadata), frozenset(r.name for r in metadata.refs), files - bench.files(name)
