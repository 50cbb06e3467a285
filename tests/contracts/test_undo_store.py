"""What every state store does for deletions that wait, their undo, and what an expiry removed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

import pytest

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.core.table import TableRef
from icewright.ports import LedgerState
from icewright.testing.contracts.ledger import file_states, plan_files

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
