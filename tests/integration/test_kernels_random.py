"""Random tables and histories: whatever writers did, compaction as Arrow leaves what Spark's own leaves.

`pytest --hypothesis-profile=long` plays 5,000 of them in batches, which takes hours; a batch is the same each time.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.integration.bench import Bench
from tests.integration.evolving import COLUMNS, Evolving
from tests.integration.pictures import LONG, compare
from tests.integration.playing import long_examples
from tests.nightly import NIGHTLY

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

HISTORIES = 5_000 if LONG else 60 if NIGHTLY else 9  # two or three seconds each
BATCH = 9  # after its tenth example Hypothesis turns to variations of earlier ones
BATCHES = [min(BATCH, HISTORIES - start) for start in range(0, HISTORIES, BATCH)]
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
    )


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
        assert compare(bench, name, order).differences == []
        return happened
    finally:
        bench.lake.catalog.drop_table(name)
        shutil.rmtree(bench.lake.folder(name))


@pytest.mark.cases(20, 24, 25, 35, 38, 44, 45, 49, 50)
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


@pytest.mark.nightly
def test_the_histories_were_rich(happened: Counter[str]) -> None:
    """Every kind of step took place."""
    if happened["histories"] < HISTORIES:
        pytest.skip(f"only some of the batches ran: {happened['histories']} of {HISTORIES} histories")
    assert not [kind for kind in WEIGHTS if not happened[kind]], happened
