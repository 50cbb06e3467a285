"""What is right and wrong after a disturbed run: said by the files and databases, not by Icewright."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icewright.core.runs import OperationState, Outcome
from tests.faults.lakehouse import Lakehouse
from tests.faults.operations import FaultOperation
from tests.faults.reading import Reading
from tests.faults.storage_errors import Fault

_TIMED = re.compile("-hourly-|-before-restore-")


@dataclass(frozen=True)
class Want:
    """What a deed does in good weather."""

    action: FaultOperation
    calls: tuple[str, ...]
    before: Reading
    after: Reading
    gone: frozenset[str]  # files that it deletes


def lost(want: Want, now: Reading) -> list[str]:
    """What somebody could read and cannot any more: files, refs, and snapshots that no expiry takes."""
    wrong = list(now.missing)
    for name, snapshot_id in want.before.refs.items():
        if now.refs.get(name) is None:
            wrong.append(f"ref {name} is gone")
        elif now.live.get(now.refs[name]) not in (
            want.before.live[snapshot_id],
            want.after.live.get(want.after.refs.get(name, 0)),
        ):
            wrong.append(f"ref {name} reads other files")
        if snapshot_id in want.after.refs.values() and snapshot_id not in now.refs.values():
            wrong.append(f"no ref leads to snapshot {snapshot_id}, as {name} did")
    for snapshot_id in sorted(want.before.snapshots):
        if snapshot_id not in now.live:
            wrong += [f"snapshot {snapshot_id} is gone"] if snapshot_id in want.after.live else []
        elif now.live[snapshot_id] != want.before.live[snapshot_id]:
            wrong.append(f"snapshot {snapshot_id} reads other files")
    return wrong


def untrue(want: Want, now: Reading, outcome: Outcome, files: set[str], fault: Fault) -> Iterator[str]:
    """Where the outcome says other than what happened."""
    before, after, found = ((r.snapshots, r.refs, r.statistics) for r in (want.before, want.after, now))
    landed, lands = found != before, after != before
    gone = want.gone - files
    match outcome.state:
        case OperationState.COMMITTED:
            if lands and not landed:
                yield "says committed, and no commit landed"
            said = {str(local(file.path)) for file in outcome.files}
            if not fault.deletes_lie and want.gone and (said & files or gone - said):
                yield f"says {len(said)} were deleted; {len(said & files)} are there, {len(gone - said)} more are not"
            untold = [path for path in want.gone & files if not any(path in note for note in outcome.notes)]
            if untold and not fault.deletes_lie and not fault.lists_lie:
                yield f"does not say that {len(untold)} files could not be deleted"
        case OperationState.SKIPPED | OperationState.DEFERRED:
            if landed or gone:
                yield f"says {outcome.state} ({outcome.reason}); a commit landed: {landed}, deleted: {len(gone)}"
        case OperationState.FAILED:
            if not outcome.reason:
                yield "failed without a reason"
            if gone == want.gone and landed == lands and "nothing was cleaned up" not in outcome.reason:
                yield f"says failed ({outcome.reason}), and all was done"


def ledger_lies(workspace: Lakehouse, want: Want) -> list[str]:
    """Files that are gone though no row says who deleted them, and such that are said to be gone and are not."""
    files = workspace.files()
    rows = _rows(workspace, "SELECT path, state FROM deletions")
    told = {str(local(path)) for path, state in rows if state in ("deleted", "planned", "deleting")}
    deleted = {str(local(path)) for path, state in rows if state == "deleted"}
    wrong = [f"{path} is gone and the ledger does not say so" for path in sorted(want.gone - files - told)]
    return wrong + [f"{path} is there and the ledger calls it deleted" for path in sorted(deleted & files)]


def differs(want: Want, now: Reading) -> list[str]:
    """Where the table is not what an undisturbed run makes of it."""
    wrong = []
    if len(now.snapshots) != len(want.after.snapshots):
        wrong.append(f"{len(now.snapshots)} snapshots are left, not {len(want.after.snapshots)}")
    if now.snapshots & want.before.snapshots != want.after.snapshots & want.before.snapshots:
        wrong.append("other snapshots are left")
    if now.statistics != want.after.statistics:
        wrong.append("other snapshots have statistics")
    gone = want.after.refs.keys() - now.refs.keys()
    # which hours have points, and when a restore was, depends on how late a call was
    wrong += [f"ref {name} is not there" for name in sorted(gone) if not _TIMED.search(name)]
    if now.manifests[now.head] != want.after.manifests[want.after.head]:
        wrong.append(f"{now.manifests[now.head]} manifests, not {want.after.manifests[want.after.head]}")
    return wrong


def state_of(workspace: Lakehouse, want: Want, now: Reading) -> str:
    """All that the next start depends on, in words that are the same in every lakehouse that was made alike."""

    def word(path: str) -> str:
        return str(want.before.order.get(path)) if path in want.before.order else _kind(path)

    numbers = {s["snapshot-id"]: i for i, s in enumerate(want.before.document["snapshots"])}
    kept = sorted(str(numbers.get(snapshot_id)) for snapshot_id in now.snapshots)
    refs = sorted((name, numbers.get(snapshot_id)) for name, snapshot_id in now.refs.items())
    files, reached = sorted(map(word, workspace.files())), sorted(map(word, now.reached))
    rows = _rows(workspace, "SELECT path, state FROM deletions")
    ledger = sorted((word(str(local(path))), state) for path, state in rows)
    jobs = _rows(workspace, "SELECT state FROM jobs ORDER BY job_id")
    tables = _rows(workspace, "SELECT held_by IS NULL, paused IS NULL, dropped FROM tables ORDER BY id")
    return str((want.action, kept, refs, files, reached, ledger, jobs, tables))


def local(path: str) -> Path:
    """Where a file lies that metadata or the ledger names."""
    return Path(path.removeprefix("file://"))


def _rows(workspace: Lakehouse, query: str) -> Sequence[Any]:
    with closing(sqlite3.connect(workspace.home / "state.db")) as database:
        return database.execute(query).fetchall()


def _kind(path: str) -> str:
    """What a file with a random name is."""
    name = Path(path).name
    return next((kind for kind in ("snap-", ".metadata.json", "-m") if kind in name), name)
