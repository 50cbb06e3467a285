"""What snapshots say of writers, as the commits of a simulation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from icewright.core.simulation.trace import writes_of
from icewright.core.table import Snapshot, TableMetadata
from icewright.testing import NOW, metadata, spec


def told(*summaries: tuple[str, dict[str, int]]) -> TableMetadata:
    """A table by the day with these commits, an hour apart."""
    snapshots = tuple(
        Snapshot(n, None, n, NOW + timedelta(hours=n), None, (), operation, {k: str(v) for k, v in said.items()})
        for n, (operation, said) in enumerate(summaries)
    )
    return replace(metadata((50, 2, 1), specs=(spec(ts="day"),)), snapshots=snapshots, default_spec_id=0)


def test_commits_of_writers() -> None:
    """The first brings what there was, each other what it added; maintenance and what added nothing are left out."""
    found = writes_of(
        told(
            ("append", {"total-data-files": 9, "total-files-size": 900, "total-records": 90, "added-data-files": 2}),
            ("append", {"added-data-files": 2, "added-files-size": 200}),
            ("replace", {"added-data-files": 1, "added-files-size": 1100}),
            ("overwrite", {"added-data-files": 3, "added-files-size": 300, "deleted-data-files": 3}),
            ("overwrite", {"added-data-files": 1, "added-files-size": 50, "added-delete-files": 1}),
            ("delete", {"deleted-data-files": 3}),
            ("append", {"added-data-files": -1}),
        )
    )
    assert [(w.files, w.bytes, w.rows, w.delete_files, w.operation) for w in found] == [
        (9, 900, 90, 0, "append"),
        (2, 200, 2, 0, "append"),
        (3, 300, 3, 0, "overwrite"),
        (1, 50, 0, 1, "append"),
    ]
    assert found[3].deleted_rows > 0
    assert {w.layout for w in found} == {(("ts_0", "day"),)}
    assert [w.values for w in found] == [((NOW + timedelta(hours=n)).date(),) for n in (0, 1, 3, 4)]


def test_a_table_without_history() -> None:
    """A table without snapshots has no commits to simulate."""
    assert writes_of(told()) == ()
