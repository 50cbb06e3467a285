"""Pins: snapshots that readers go on from, or that a running rewrite began on."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from icewright.adapters.store.ledger import NAMED, named
from icewright.adapters.store.registrations import SqlRegistrations
from icewright.adapters.store.schema import JOBS, PINS, TABLES
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import SnapshotPin

_COLUMNS = [PINS.c[name] for name in SnapshotPin.__dataclass_fields__]
_OF_TABLE = sa.select(*_COLUMNS).select_from(PINS).join(TABLES).where(*NAMED)
_HELD = _OF_TABLE.where(PINS.c.table_uuid == sa.bindparam("uuid")).order_by(PINS.c.id)


class SqlPins(SqlRegistrations):
    """The pins of the Store port."""

    def pins(self, ref: TableRef, table_uuid: str) -> Sequence[SnapshotPin]:
        """Held snapshots of the table of this uuid."""
        with self._reading() as connection:
            return [SnapshotPin(*found) for found in connection.execute(_HELD, named(ref) | {"uuid": table_uuid})]

    def pin(self, ref: TableRef, table_uuid: str, pin: SnapshotPin, *, job_id: str | None = None) -> bool:
        """Hold a snapshot, unless another job works on the table."""
        with self._begin() as connection:
            # the lock makes a job that begins on the table wait for this pin, or this pin see the job
            row = self._row(connection, ref, locked=True)
            if row is None:
                return False
            state = connection.execute(sa.select(JOBS.c.state).where(JOBS.c.job_id == row.held_by)).scalar()
            if row.held_by != job_id if job_id is not None else state == JobState.RUNNING:
                return False
            connection.execute(sa.delete(PINS).where(PINS.c.table_id == row.id, PINS.c.reader == pin.reader))
            values = {name: getattr(pin, name) for name in SnapshotPin.__dataclass_fields__}
            connection.execute(sa.insert(PINS).values(table_id=row.id, table_uuid=table_uuid, **values))
        return True

    def unpin(self, ref: TableRef, reader: str) -> bool:
        """Release the pin of a reader; returns False when there is none."""
        with self._begin() as connection:
            row = self._row(connection, ref)
            if row is None:
                return False
            gone = sa.delete(PINS).where(PINS.c.table_id == row.id, PINS.c.reader == reader)
            return connection.execute(gone).rowcount == 1
