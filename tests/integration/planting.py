"""Orphans planted and removed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from icewright.core.policy import Operation
from icewright.core.runs import Outcome
from tests.integration.bench import Bench
from tests.integration.tables import create, insert

DELETE: Mapping[str, object] = {"remove_orphans.mode": "delete", "deletion.delay_hours": 0}
OLD = {**DELETE, "remove_orphans.older_than_hours": 24, "remove_orphans.max_delete_ratio": 1.0}


def remove(bench: Bench, name: str, knobs: Mapping[str, object] = OLD, *, dry_run: bool = False) -> Outcome:
    """Orphan removal in-service."""
    return bench.run(name, Operation.REMOVE_ORPHANS, knobs, dry_run=dry_run)


def plant(folder: Path, *relative: str, content: bytes = b"x", days: float = 10) -> set[Path]:
    """Leave files as failed writes would have."""
    made = {folder / one for one in relative}
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        at = (datetime.now(UTC) - timedelta(days=days)).timestamp()
        os.utime(path, (at, at))
    return made


def plain(bench: Bench, name: str) -> None:
    """Make a small table with two partitions and three files."""
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a')", "(2, 'b')", "(3, 'a')")
