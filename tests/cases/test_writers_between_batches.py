"""Writers that commit while files are being deleted, batch by batch: what they have taken in is there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.engines.service.deletion import JobDeletion
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from tests.cases.test_open_world import ROWS, later
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace
from tests.integration.beside import beside

FILES, WRITERS = 8, 2


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_what_writers_take_in_between_two_batches_stays(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """Each batch is proved by the table as it is then: without that proof files of later batches would be lost."""
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    for _ in range(FILES if operation is EXPIRE else 1):
        table.append(ROWS)
    left = sorted(local_path(path) or "" for path in table.inspect.files()["file_path"].to_pylist())
    if operation is EXPIRE:
        table.overwrite(ROWS)
    else:
        folder, content = Path(left[0]).parent, Path(left[0]).read_bytes()
        left = sorted(map(str, workspace.plant(folder, *(f"{n:02}.parquet" for n in range(FILES)), content=content)))
    later(workspace)
    real, turn, stop, taken = JobDeletion.delete, threading.Condition(), threading.Event(), list[Path]()

    def batch(*args: Any) -> None:
        with turn:
            real(*args)
            before = len(taken)
            turn.notify_all()
            turn.wait_for(lambda: not left or len(taken) > before, 10)

    def write() -> None:
        with turn:
            turn.wait()  # until a batch has gone
            while left and not stop.is_set():
                path = Path(left.pop())
                if path.exists():
                    workspace.icebergs["lake"].load_table(NAME).add_files([f"file://{path}"])
                    taken.append(path)
                    turn.notify_all()
                    turn.wait(10)
            turn.notify_all()

    monkeypatch.setattr(JobDeletion, "delete", batch)
    monkeypatch.setattr("icewright.adapters.engines.service.deletion.BATCH", 2)
    with beside(stop, *[write] * WRITERS) as errors:
        done = workspace.run(operation, remove_orphans__max_delete_ratio=1.0)
        with turn:
            turn.notify_all()
    assert not errors
    assert len(taken) >= WRITERS
    assert all(path.exists() for path in taken)
    assert workspace.icebergs["lake"].load_table(NAME).scan().to_arrow().num_rows == len(taken) + 1
    assert len(done.files) >= WRITERS
