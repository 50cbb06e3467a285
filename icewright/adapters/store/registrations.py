"""Registrations of every table that any catalog ever named, and adoptions that people declared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert, named_dialect_insert
from icewright.adapters.store.schema import ADOPTIONS, REGISTRATIONS, Moment
from icewright.adapters.store.statements import name_columns, namespace_of
from icewright.core.table import TableRef
from icewright.ports import Registration, Registrations

_PAGE = 500

_KEY = ("catalog", "namespace", "name", "table_uuid")

_LISTS = ("places", "folders", "first_places")

_ALL = sa.select(
    *(REGISTRATIONS.c[name] for name in (*_KEY, "metadata_location")),
    *(sa.cast(REGISTRATIONS.c[name], sa.Text) for name in _LISTS),
    REGISTRATIONS.c.seen,
)

_ONE = _ALL.where(*(REGISTRATIONS.c[name] == sa.bindparam(f"its_{name}") for name in _KEY)).with_for_update()


@dataclass
class SqlRegistrations(Registrations):
    """The Registrations port on a database."""

    db: Database

    def list(self) -> Sequence[Registration]:
        with self.db.reading() as connection:
            return [_registration(tuple(row)) for page in connection.execute(_ALL).partitions(_PAGE) for row in page]

    def get(self, ref: TableRef, table_uuid: str) -> Registration | None:
        with self.db.reading() as connection:
            row = connection.execute(_ONE, _key_parameters(ref, table_uuid)).first()
        return None if row is None else _registration(tuple(row))

    def record(self, registrations: Sequence[Registration], now: datetime) -> None:
        with self.db.begin() as connection:
            in_order = sorted(registrations, key=lambda r: (r.ref, r.table_uuid))  # against deadlocks
            for registration in in_order:
                write_registration(connection, registration, now)

    def adopted(self, table_uuid: str) -> frozenset[str]:
        with self.db.reading() as connection:
            query = sa.select(ADOPTIONS.c.what).where(ADOPTIONS.c.table_uuid == table_uuid)
            return frozenset(connection.execute(query).scalars())

    def adopt(self, table_uuid: str, what: Iterable[str], author: str, now: datetime) -> None:
        with self.db.begin() as connection:
            added = dialect_insert(connection, ADOPTIONS).on_conflict_do_nothing(index_elements=["table_uuid", "what"])
            for owned in sorted(set(what)):
                connection.execute(added.values(table_uuid=table_uuid, what=owned, author=author, at=now))


def write_registration(connection: sa.Connection, registration: Registration, now: datetime) -> None:
    """Insert the registration of a table, or update the stored one."""
    key = name_columns(registration.ref) | {"table_uuid": registration.table_uuid}
    row = connection.execute(_ONE, _key_parameters(registration.ref, registration.table_uuid)).first()
    current = None if row is None else _registration(tuple(row))
    new = registration.on_top_of(current)
    if current == new:
        return
    values: dict[str, Any] = {name: list(getattr(new, name)) for name in _LISTS}
    values |= {"location": new.metadata_location, "seen": new.seen or now}
    connection.execute(_upsert(connection.dialect.name), key | values)


@lru_cache
def _upsert(dialect: str) -> sa.Insert:
    """Return the statement for a dialect, built once, as every evaluation executes it."""
    names: dict[str, Any] = {name: sa.bindparam(name) for name in _KEY}
    lists: dict[str, Any] = {name: sa.bindparam(name, type_=sa.JSON) for name in _LISTS}
    values = {**lists, "metadata_location": sa.bindparam("location"), "seen": sa.bindparam("seen", type_=Moment)}
    new = named_dialect_insert(dialect, REGISTRATIONS).values(**names, **values)
    return new.on_conflict_do_update(index_elements=list(_KEY), set_=values)


def _key_parameters(ref: TableRef, table_uuid: str) -> dict[str, str]:
    return {f"its_{name}": value for name, value in (name_columns(ref) | {"table_uuid": table_uuid}).items()}


_Row = tuple[str, str, str, str, str, str, str, str, datetime]  # the columns of `_ALL`


@lru_cache(maxsize=65_536)  # thousands are read again and again, and few change
def _registration(row: _Row) -> Registration:
    catalog, namespace, name, table_uuid, metadata_location, *lists, last_seen = row
    places, folders, first_places = (tuple(json.loads(str(text))) for text in lists)
    ref = TableRef(catalog, namespace_of(namespace), name)
    return Registration(ref, table_uuid, metadata_location, places, folders, first_places, last_seen)
