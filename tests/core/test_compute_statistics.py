"""Statistics for query planners: when they are missing or stale, and what computing them would read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from icewright.core.operations import compute_statistics
from icewright.core.steps import Blocked, ComputeStatistics, Due, NotDue, Verdict
from icewright.core.steps import why as words
from icewright.core.table import Snapshot, StatisticsFile, TableMetadata
from icewright.testing import NOW, SCHEMA, facts, knobs, metadata, partition, spec
from icewright.testing.builders import lineage

BY_REGION = (spec(region="identity"),)
NAMES = tuple(field["name"] for field in SCHEMA["fields"])


def history(*operations: str, **summary: str) -> tuple[Snapshot, ...]:
    """A snapshot of each operation, from number 1, each of the same summary."""
    of = {"added-records": "5000", "deleted-records": "0", "added-files-size": str(1 << 30), **summary}
    snapshots = lineage([len(operations) - i for i in range(len(operations))])
    return tuple(
        replace(snapshot, operation=operation, summary={name: text for name, text in of.items() if text})
        for snapshot, operation in zip(snapshots, operations, strict=True)
    )


def table(snapshots: Sequence[Snapshot], columns: Sequence[int], partitions: Sequence[int] = ()) -> TableMetadata:
    """A table that has statistics of these snapshots."""
    return metadata(
        snapshots=tuple(snapshots),
        statistics=tuple(StatisticsFile(number, "s", 1) for number in columns),
        partition_statistics=tuple(StatisticsFile(number, "p", 1) for number in partitions),
    )


def verdict(
    of: TableMetadata, settings: Mapping[str, object] | None = None, *, files: int = 10, mb: int = 1
) -> Verdict:
    """The verdict on a table of 1000 rows in each file."""
    named = knobs(settings or {})
    return compute_statistics.evaluate(facts(partition(files=files, mb=mb), of=of, by=named), named, None, NOW)


def step(found: Verdict) -> ComputeStatistics:
    """The step of a verdict that is due."""
    assert isinstance(found, Due), found
    (only,) = found.work.steps
    assert isinstance(only, ComputeStatistics)
    return only


def test_what_is_computed() -> None:
    """All columns of simple types, and partitions where there are any; a setting leaves one of both out."""
    of = metadata(specs=BY_REGION)
    assert (step(verdict(of)).columns, step(verdict(of)).partitions) == (NAMES, True)
    assert not step(verdict(metadata())).partitions
    only = {"compute_statistics.kinds": "columns", "compute_statistics.columns": f"{NAMES[1]}, {NAMES[0]}"}
    assert step(verdict(of, only)).columns == (NAMES[1], NAMES[0])
    assert step(verdict(of, {"compute_statistics.kinds": "partitions"})).columns == ()
    assert isinstance(verdict(metadata(), {"compute_statistics.kinds": "partitions"}), NotDue)
    assert isinstance(verdict(metadata(snapshots=(), current_snapshot_id=None)), NotDue)
    nested = {"type": "struct", "fields": []}
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 99, "name": "deep", "type": nested, "required": False}]}
    assert step(verdict(metadata(schema=schema))).columns == NAMES
    for name in ("deep", "nowhere"):
        assert isinstance(verdict(metadata(schema=schema), {"compute_statistics.columns": name}), Blocked)


@pytest.mark.parametrize(
    ("snapshots", "known", "due", "why"),
    [
        (history("append"), (), True, "no snapshot of the table's history has statistics"),
        (history("append"), (1,), False, "the statistics are those of the current snapshot"),
        (history("append", "append"), (1,), True, "many rows changed since the last statistics: 5000"),
        (history("append", "append", **{"added-records": "50"}), (1,), False, "0.5% of the rows changed"),
        (history("append", "append", **{"added-records": ""}), (1,), True, "many rows changed"),
        (history("append", "append", **{"added-records": "", "deleted-records": ""}), (1,), True, "many rows changed"),
        (history("append", "replace"), (1,), True, "rewrites changed no row"),
        (history("append", "replace", "append", **{"added-records": "50"}), (1,), False, "0.5% of the rows changed"),
        (history("append", "delete", **{"added-records": "0", "deleted-records": "2000"}), (1,), True, "many rows"),
        (
            history("append", "delete", **{"added-records": "0", "added-position-deletes": "2000"}),
            (1,),
            True,
            "many rows",
        ),
        (history("append", "append", "append")[1:], (1,), True, "no snapshot of the table's history has statistics"),
    ],
)
def test_staleness(snapshots: Sequence[Snapshot], known: Sequence[int], due: bool, why: str) -> None:
    """Statistics are renewed when a tenth of the rows changed; after rewrites at once; an unknown change counts."""
    found = verdict(table(snapshots, known))
    assert isinstance(found, Due) is due, found
    assert words(found).startswith(why)


def test_both_kinds_are_of_the_current_snapshot() -> None:
    """Statistics of which one kind is missing or older are computed for that kind's sake."""
    snapshots = history("append", "append", "append")
    for columns, partitions, due in (((3,), (3,), False), ((3,), (), True), ((3,), (1,), True), ((1,), (3,), True)):
        of = replace(table(snapshots, columns, partitions), specs=BY_REGION)
        assert isinstance(verdict(of), Due) is due


