"""Random tables and histories: whatever writers did, compaction as Arrow leaves what Spark's own leaves.

`pytest --hypothesis-profile=long` plays 5,000 of them in batches, which takes hours; a batch is the same each time.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from icewright.adapters.engines.arrow import rewriting
from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.adapters.engines.arrow.small_table import SmallTable
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench, Saved
from tests.integration.evolving import COLUMNS, Evolving
from tests.integration.javacore import JavaTable
from tests.integration.pictures import KNOBS, LONG, compare_with_statement, rows_by_spark
from tests.integration.playing import long_examples

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

HISTORIES = 5_000 if LONG else 60  # more than a second each
BATCH = 9  # after its tenth example Hypothesis turns to variations of earlier ones
BATCHES = [min(BATCH, HISTORIES - start) for start in range(0, HISTORIES, BATCH)]
BETWEEN = ("append", "evolve", "equality", "delete", "update", "copy")
WEIGHTS = {"append": 4, "evolve": 4, "equality": 3, "vectors": 2, "delete": 1, "update": 1, "copy": 1}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Plan:
    """A table, what happens to it, and how it is compacted."""

    version: int
    partitioned: bool
    columns: tuple[str, ...]
    steps: tuple[tuple[str, int], ...]
    order: str | None
    written: tuple[tuple[str, str], ...]  # properties by which files are written
    between: str | None = None  # a kind of step between Arrow's plan and its commit, after the comparison


_MODES = ("none", "counts", "full", "truncate(1)", "Truncate(16)", "truncate(0)", "wrong")
_WRITTEN = (
    *(("write.metadata.metrics.default", mode) for mode in _MODES),
    *(("write.metadata.metrics.column.c0", mode) for mode in _MODES),
    *(("write.metadata.metrics.max-inferred-column-defaults", most) for most in ("1", "3")),
    *(("write.parquet.compression-codec", codec) for codec in ("gzip", "snappy", "uncompressed", "zstd")),
    ("write.parquet.dict-encoding-enabled.column.c0", "false"),
    ("write.parquet.page-row-limit", "2"),
)


def plans() -> st.SearchStrategy[Plan]:
    """Any of them; the kinds of steps by their weights."""
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    return st.builds(
        Plan,
        version=st.sampled_from((2, 3)),
        partitioned=st.booleans(),
        columns=st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=5).map(tuple),
        steps=st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 97)), min_size=1, max_size=4).map(tuple),
        order=st.sampled_from((None, None, "id DESC NULLS FIRST", "part, id")),
        written=st.lists(st.sampled_from(_WRITTEN), max_size=3).map(tuple),
        between=st.sampled_from((*itertools.repeat(None, 5 * len(BETWEEN)), *BETWEEN)),
    )


@pytest.fixture(scope="module")
def tasks_here() -> Iterator[None]:
    """Let tasks run in this process, as other tests of both kernels send theirs through Spark."""

    def here(_: Any, work: Callable[[Sequence[Any]], Iterator[Any]], items: Sequence[Any], *__: Any) -> list[Any]:
        return [answer for item in items for answer in work([item])]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rewriting, "run_tasks", here)
        yield


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What happened in the histories of all batches."""
    return Counter()


def check(bench: Bench, plan: Plan) -> Counter[str]:
    """Play the history, then compact copies of the table by both kernels; what happened."""
    name = f"test.evolving_{next(_NUMBERS)}"
    happened: Counter[str] = Counter()
    written = dict(plan.written)
    table = Evolving(bench, name, plan.columns, plan.version, partitioned=plan.partitioned, written=written)
    try:
        for kind, pick in (("append", 0), ("append", 2), *plan.steps):
            happened[kind] += getattr(table, kind)(pick)
        order = {} if plan.order is None else {"compact.strategy": "sort", "compact.sort_order": plan.order}
        saved = bench.save(name)
        found = compare_with_statement(bench, name, order)
        assert found.differences == []
        if plan.between is not None:
            saved.restore()
            happened["between"] += commit_between(bench, table, saved, plan.between, {**KNOBS, **order})
        return happened
    finally:
        bench.lake.catalog.drop_table(name)
        shutil.rmtree(bench.lake.folder(name))


def commit_between(bench: Bench, table: Evolving, saved: Saved, kind: str, knobs: Mapping[str, object]) -> bool:
    """Commit the step alone, then from the same bytes between Arrow's plan and its commit: the same rows."""
    number, pick = table.number, 7 + table.number
    if not getattr(table, kind)(pick):
        return False
    expected = rows_by_spark(JavaTable.load(bench, table.name))
    saved.restore()
    table.number = number
    left = [partial(getattr(table, kind), pick)]
    with pytest.MonkeyPatch.context() as patched:
        for opened in (IcebergTable, SmallTable):

            def beside(own: Any, *groups: Any, commit: Any = opened.commit, **options: Any) -> None:
                if left:
                    left.pop()()
                commit(own, *groups, **options)

            patched.setattr(opened, "commit", beside)
        done = bench.run(table.name, Operation.COMPACT, {**knobs, "compact.engine": "arrow"})
    assert not left, done
    assert done.state in (OperationState.COMMITTED, OperationState.DEFERRED, OperationState.SKIPPED), done
    assert rows_by_spark(JavaTable.load(bench, table.name)) == expected
    return True


@pytest.mark.cases(20, 24, 25, 35, 38, 44, 45, 49, 50)
@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize(("batch", "size"), list(enumerate(BATCHES)))
def test_kernels_agree(batch: int, size: int, bench: Bench, happened: Counter[str]) -> None:
    """After any history both kernels leave the same rows, entries and deletes, for every reader."""

    @seed(batch)
    @long_examples(size)
    @given(plan=plans())
    def play(plan: Plan) -> None:
        happened.update(check(bench, plan), histories=1)

    play()


@pytest.mark.nightly
def test_kernels_agree_on_deletes_that_apply_to_nothing(bench: Bench) -> None:
    """Equality deletes whose keys no file can have go with the data as Arrow, and in a further commit of Spark's."""
    steps = (("equality", 53), ("evolve", 63))
    check(bench, Plan(2, partitioned=False, columns=("decimal(7, 2)",), steps=steps, order=None, written=()))


def test_the_histories_were_rich(happened: Counter[str]) -> None:
    """Every kind of step took place."""
    if happened["histories"] < HISTORIES:
        pytest.skip(f"only some of the batches ran: {happened['histories']} of {HISTORIES} histories")
    assert not [kind for kind in (*WEIGHTS, "between") if not happened[kind]], happened
