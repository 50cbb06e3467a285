"""Catalogs of type `sql`: Iceberg's JDBC catalog, read and written with one statement each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from icewright.adapters.catalogs.metadata_files import MetadataFileCatalog
from icewright.adapters.catalogs.staging import conflict, write_metadata
from icewright.adapters.catalogs.translate import SqlCatalogProperties
from icewright.adapters.postgresql import give_up_lost_servers
from icewright.core.allowlist import require_inside
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, TableNotFound
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import first_line
from icewright.ports import Change, Pointer

_TABLES = sa.table(
    "iceberg_tables",
    sa.column("catalog_name"),
    sa.column("table_namespace"),
    sa.column("table_name"),
    sa.column("metadata_location"),
    sa.column("previous_metadata_location"),
    sa.column("iceberg_type"),
)
_NAMED = (
    _TABLES.c.catalog_name == sa.bindparam("catalog"),
    _TABLES.c.table_namespace == sa.bindparam("namespace"),
    _TABLES.c.table_name == sa.bindparam("name"),
)
_LOCATION = sa.select(_TABLES.c.metadata_location).where(*_NAMED)  # built once, executed many times for each table
_PAGE = 500  # rows fetched at once: one at a time takes longer, and all at once are too many for a processor's cache


@dataclass
class SqlCatalog(MetadataFileCatalog):
    """The Catalog port over a SQLite or PostgreSQL database. Thread-safe."""

    properties: SqlCatalogProperties
    _engine: sa.Engine = field(init=False)
    _listed: Mapping[str, Pointer] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._engine = give_up_lost_servers(sa.create_engine(self.properties.url, pool_pre_ping=True))

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def pointers(self) -> Sequence[Pointer]:
        """Return every table by one query, without views and tables that have no metadata."""
        pages = self._pages(_TABLES.c.catalog_name == self.name)
        pointers = [self._pointer(*row) for page in pages for row in page]
        self._listed = {pointer.metadata_location: pointer for pointer in pointers}
        return pointers

    def neighbours(self) -> Sequence[Pointer]:
        """Return every table of the other catalogs in the same database, by one query."""
        rows = (
            row for page in self._pages(_TABLES.c.catalog_name != self.name, _TABLES.c.catalog_name) for row in page
        )
        return [Pointer(TableRef(catalog, _namespace(space), name), at) for space, name, at, catalog in rows if at]

    def _pages(self, whose: sa.ColumnElement[bool], *more: sa.ColumnClause[Any]) -> Iterator[Sequence[Sequence[str]]]:
        """Yield namespace, name, metadata file and `more` of the tables of some catalogs.

        NUL, which SQLite takes and PostgreSQL does not, is replaced.
        """
        with self._connection() as connection:
            location = _TABLES.c.metadata_location
            query = sa.select(_TABLES.c.table_namespace, _TABLES.c.table_name, location, *more)
            query = query.where(whose, location.is_not(None))
            if self._has_types(connection):  # schema V0 has no views
                query = query.where(sa.func.coalesce(_TABLES.c.iceberg_type, "TABLE") == "TABLE")
            for page in connection.execute(query).partitions(_PAGE):
                yield [tuple(text.replace("\0", "\ufffd") for text in row) for row in page]

    def _pointer(self, namespace: str, name: str, location: str) -> Pointer:
        """Return the pointer of a table, the same object as in the last listing while it is unchanged."""
        listed = self._listed.get(location)
        if listed is not None and listed.ref.name == name and listed.ref.namespace == _namespace(namespace):
            return listed
        return Pointer(TableRef(self.name, _namespace(namespace), name), location)

    def load(self, ref: TableRef) -> TableMetadata:
        """Load the current metadata of a table. Raises `TableNotFound`, `MetadataUnreadable`."""
        return self._stored(ref, self._location(ref))

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Write the next metadata file and swap the pointer if it still names the file of `base`.

        The compare-and-set on the metadata location covers all of the metadata: a concurrent change of any ref,
        snapshot or property is a conflict.
        """
        require_inside(self.allowlist, self.name, base)
        new = write_metadata(self.files, base, change, self.clock.now())
        if new is None:
            return self._current(base)
        after, location = new.after, new.location
        swing = (
            sa.update(_TABLES)
            .where(*_NAMED, _TABLES.c.metadata_location == base.metadata_location)
            .values(metadata_location=location, previous_metadata_location=base.metadata_location)
        )
        self._must_exist()
        try:
            with self._engine.begin() as connection:
                swapped = connection.execute(swing, self._named(base.ref)).rowcount
        except SQLAlchemyError as error:
            self._resolve_lost_response(base, location, error)
            return after
        if swapped != 1:
            self.files.delete([location], 1)  # no commit came to use it
            raise conflict(base)
        return after

    def _current(self, base: TableMetadata) -> TableMetadata:
        """Return `base` for a change without effect. Raises `CommitConflict` if `base` is not current."""
        try:
            now = self._location(base.ref)
        except TableNotFound as error:
            raise conflict(base) from error
        if now != base.metadata_location:
            raise conflict(base)
        return base

    def _resolve_lost_response(self, base: TableMetadata, location: str, error: SQLAlchemyError) -> None:
        """Return if the commit of a lost response landed; else raise its outcome."""
        try:
            # waits for a transaction that the server may still be finishing, as the outcome is open until then
            now = self._location(base.ref, for_update=True)
        except (CatalogUnavailable, TableNotFound) as lost:
            raise CommitStateUnknown(
                f"{base.ref}: the catalog failed during the commit of {location} ({_reason(error)}), and what became "
                f"of it cannot be seen: {lost}"
            ) from error
        if now == location:
            return
        if now == base.metadata_location:
            self.files.delete([location], 1)  # no commit came to use it
            raise CommitConflict(f"{base.ref}: the commit did not land: {_reason(error)}") from error
        raise CommitStateUnknown(f"{base.ref}: another writer committed after {location}: {_reason(error)}") from error

    def _location(self, ref: TableRef, *, for_update: bool = False) -> str:
        query = _LOCATION.with_for_update() if for_update else _LOCATION
        with self._connection() as connection:
            location = connection.execute(query, self._named(ref)).scalar()
        if location is None:
            raise TableNotFound(f"{ref}: the catalog does not know this table; `icewright tables` lists what it knows")
        return str(location)

    def _named(self, ref: TableRef) -> dict[str, str]:
        return {"catalog": self.name, "namespace": ".".join(ref.namespace), "name": ref.name}

    def _must_exist(self) -> None:
        """Raise `CatalogUnavailable` if the database file is missing: SQLite would create an empty one."""
        url = self.properties.url
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
            raise CatalogUnavailable(
                f"catalog {self.name}: there is no file {url.database}; correct catalogs.{self.name}.properties.uri"
            )

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        self._must_exist()
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            where = self.properties.url.set(query={}).render_as_string(hide_password=True)
            raise CatalogUnavailable(
                f"catalog {self.name} at {where} does not answer: {_reason(error)}; is the server up, and does the "
                "database hold the table iceberg_tables?"
            ) from error

    @staticmethod
    def _has_types(connection: sa.Connection) -> bool:
        columns = sa.inspect(connection).get_columns("iceberg_tables")
        return any(c["name"] == "iceberg_type" for c in columns)


@lru_cache(maxsize=4096)  # thousands of tables have few namespaces
def _namespace(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))


def _reason(error: SQLAlchemyError) -> str:
    """Return the database's message, without the statement and its parameters."""
    return first_line(getattr(error, "orig", None) or error)
