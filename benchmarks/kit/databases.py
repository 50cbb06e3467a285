"""Databases for a benchmark: SQLite files, or those of a PostgreSQL server of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import sqlalchemy as sa

from tests.postgres import postgres

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
Database = Callable[[str], str]  # from a name to the URL of an empty database


@contextmanager
def databases(kind: str, home: Path) -> Iterator[Database]:
    """Databases by name, gone with the block or the folder."""
    if kind == SQLITE:
        yield lambda name: f"sqlite:///{home}/{name}.db"
        return
    with postgres() as server:
        url = sa.make_url(server)

        def made(name: str) -> str:
            engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql(f"create database {name}")
            engine.dispose()
            return url.set(database=name).render_as_string(hide_password=False)

        yield made


def server_of(engine: sa.Engine) -> list[int]:
    """The process that all of a server's are children of, so that they are measured too; none for a file."""
    if engine.dialect.name != "postgresql":
        return []
    with engine.connect() as connection:
        mine = int(connection.exec_driver_sql("select pg_backend_pid()").scalar_one())
    return [psutil.Process(mine).ppid()]
