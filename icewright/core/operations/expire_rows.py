"""Row expiry: delete rows that are older than a number of days by a column. Off unless a policy asks for it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from icewright.core.cost import spark_cost, storage_benefit
from icewright.core.effective import Knobs
from icewright.core.partitions import EPOCH
from icewright.core.policy import ROWS_COLUMN, ROWS_DAYS, Operation
from icewright.core.predicates import column_names, literal, quoted
from icewright.core.runs import LastRun
from icewright.core.sortedness import ordering_fields
from icewright.core.steps import Blocked, Due, ExpireRows, NotDue, Verdict, Work
from icewright.core.table import TableFacts, TableMetadata
from icewright.core.words import count

_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)
TICKS_A_DAY = {  # units of a bound in manifests, by the column's type
    "date": 1,
    "timestamp": 86_400_000_000,
    "timestamptz": 86_400_000_000,
    "timestamp_ns": 86_400_000_000_000,
    "timestamptz_ns": 86_400_000_000_000,
}


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Return Due when the bounds of some file say that it holds rows from before the cutoff."""
    metadata, column, days = facts.metadata, knobs[ROWS_COLUMN], knobs[ROWS_DAYS]
    if column is None or days is None:
        return Blocked("expire_rows.column and expire_rows.days say which rows go: set both")
    if metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    fields = ordering_fields(metadata.schema, (column,))
    if not fields:
        return Blocked(f"expire_rows.column: {metadata.ref} has no column {column}")
    ((field_id, kind),) = fields
    if kind not in TICKS_A_DAY:
        return Blocked(f"expire_rows.column: {column} is a {kind}, and only dates and timestamps grow old")
    cutoff = now.astimezone(UTC).date() - timedelta(days=days)
    tomorrow = datetime.combine(now.astimezone(UTC).date() + _DAY, time(), UTC)
    if last is not None and last.leaves_nothing(metadata, knobs) and last.finished.astimezone(UTC).date() == now.date():
        return NotDue("the last run left the table as it is", tomorrow)
    ticks = ticks_of(kind, datetime.combine(cutoff, time()))
    aged = [p for p in facts.partitions if p.lowest is not None and p.lowest < ticks]
    if not aged:
        return NotDue(f"no file holds rows with {column} before {cutoff}", tomorrow)
    step = ExpireRows(
        where=f"{_quoted(metadata, field_id)} < {_literal(kind, cutoff)}",
        column=column,
        before=cutoff,
        field_id=field_id,
        ticks=ticks,
        partitions=tuple(p.key for p in aged),
    )
    size = sum(p.data_bytes for p in aged)
    return Due(
        Work(Operation.EXPIRE_ROWS, (step,)),
        benefit=storage_benefit(sum(p.data_files for p in aged), size),
        cost=spark_cost(size),
        why=f"{count(len(aged), 'partition')} with rows where {column} before {cutoff}",
    )


def ticks_of(kind: str, moment: datetime) -> int:
    """Return a moment in UTC as a bound in manifests of a column of the type, rounded down."""
    since = moment - datetime.combine(EPOCH, time())
    return since // _MICROSECOND * TICKS_A_DAY[kind] // (_DAY // _MICROSECOND)


def _quoted(metadata: TableMetadata, field_id: int) -> str:
    return ".".join(quoted(part) for part in column_names(metadata.schema)[field_id])


def _literal(kind: str, cutoff: date) -> str:
    """Return midnight of the day as a literal of the type, so that daily partitions are deleted as a whole."""
    if kind == "date":
        return str(literal(cutoff))
    midnight = f"'{datetime.combine(cutoff, time()).isoformat(sep=' ')}"
    return f"timestamp_ntz{midnight}'" if "tz" not in kind else f"timestamp{midnight}+00:00'"
