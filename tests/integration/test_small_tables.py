"""Small tables that compaction plans by itself: Iceberg's own planner, asked beside it, takes the same files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.adapters.engines.arrow.small_table import small_table
from icewright.adapters.engines.arrow.table import RewriteTable
from icewright.core.partitions import PartitionKey
from icewright.core.steps import Kernel, RewriteDataFiles
from tests.integration.bench import Bench
from tests.integration.working import make
from tests.nightly import nightly

pytestmark = pytest.mark.spark

ROWS = (10, 60, 300, 900, 2_000)  # of each partition, in two files; a row takes about 260 bytes
OPTIONS = {
    "max-file-group-size-bytes": 10_000_000,
    "max-concurrent-file-group-rewrites": 1,
    "remove-dangling-deletes": "false",
    "partial-progress.enabled": "false",
    "use-starting-sequence-number": "true",
}


def step(**options: Any) -> RewriteDataFiles:
    """A step on the whole table."""
    said = {name.replace("_", "-"): str(value) for name, value in options.items()}
    keys: tuple[PartitionKey, ...] = tuple((0, (part,)) for part in range(len(ROWS)))
    options = {**{name: str(value) for name, value in OPTIONS.items()}, **said}
    return RewriteDataFiles(None, None, "binpack", None, options, keys, False, 0, 0, Kernel.ARROW)


def planned(table: RewriteTable, what: RewriteDataFiles) -> list[tuple[Any, ...]]:
    """The groups as they can be compared."""
    return sorted(
        (sorted((f.path, f.records, f.bytes) for f in g.files), g.outputs, g.split_bytes, g.constants)
        for g in table.plan(what)
    )


@pytest.fixture(scope="module")
def name(bench: Bench) -> str:
    """A table of partitions from small to large."""
    make(bench, "test.planned", *ROWS)
    return "test.planned"


@pytest.mark.parametrize("files", [nightly(1), 2, nightly(3), 5])
@pytest.mark.parametrize(
    ("target", "least", "most"),
    [(1 << 29, 400 << 20, 900 << 20), (100_000, 75_000, 180_000), (30_000, 3_000, 200_000), (20_000, 15_000, 21_000),
     (57_000, 1, 57_001), (7_000, 6_999, 1 << 40)],
)  # fmt: skip
def test_the_planner_agrees(bench: Bench, name: str, target: int, least: int, most: int, files: int) -> None:
    """The same groups of files, with as many outputs and splits of the same size."""
    what = step(
        target_file_size_bytes=target, min_file_size_bytes=least, max_file_size_bytes=most, min_input_files=files
    )
    base = bench.metadata(name)
    ours = small_table(
        bench.runtime.files, bench.runtime.clock, bench.runtime.catalogs["lake"], base, what, "app", dict
    )
    assert ours is not None
    assert planned(ours, what) == planned(IcebergTable(bench.lake.spark(), bench.ref(name), None), what)


def test_rewriting_all(bench: Bench, name: str) -> None:
    """What is sorted anew is taken whole."""
    sizes: Mapping[str, int] = {"target_file_size_bytes": 50_000, "min_file_size_bytes": 1}
    what = step(**sizes, max_file_size_bytes=1 << 30, min_input_files=5, rewrite_all="true")
    base = bench.metadata(name)
    ours = small_table(
        bench.runtime.files, bench.runtime.clock, bench.runtime.catalogs["lake"], base, what, "app", dict
    )
    assert ours is not None
    found = planned(ours, what)
    assert found == planned(IcebergTable(bench.lake.spark(), bench.ref(name), None), what)
    assert len(found) == len(ROWS)
