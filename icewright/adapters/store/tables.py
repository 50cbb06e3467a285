"""Tables with their listings and evaluations, and the schedule of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.health import forget_health, record_health
from icewright.adapters.store.registrations import write_registration
from icewright.adapters.store.schema import DELETIONS, FACTS, JOBS, TABLES, VERDICTS, Moment
from icewright.adapters.store.statements import (
    DUE_SINCE,
    NAME,
    chunks,
    lock_rows,
    name_columns,
    namespace_text,
    of_table,
    ref_of,
    table_row,
    values_table,
)
from icewright.core.breakers import CLOCK_WENT_BACK
from icewright.core.describe import evaluation_document
from icewright.core.runs import JobState
from icewright.core.steps import VERDICT_NAMES, Due, NotDue, on_pool, why
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, due
from icewright.ports import LedgerState, Pointer, Registration, TableRow, TableState

_PAGE = 500  # rows per fetch; more do not fit a processor cache, and fewer cost more calls

# after which an unreadable table is evaluated again: first, and at most
_FIRST_RETRY, _LAST_RETRY = timedelta(seconds=30), timedelta(hours=1)

_SUSPECT_DEATHS = 2  # deaths of processes from which a table's metadata is taken for their cause
_RETRY_SUSPECT, _LONGEST_RETRY = timedelta(minutes=5), timedelta(days=1)


def _due_statement() -> sa.Select[Any]:
    now = sa.bindparam("now", type_=Moment)
    ends = TABLES.c.evaluating_until
    free = ends.is_(None) | (ends <= now) | (ends > sa.bindparam("set_back", type_=Moment))
    # a job evaluates its table itself at its end
    worked = sa.exists().where(JOBS.c.job_id == TABLES.c.held_by, JOBS.c.state == JobState.RUNNING)
    in_catalogs = TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True))
    return (
        sa.select(TABLES)
        .where(TABLES.c.evaluate_at <= now, in_catalogs, ~TABLES.c.dropped, free, ~worked)
        .order_by(TABLES.c.evaluation_deaths, TABLES.c.evaluate_at, TABLES.c.id)
        .limit(sa.bindparam("most"))
        .with_for_update(skip_locked=True)
    )


_DUE_EVALUATIONS = _due_statement()  # built once, as it is executed every second


@dataclass
class SqlTables(TableState):
    """The TableState port on a database."""

    db: Database

    def list(self, catalog: str | None = None) -> Sequence[TableRow]:
        query = sa.select(TABLES).order_by(TABLES.c.id)
        with self.db.reading() as connection:
            rows = connection.execute(query if catalog is None else query.where(TABLES.c.catalog == catalog))
            return [table_of(row) for row in rows]

    def get(self, ref: TableRef) -> TableRow | None:
        with self.db.reading() as connection:
            row = table_row(connection, ref)
        return None if row is None else table_of(row)

    def record_listing(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        listed = {(namespace_text(p.ref.namespace), p.ref.name): p.metadata_location for p in pointers}
        columns = (TABLES.c[n] for n in ("id", "namespace", "name", "metadata_location", "dropped", "evaluated_at"))
        rows = sa.select(*columns).where(TABLES.c.catalog == catalog)
        moved, dropped_ids, ahead_ids = [], [], []
        with self.db.begin() as connection:
            pages = connection.execute(rows).partitions(_PAGE)
            for row, namespace, name, before, dropped, evaluated_at in chain.from_iterable(pages):
                if evaluated_at is not None and evaluated_at - now > CLOCK_WENT_BACK:
                    ahead_ids.append(row)
                location = listed.pop((namespace, name), None)
                if location is None:
                    dropped_ids += [] if dropped else [row]
                elif location != before or dropped:
                    moved.append((row, location))
            new = [{"namespace": n, "name": t, "metadata_location": location} for (n, t), location in listed.items()]
            if new:
                first = {"catalog": catalog, "first_seen": now, "evaluate_at": now, "dropped": False}
                insert = dialect_insert(connection, TABLES).values(**first)
                # another process may list the same catalog
                connection.execute(insert.on_conflict_do_nothing(index_elements=["catalog", "namespace", "name"]), new)
            lock_rows(connection, [*(row for row, _ in moved), *ahead_ids, *dropped_ids])
            if moved:
                _record_moved(connection, moved, now)
            for ids in chunks(ahead_ids):
                anew = {"evaluated_at": None, "rest_until": None, "evaluate_at": now}
                connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(ids)).values(anew))
            for ids in chunks(dropped_ids):
                no_work = {"due_since": None, "evaluated_location": None, "evaluate_at": None}
                connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(ids)).values(dropped=True, **no_work))
                connection.execute(sa.delete(VERDICTS).where(VERDICTS.c.table_id.in_(ids)))
        return len(new) + len(moved)

    def sharing(self, ref: TableRef, location: str) -> Sequence[TableRef]:
        own, theirs = location.rstrip("/"), sa.func.rtrim(TABLES.c.location, "/")
        overlaps = (
            (theirs == own)
            | theirs.startswith(f"{own}/", autoescape=True)
            | sa.literal(own).startswith(theirs.concat("/"))
        )
        query = sa.select(*NAME).where(~TABLES.c.dropped, overlaps)
        refs = [ref_of(row) for row in self.db.rows(query.order_by(TABLES.c.id))]
        return [other for other in refs if other != ref]

    def deadly(self) -> Mapping[TableRef, str]:
        query = sa.select(TABLES).where(TABLES.c.evaluation_deaths > 0)
        return {ref_of(row): _death_message(row.evaluation_deaths) for row in self.db.rows(query)}

    def record_evaluation(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        metadata = evaluation.facts.metadata
        with self.db.begin() as connection:
            row = table_row(connection, metadata.ref, locked=True)
            if row is None or (row.evaluated_at is not None and row.evaluated_at > now):
                return  # dropped, or an evaluation that began later is stored already
            same = row.table_uuid in (None, metadata.table_uuid)
            values = {
                **_evaluated(evaluation, now),
                **_pause_of_another_name(connection, row, metadata.table_uuid),
                "due_since": ((row.due_since if same else None) or now) if due(evaluation) else None,
                "succeeded_at": row.succeeded_at if same else None,
                "policy": policy,
            }
            connection.execute(sa.update(TABLES).where(TABLES.c.id == row.id).values(**values))
            write_registration(connection, Registration.of(metadata, evaluation.facts.outside), now)
            if not same:
                findings = (DELETIONS.c.table_id == row.id) & (DELETIONS.c.state == LedgerState.FOUND)
                connection.execute(sa.delete(DELETIONS).where(findings))
                forget_health(connection, row.id)
            record_health(connection, row.id, evaluation, now, row.evaluated_at)
            since = _due_since(connection, row.id) if same else {}
            first = (row.due_since if same and row.error is not None else None) or now  # an error removed the verdicts
            for table in (FACTS, VERDICTS):
                connection.execute(sa.delete(table).where(table.c.table_id == row.id))
            document = dict(evaluation_document(evaluation))
            connection.execute(sa.insert(FACTS).values(table_id=row.id, at=now, document=document))
            connection.execute(sa.insert(VERDICTS), _verdict_rows(row.id, evaluation, since, first, now))

    def record_unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        with self.db.begin() as connection:
            row = table_row(connection, ref, locked=True)
            if row is None or (row.evaluated_at is not None and row.evaluated_at > now):
                return
            tried = row.evaluated_at if row.error is not None and row.evaluated_at is not None else now
            wait = max(_FIRST_RETRY, min(_LAST_RETRY, 2 * (now - tried)))
            retry_at = sa.case((_requested_since(now), TABLES.c.evaluate_at), else_=sa.literal(now + wait, Moment()))
            no_health = {"health": None, "evaluating_by": None, "evaluating_until": None, "evaluation_deaths": 0}
            update = sa.update(TABLES).where(TABLES.c.id == row.id)
            connection.execute(update.values(error=error, evaluated_at=now, evaluate_at=retry_at, **no_health))
            connection.execute(sa.delete(VERDICTS).where(VERDICTS.c.table_id == row.id))

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        query = sa.select(FACTS.c.document).join(TABLES).where(*of_table(ref))
        with self.db.reading() as connection:
            document: Mapping[str, Any] | None = connection.execute(query).scalar()
            return document

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        return self.db.write(_pause(reason).where(*of_table(ref))) == 1

    def pause_many(self, refs: Sequence[TableRef], reason: str | None) -> None:
        with self.db.begin() as connection:
            for ids in _lock_rows(connection, refs):
                connection.execute(_pause(reason).where(TABLES.c.id.in_(ids)))

    def claim_evaluations(
        self,
        catalogs: Sequence[str],
        holder: str,
        now: datetime,
        until: datetime,
        limit: int,
        dead: Callable[[str], bool] = lambda _: False,
    ) -> Sequence[TableRow]:
        with self.db.claiming() as connection:
            parameters = {"catalogs": catalogs, "now": now, "most": limit, "set_back": until + CLOCK_WENT_BACK}
            rows = connection.execute(_DUE_EVALUATIONS, parameters).all()
            lapsed = {row.evaluating_by for row in rows if row.evaluating_by is not None}
            if ended := [process for process in lapsed if dead(process)]:
                record_deaths(connection, ended, now)
                rows = connection.execute(_DUE_EVALUATIONS, parameters).all()
            # a table during whose evaluation a process ended is claimed alone, after all others have been evaluated
            rows = [row for row in rows if not row.evaluation_deaths] or rows[:1]
            if rows and rows[0].evaluation_deaths:
                others = (TABLES.c.evaluating_by == holder) & (TABLES.c.evaluating_until > now)
                rows = [] if connection.execute(sa.select(sa.exists().where(others))).scalar() else rows
            if rows:
                claim = sa.update(TABLES).where(TABLES.c.id.in_([row.id for row in rows]))
                connection.execute(claim.values(evaluating_by=holder, evaluating_until=until))
        return [table_of(row) for row in rows]

    def schedule_evaluation(self, refs: Sequence[TableRef], at: datetime | None, *, release: bool = False) -> None:
        released = {"evaluating_by": None, "evaluating_until": None} if release else {}
        with self.db.begin() as connection:
            for ids in _lock_rows(connection, refs):
                connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(ids)).values(evaluate_at=at, **released))

    def clear_due_work(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        no_work = {"due_since": None, "error": None, "evaluating_by": None, "evaluating_until": None}
        for ref in refs:  # one transaction each, against deadlocks with other orders
            with self.db.begin() as connection:
                if (row := table_row(connection, ref, locked=True)) is None:
                    continue
                table = sa.update(TABLES).where(TABLES.c.id == row.id)
                connection.execute(table.values(evaluate_at=at, **no_work))
                connection.execute(sa.delete(VERDICTS).where(VERDICTS.c.table_id == row.id))


def _record_moved(connection: sa.Connection, moved: Sequence[tuple[int, str]], now: datetime) -> None:
    """Record where the metadata of tables is now, and evaluate them, those that rest once they have rested."""
    after_rest = sa.case((TABLES.c.rest_until > now, TABLES.c.rest_until), else_=sa.literal(now, Moment()))
    locations = values_table(connection, moved, row=sa.BigInteger, location=sa.Text)
    values = {"metadata_location": locations.c.location, "dropped": False, "evaluate_at": after_rest}
    connection.execute(sa.update(TABLES).where(TABLES.c.id == locations.c.row).values(values))


def _evaluated(evaluation: Evaluation, now: datetime) -> dict[str, Any]:
    """Return the columns of a table that an evaluation sets by itself, whatever was there before."""
    metadata, facts, terms = evaluation.facts.metadata, evaluation.facts, evaluation.terms
    return {
        "table_uuid": metadata.table_uuid,
        "location": metadata.location,
        "write_paths": list(metadata.write_paths),
        "metadata_location": metadata.metadata_location,
        "evaluated_location": metadata.metadata_location,
        "evaluated_at": now,
        "evaluate_at": _next_evaluation(evaluation, now),
        "rest_until": now + terms.rest,
        "evaluating_by": None,
        "evaluating_until": None,
        "evaluation_deaths": 0,
        "importance": terms.importance,
        "run_order": terms.order,
        "windows": terms.windows,
        "health": evaluation.health,
        "files": facts.data_files,
        "bytes": facts.data_bytes,
        "error": None,
    }


def _lock_rows(connection: sa.Connection, refs: Sequence[TableRef]) -> Iterator[Sequence[int]]:
    """Lock the rows of tables; return their ids in parts."""
    named = sa.tuple_(*NAME)
    ids: list[int] = []
    for names in chunks([tuple(name_columns(ref).values()) for ref in refs]):
        ids += connection.execute(sa.select(TABLES.c.id).where(named.in_(names))).scalars()
    lock_rows(connection, ids)
    return chunks(ids)


def _due_since(connection: sa.Connection, table_id: int) -> dict[str, datetime]:
    """Return since when each due operation of the table waits."""
    columns = VERDICTS.c.operation, DUE_SINCE.label("since")
    query = sa.select(*columns).where(VERDICTS.c.table_id == table_id, VERDICTS.c.verdict == VERDICT_NAMES[Due])
    return {row.operation: row.since for row in connection.execute(query)}


def record_deaths(connection: sa.Connection, holders: Sequence[str], now: datetime) -> None:
    """Count the end of these processes for the tables that they had claimed to evaluate, and release the claims.

    A process claims many tables and reads few at a time, so the first death only lets a table be evaluated alone. From
    the second on the table's own metadata is the suspect: it is shown as unreadable and evaluated with back-off.
    """
    claimed = TABLES.c.evaluating_by.in_(holders)
    rows = connection.execute(sa.select(TABLES.c.id, TABLES.c.evaluation_deaths).where(claimed).order_by(TABLES.c.id))
    for table_id, before in rows.all():
        deaths = before + 1
        values: dict[str, Any] = {"evaluation_deaths": deaths, "evaluating_by": None, "evaluating_until": None}
        if deaths >= _SUSPECT_DEATHS:
            retry_at = now + min(_LONGEST_RETRY, _RETRY_SUSPECT * 2 ** (deaths - _SUSPECT_DEATHS))
            values |= {"error": _death_message(deaths), "health": None, "evaluate_at": retry_at, "rest_until": retry_at}
            connection.execute(sa.delete(VERDICTS).where(VERDICTS.c.table_id == table_id))
        connection.execute(sa.update(TABLES).where(TABLES.c.id == table_id).values(values))


def _pause_of_another_name(connection: sa.Connection, row: Any, table_uuid: str) -> dict[str, str]:  # noqa: ANN401
    """Return the column `paused` of a table that was paused and then renamed, when its new name is first evaluated."""
    if not table_uuid or row.paused or row.table_uuid == table_uuid:
        return {}
    same = (TABLES.c.catalog == row.catalog) & (TABLES.c.table_uuid == table_uuid) & (TABLES.c.id != row.id)
    why = connection.execute(sa.select(TABLES.c.paused).where(same, TABLES.c.paused.is_not(None))).scalar()
    return {} if why is None else {"paused": why}


def _death_message(deaths: int) -> str:
    return f"unreadable: its evaluation ended a process {deaths} time{'' if deaths == 1 else 's'}"


def _pause(reason: str | None) -> sa.Update:
    """Return the update that pauses tables, or resumes them and resets their breakers."""
    values: dict[str, Any] = {"paused": reason}
    if reason is None:  # earlier failures do not count any more
        jobs = sa.select(sa.func.max(JOBS.c.created)).where(JOBS.c.table_id == TABLES.c.id)
        values["counted_after"] = jobs.scalar_subquery()
    return sa.update(TABLES).values(values)


def _next_evaluation(evaluation: Evaluation, now: datetime) -> sa.ColumnElement[datetime | None]:
    """Return when a table is evaluated after an evaluation that began at `now`.

    A change that was reported since then may not be in the metadata that was read: it is evaluated again.
    """
    after_cooldown = min(now + evaluation.terms.rest, evaluation.revisit)
    return sa.case(
        (_requested_since(now), sa.literal(after_cooldown, Moment())), else_=sa.literal(evaluation.revisit, Moment())
    )


def _requested_since(now: datetime) -> sa.ColumnElement[bool]:
    """Return whether somebody asked, since `now`, for another evaluation of a table that is being evaluated."""
    return TABLES.c.evaluating_by.is_not(None) & (TABLES.c.evaluate_at > now)


_PLAIN_COLUMNS = [name for name in TableRow.__dataclass_fields__ if name not in ("ref", "write_paths")]
_NAMES = {"job_id": "held_by"}  # of columns that are named otherwise than the fields
_plain = itemgetter(*(list(TABLES.c.keys()).index(_NAMES.get(name, name)) for name in _PLAIN_COLUMNS))


def table_of(row: Any) -> TableRow:  # noqa: ANN401 - a row of all columns, of which there may be thousands
    """Return the table of a result row."""
    paths = None if row.write_paths is None else tuple(row.write_paths)
    return TableRow(ref=ref_of(row), write_paths=paths, **dict(zip(_PLAIN_COLUMNS, _plain(row), strict=True)))


def _verdict_rows(
    table_id: int, evaluation: Evaluation, since: Mapping[str, datetime], first: datetime, now: datetime
) -> list[dict[str, Any]]:
    """Return the rows of the verdicts; `since` has the times since which operations are due, `first` the default."""
    return [
        {
            "table_id": table_id,
            "operation": operation,
            "verdict": VERDICT_NAMES[type(verdict)],
            "reason": why(verdict),
            "benefit": verdict.benefit if isinstance(verdict, Due) else None,
            "cost": verdict.cost if isinstance(verdict, Due) else None,
            "at": now,
            "on_pool": isinstance(verdict, Due) and any(on_pool(step) for step in verdict.work.steps),
            "cooled": evaluation.terms.cooled.get(operation),
            "since": since.get(operation, first) if isinstance(verdict, Due) else None,
            "warning": "; ".join(verdict.warnings) or None if isinstance(verdict, Due | NotDue) else None,
        }
        for operation, verdict in evaluation.verdicts.items()
    ]
