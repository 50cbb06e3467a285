"""Connections to PostgreSQL that give up a server of which nothing comes, or which takes no writes any more."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import sqlalchemy as sa

_READ_ONLY = "25006"  # of a server that was the primary, whose connections stay: the address may lead to another by now
SECONDS = 60.0  # without a byte from the server while a statement runs, which waits for a lock for 30 at most


def give_up_lost_servers(engine: sa.Engine) -> sa.Engine:
    """Return the engine, whose statements on PostgreSQL fail once nothing comes from the server for `SECONDS`.

    The limits of libpq hold until a connection is made, and where no kernel confirms its bytes. A proxy that has lost
    the server, and a server that is frozen, take all bytes and answer nothing. After a write that a read-only server
    refuses, all connections are replaced.
    """
    if engine.dialect.name == "postgresql":
        from psycopg import Connection, OperationalError  # noqa: PLC0415 - takes long to load

        class LimitedConnection(Connection[Any]):
            seconds = SECONDS

            def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
                return super().wait(self._limited(gen), *args, **options)

            def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
                """Run a generator of the driver, which learns every 0.1 s whether its socket is ready."""
                try:
                    wanted, heard = next(gen), time.monotonic()
                    while True:
                        if ready := (yield wanted):
                            heard = time.monotonic()
                        elif time.monotonic() - heard > self.seconds:
                            self.close()
                            raise OperationalError(f"the server has sent nothing for {self.seconds:g} s")
                        wanted = gen.send(ready)
                except StopIteration as end:
                    return end.value

        @sa.event.listens_for(engine, "handle_error")
        def _failed(context: sa.engine.ExceptionContext) -> None:
            if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
                context.is_disconnect = True  # of the whole pool

        @sa.event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> Any:  # noqa: ANN401
            return LimitedConnection.connect(*args, **parameters)

    return engine


def wait_without_limit(connection: sa.Connection) -> None:
    """Let the statements of this connection, which is closed instead of used again, take as long as they like."""
    connection.detach()
    driver: Any = connection.connection.dbapi_connection
    driver.seconds = math.inf
