"""Every table that any catalog was ever seen to name, and what a person has said to be a table's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import inserting
from icewright.adapters.store.ledger import SqlLedger, named, namespace_of
from icewright.adapters.store.schema import ADOPTIONS, REGISTRATIONS
from icewright.core.table import TableRef
from icewright.ports import Registration

_PAGE = 500
_ALL = sa.select(REGISTRATIONS)
_KEY = ("catalog", "namespace", "name", "table_uuid")


class SqlRegistrations(SqlLedger):
    """The Registrations port on one SQLAlchemy engine."""

    def registrations(self) -> Sequence[Registration]:
        """All registrations, those of now and former ones."""
        with self._reading() as connection:
            return [_registration(row) for page in connection.execute(_ALL).partitions(_PAGE) for row in page]

    def registration(self, ref: TableRef, table_uuid: str) -> Registration | None:
        """One registration."""
        with self._reading() as connection:
            row = connection.execute(_ALL.where(_is(named(ref) | {"table_uuid": table_uuid}))).first()
        return None if row is None else _registration(row)

    def register(self, registrations: Sequence[Registration], now: datetime) -> None:
        """Write down tables as they were read; what was known of their places before stays known."""
        with self._begin() as connection:
            for one in sorted(registrations, key=lambda r: (r.ref, r.table_uuid)):  # one order: nobody waits in a ring
                write_registration(connection, one, now)

    def adopted(self, table_uuid: str) -> frozenset[str]:
        """What a person has said to be this table's own."""
        with self._reading() as connection:
            mine = sa.select(ADOPTIONS.c.what).where(ADOPTIONS.c.table_uuid == table_uuid)
            return frozenset(connection.execute(mine).scalars())

    def adopt(self, table_uuid: str, what: Iterable[str], author: str, now: datetime) -> None:
        """Write down what a person said to be this table's own."""
        with self._begin() as connection:
            added = inserting(connection, ADOPTIONS).on_conflict_do_nothing(index_elements=["table_uuid", "what"])
            for one in sorted(set(what)):
                connection.execute(added.values(table_uuid=table_uuid, what=one, author=author, at=now))


def write_registration(connection: sa.Connection, one: Registration, now: datetime) -> None:
    """Add a registration, or bring it up to date."""
    key = named(one.ref) | {"table_uuid": one.table_uuid}
    mine = _is(key)
    row = connection.execute(_ALL.where(mine).with_for_update()).first()
    known = None if row is None else _registration(row)
    new = one.after(known)
    values: dict[str, Any] = {name: list(getattr(new, name)) for name in ("places", "first_places", "folders")}
    values |= {"metadata_location": new.metadata_location, "seen": new.seen or now}
    if known is None:
        added = inserting(connection, REGISTRATIONS).values(**key, **values)
        connection.execute(added.on_conflict_do_update(index_elements=list(_KEY), set_=values))
    elif known != new:
        connection.execute(sa.update(REGISTRATIONS).where(mine).values(**values))


def _is(key: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    return sa.and_(*(REGISTRATIONS.c[name] == key[name] for name in _KEY))


def _registration(row: Any) -> Registration:  # noqa: ANN401 - a result row
    return Registration(
        TableRef(row.catalog, namespace_of(row.namespace), row.name),
        row.table_uuid,
        row.metadata_location,
        tuple(row.places),
        tuple(row.folders),
        tuple(row.first_places),
        row.seen,
    )
