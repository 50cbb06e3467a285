"""What every state store does for deletions that wait, their undo, and what an expiry removed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

import pytest
import sqlalchemy as sa

from icewright.adapters.store import database
from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import JOBS
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import StoreUnavailable
from icewright.core.table import TableRef
from icewright.ports import LedgerState
from icewright.testing import NOW
from icewright.testing.contracts.cases import OTHER
from icewright.testing.contracts.ledger import PATHS, file_states, plan_files

ROUNDS = 5
MANY = tuple(f"file:///w/{n:04d}.parquet" for n in range(800))


@pytest.mark.external
@pytest.mark.cases(80)
def test_of_an_undo_and_a_deletion_in_two_processes_one_gets_the_files(store: SqlStore) -> None:
    """Never both, and never each a part: round after round, over many files."""
    jobs = [plan_files(store, MANY, ref=TableRef("lake", ("s",), f"t{n}"), until=None) for n in range(ROUNDS)]
    context = multiprocessing.get_context("spawn")
    address = store.engine.url.render_as_string(hide_password=False)
    with ProcessPoolExecutor(2, context, _meet, (context.Barrier(2, timeout=60),)) as pool:
        deleting, undoing = pool.submit(_deletes, address, jobs), pool.submit(_undoes, address, jobs)
        started, seen = deleting.result(), undoing.result()
    for job_id, claimed, found in zip(jobs, started, seen, strict=True):
        undone = not found.keys() & {LedgerState.DELETING, LedgerState.DELETED}
        assert claimed == (0 if undone else len(MANY)), (claimed, found)
        assert set(file_states(store, job_id)) == {LedgerState.UNDOING if undone else LedgerState.DELETING}


@pytest.mark.external
def test_states_of_a_jobs_files_change_in_one_transaction_at_a_time(
    server: Callable[[], sa.Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change waits for others of the same job alone, and for no check of a foreign key."""
    monkeypatch.setattr(database, "_LOCK_LIMIT", "50ms")
    store = SqlStore(server())
    ledger, job, other = store.ledger, plan_files(store), plan_files(store, ref=OTHER)
    changes: list[Callable[[str], object]] = [
        lambda job_id: ledger.claim(job_id, PATHS),
        lambda job_id: ledger.record(job_id, {PATHS[0]: LedgerState.KEPT}, NOW),
        ledger.begin_undo,
        lambda job_id: ledger.end_undo(job_id, NOW, undone=True),
        lambda job_id: ledger.abandon(job_id, NOW),
    ]
    row = sa.select(JOBS.c.job_id).where(JOBS.c.job_id == job)
    with store.engine.begin() as elsewhere:
        elsewhere.execute(row.with_for_update())
        for change in changes:
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                change(job)
            change(other)
    with store.engine.begin() as elsewhere:
        elsewhere.execute(row.with_for_update(read=True, key_share=True))
        for change in changes:
            change(job)


_together: Barrier


def _meet(barrier: Barrier) -> None:
    global _together  # noqa: PLW0603 - a process of its own
    _together = barrier


def _deletes(address: str, jobs: Sequence[str]) -> list[int]:
    """How many files of each job could be claimed for deletion."""
    store, claimed = SqlStore(open_database(address)), []
    for job_id in jobs:
        _together.wait()
        claimed.append(len(store.ledger.claim(job_id, MANY[::-1])))
    return claimed


def _undoes(address: str, jobs: Sequence[str]) -> list[Mapping[str, int]]:
    """What the undo of each job found."""
    store, found = SqlStore(open_database(address)), []
    for job_id in jobs:
        _together.wait()
        found.append(store.ledger.begin_undo(job_id))
    return found
