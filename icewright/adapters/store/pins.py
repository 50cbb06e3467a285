"""Pinned snapshots of tables, under whatever name a table was pinned, and when engines read snapshots last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import JOBS, PINS, SNAPSHOT_READS, TABLES
from icewright.adapters.store.statements import NAMED, columns_of, name_columns, table_row, values_of
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import SnapshotPin, SnapshotPins

# under whatever name of the catalog; a table without a uuid has none but its own
_OF_TABLE = (
    (TABLES.c.catalog == sa.bindparam("catalog"))
    & (PINS.c.table_uuid == sa.bindparam("uuid"))
    & ((PINS.c.table_uuid != "") | sa.and_(*NAMED))
)
_PINS = sa.select(*columns_of(PINS, SnapshotPin)).select_from(PINS).join(TABLES)
_PINS_OF_TABLE = _PINS.where(_OF_TABLE).order_by(PINS.c.id)
_READS_OF_TABLE = sa.select(SNAPSHOT_READS.c.snapshot_id, SNAPSHOT_READS.c.at).join(TABLES).where(*NAMED)


@dataclass
class SqlPins(SnapshotPins):
    """The SnapshotPins port on a database."""

    db: Database

    def list(self, ref: TableRef, table_uuid: str) -> Sequence[SnapshotPin]:
        return [SnapshotPin(*row) for row in self.db.rows(_PINS_OF_TABLE, name_columns(ref) | {"uuid": table_uuid})]

    def add(self, ref: TableRef, table_uuid: str, pin: SnapshotPin, *, job_id: str | None = None) -> bool:
        with self.db.begin() as connection:
            # the lock orders this pin and a job that begins on the table
            row = table_row(connection, ref, locked=True)
            if row is None:
                return False
            state = connection.execute(sa.select(JOBS.c.state).where(JOBS.c.job_id == row.held_by)).scalar()
            if row.held_by != job_id if job_id is not None else state == JobState.RUNNING:
                return False
            connection.execute(_unpin(row, table_uuid, pin.reader))
            connection.execute(sa.insert(PINS).values(table_id=row.id, table_uuid=table_uuid, **values_of(pin)))
        return True

    def remove(self, ref: TableRef, reader: str) -> bool:
        with self.db.begin() as connection:
            row = table_row(connection, ref)
            if row is None:
                return False
            return connection.execute(_unpin(row, row.table_uuid, reader)).rowcount > 0

    def reads(self, ref: TableRef) -> Mapping[int, datetime]:
        return {row.snapshot_id: row.at for row in self.db.rows(_READS_OF_TABLE, name_columns(ref))}


def _unpin(row: Any, table_uuid: str | None, reader: str) -> sa.Delete:  # noqa: ANN401 - a result row
    """Return the deletion of a reader's pins of a table, under earlier names too."""
    of_table: sa.ColumnElement[bool] = PINS.c.table_id == row.id
    if table_uuid:
        names = sa.select(TABLES.c.id).where(TABLES.c.catalog == row.catalog)
        of_table |= PINS.c.table_id.in_(names) & (PINS.c.table_uuid == table_uuid)
    return sa.delete(PINS).where(of_table, PINS.c.reader == reader)
