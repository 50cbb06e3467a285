"""What the recorded runs say of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.ledger import SAME_TABLE
from icewright.adapters.store.schema import JOBS, RUNS, TABLES
from icewright.core.partitions import PartitionKey, partition_values
from icewright.core.policy import Operation
from icewright.core.runs import History, LastRun, OperationState

_RECENT = 20  # compactions whose partitions are remembered


def last_runs(connection: sa.Connection, of: Sequence[sa.ColumnElement[bool]]) -> History:
    """Return the last run of each operation on the table that the conditions on tables and jobs say.

    And what was learned from the last that did its work.
    """
    runs = RUNS.join(TABLES, RUNS.c.table_id == TABLES.c.id).join(JOBS, RUNS.c.job_id == JOBS.c.job_id)
    did_work = sa.case((RUNS.c.state == OperationState.COMMITTED, RUNS.c.id))
    ids = sa.select(sa.func.max(RUNS.c.id).label("last"), sa.func.max(did_work).label("worked"))
    newest = ids.select_from(runs).where(RUNS.c.tried, *of).group_by(RUNS.c.operation).subquery()
    worked = RUNS.alias("worked")
    both = newest.join(RUNS, RUNS.c.id == newest.c.last).outerjoin(worked, worked.c.id == newest.c.worked)
    learned = (worked.c.finished.label("worked"), worked.c.metrics.label("learned"))
    rows = connection.execute(sa.select(RUNS, *learned).select_from(both)).all()
    return {
        Operation(r.operation): LastRun(
            Operation(r.operation),
            r.finished,
            OperationState(r.state),
            r.metadata_location,
            r.reason,
            r.metrics,
            r.policy,
            _rewritten(connection, r) if r.operation == Operation.COMPACT else {},
            r.worked,
            r.learned or {},
        )
        for r in rows
    }


def read_runs() -> sa.CompoundSelect[tuple[int]]:
    """Return the ids of the runs that are read of tables as they are now.

    `last_runs` reads the last one of each operation, the last that did its work, and recent compactions; alerts read
    the last that came to an end.
    """
    joined = RUNS.join(TABLES, RUNS.c.table_id == TABLES.c.id).join(JOBS, RUNS.c.job_id == JOBS.c.job_id)
    newest = sa.select(sa.func.max(RUNS.c.id)).select_from(joined).where(SAME_TABLE)
    newest = newest.group_by(RUNS.c.table_id, JOBS.c.table_uuid, RUNS.c.operation)
    tried = newest.where(RUNS.c.tried)
    ended = newest.where(RUNS.c.state != OperationState.DEFERRED)
    compactions = (RUNS.c.operation == Operation.COMPACT, RUNS.c.state == OperationState.COMMITTED)
    place = sa.func.row_number().over(partition_by=(RUNS.c.table_id, RUNS.c.policy), order_by=RUNS.c.id.desc())
    placed = sa.select(RUNS.c.id, RUNS.c.table_id, RUNS.c.policy, place.label("place")).where(*compactions).subquery()
    last = sa.select(RUNS.c.table_id, RUNS.c.policy).where(RUNS.c.operation == Operation.COMPACT, RUNS.c.id.in_(tried))
    same_policy = sa.tuple_(placed.c.table_id, placed.c.policy).in_(last)
    recent = sa.select(placed.c.id).where(placed.c.place <= _RECENT, same_policy)
    return sa.union_all(tried, ended, newest.where(RUNS.c.state == OperationState.COMMITTED), recent)


def _rewritten(connection: sa.Connection, last: Any) -> Mapping[PartitionKey, datetime]:  # noqa: ANN401 - a result row
    """Return when recent compactions of the same policy rewrote partitions for their sizes or their order.

    One that had to leave files counts for none.
    """
    recent = (
        sa.select(RUNS.c.finished, RUNS.c.metrics, RUNS.c.partitions)
        .where(
            RUNS.c.table_id == last.table_id,
            RUNS.c.operation == Operation.COMPACT,
            RUNS.c.state == OperationState.COMMITTED,
            RUNS.c.policy == last.policy,
        )
        .order_by(RUNS.c.id.desc())
        .limit(_RECENT)
    )
    found: dict[PartitionKey, datetime] = {}
    for finished, metrics, partitions in reversed(connection.execute(recent).all()):
        if not metrics.get("files_left"):
            mended = [p for p in partitions or () if p["files_in"] and p["files_out"] and not p["by_deletes"]]
            found |= {_key(p["key"]): finished for p in mended}
    return found


def _key(text: str) -> PartitionKey:
    spec_id, _, values = text.partition(" ")
    return int(spec_id), partition_values(values)
