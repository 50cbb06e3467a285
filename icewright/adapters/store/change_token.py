"""Whether anybody has changed the database, asked so cheaply that what was read may be kept until then."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Hashable

import sqlalchemy as sa


class ChangeTokens:
    """Stamps of an SQLite database: two are equal when nobody committed anything in between.

    SQLite counts for each connection what others commit, those of other processes too: so it is asked by one that
    itself changes nothing. A connection that was made anew counts anew: its stamps are not those of the one before.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._by: tuple[object, sqlite3.Connection] | None = None
        sa.event.listen(engine, "engine_disposed", self._closed)

    def now(self) -> Hashable:
        """Return the stamp of this moment. Raises whatever the database does."""
        with self._lock:
            mark, connection = self._by or self._opened()
            try:
                ((version,),) = connection.execute("pragma data_version")
            except sqlite3.Error:
                self._by = None
                raise
            return mark, version

    def _opened(self) -> tuple[object, sqlite3.Connection]:
        fairy = self._engine.raw_connection()
        fairy.detach()  # the pool makes another in its place
        assert isinstance(fairy.dbapi_connection, sqlite3.Connection)  # noqa: S101 - for types
        self._by = object(), fairy.dbapi_connection
        return self._by

    def _closed(self, _engine: sa.Engine) -> None:
        with self._lock:
            if self._by is not None:
                self._by[1].close()
                self._by = None