@pytest.mark.parametrize(
    ("last", "known", "read"), [("append", (2,), 1), ("replace", (2,), 0), ("delete", (2,), 90), ("append", (), 90)]
)
def test_too_much_to_read(last: str, known: Sequence[int], read: int) -> None:
    """Only new files count where nothing was deleted; more than the setting allows blocks, and says what to do."""
    of = table(history("append", "append", last), known)
    settings: dict[str, Any] = {"compute_statistics.min_change": 0, "compute_statistics.max_read_gb": 80}
    found = verdict(of, settings, files=9, mb=10 * 1024)
    if read > 80:
        assert isinstance(found, Blocked)
        assert found.reason.startswith(f"{read} GB would be read, more than compute_statistics.max_read_gb")
    else:
        assert isinstance(found, Due)
    cheaper = verdict(of, {**settings, "compute_statistics.max_read_gb": 200}, files=9, mb=10 * 1024)
    assert isinstance(cheaper, Due)
    assert (cheaper.cost > 0.01) is (read > 80)


def test_the_cost_is_that_of_files_columns_and_bytes() -> None:
    """Many small files cost more than a few of as many bytes, one column less than all, and new files less than all."""

    def cost(of: TableMetadata, settings: Mapping[str, object] | None = None, *, files: int, mb: int) -> float:
        found = verdict(of, {"compute_statistics.min_change": 0, **(settings or {})}, files=files, mb=mb)
        assert isinstance(found, Due)
        return found.cost

    appended = table(history("append", "append", **{"added-data-files": "3", "added-files-size": str(3 << 20)}), (1,))
    one = {"compute_statistics.columns": NAMES[0]}
    many = cost(metadata(), files=1000, mb=1)
    assert many > 1.2 * cost(metadata(), files=10, mb=100)
    assert many > 1.05 * cost(metadata(), one, files=1000, mb=1)
    assert many > 50 * cost(appended, files=1000, mb=1)
    partitions = {"compute_statistics.kinds": "partitions"}
    of_two = (cost(metadata(specs=BY_REGION), partitions, files=files, mb=1) for files in (100_000, 100))
    assert next(of_two) > 10 * next(of_two)


@pytest.mark.parametrize(
    ("merged", "enabled", "least", "most"),
    [
        (0, True, 1, 1),
        (50, True, 0.4, 0.6),
        (100, True, 0, 0.1),
        (200, True, 0, 0.1),
        (201, True, 1, 1),
        (100, False, 1, 1),
    ],
)
def test_what_compaction_has_counted_is_not_read_again(merged: int, enabled: bool, least: float, most: float) -> None:
    """Files that it has merged since the last statistics cost nothing, where it counts values: half of them are new."""
    snapshots = list(history("append", "append", "replace", "replace", **{"added-data-files": "100"}))
    of_merge = {"deleted-data-files": str(merged), "removed-files-size": str(merged * (1 << 30) // 100)}
    snapshots[2:] = replace(snapshots[2], summary=of_merge), replace(snapshots[3], summary={})  # the last: of manifests
    settings = {"compute_statistics.enabled": enabled}
    costs = []
    for some in (snapshots[:2], snapshots):
        found = verdict(table(some, (1,)), settings)
        assert isinstance(found, Due)
        costs.append(found.cost)
    assert least <= costs[1] / costs[0] <= most
