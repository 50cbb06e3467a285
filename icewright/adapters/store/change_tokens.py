"""Tokens that tell whether an SQLite database has changed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Hashable

import sqlalchemy as sa


class ChangeTokens:
    """Change tokens of an SQLite database: two are equal when nobody committed in between.

    SQLite counts for each connection the commits of all others, other processes included, so a connection that itself
    changes nothing is queried. A new connection has a new count: its tokens differ from all earlier ones.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: tuple[object, sqlite3.Connection] | None = None
        sa.event.listen(engine, "engine_disposed", self._disconnect)

    def now(self) -> Hashable:
        """Return the current change token. Passes on the database's errors."""
        with self._lock:
            mark, connection = self._connection or self._connect()
            try:
                ((version,),) = connection.execute("pragma data_version")
            except sqlite3.Error:
                self._connection = None
                raise
            return mark, version

    def _connect(self) -> tuple[object, sqlite3.Connection]:
        fairy = self._engine.raw_connection()
        fairy.detach()  # the pool replaces it
        assert isinstance(fairy.dbapi_connection, sqlite3.Connection)  # noqa: S101 - for types
        self._connection = object(), fairy.dbapi_connection
        return self._connection

    def _disconnect(self, _engine: sa.Engine) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection[1].close()
                self._connection = None
