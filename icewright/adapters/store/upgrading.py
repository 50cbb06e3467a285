"""Creating the store's schema, and migrating that of an earlier release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import tenacity
from sqlalchemy.exc import SQLAlchemyError

from icewright.adapters.postgresql import wait_without_limit
from icewright.adapters.store import revisions
from icewright.adapters.store.failures import unavailable
from icewright.adapters.store.schema import JOBS
from icewright.core.errors import SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK_CONFLICTS = ("40P01", "55P03")  # deadlock_detected, lock_not_available
_MIGRATION_LOCK = 0x1CE  # of PostgreSQL's advisory locks
_MIGRATION_ATTEMPTS = 20


def _alembic(connection: sa.Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(revisions.MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def upgrade(engine: sa.Engine) -> None:
    """Create the schema in an empty database, or migrate that of an earlier release to the newest revision.

    Either is one transaction. In PostgreSQL it locks all tables first, and begins again when running processes keep it
    from a lock for 5 s, or when it and one of them wait for each other. Raises `StoreUnavailable` when the database
    does not answer, and `SchemaMismatch` for a revision that no migration of this release knows.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_lock_conflict),
        wait=tenacity.wait_random(0.05, 0.5),
        stop=tenacity.stop_after_attempt(_MIGRATION_ATTEMPTS),
        reraise=True,
    )
    try:
        retrying(_upgrade_once, engine)
    except SQLAlchemyError as error:
        raise unavailable(engine, error) from error


def _upgrade_once(engine: sa.Engine) -> None:
    from alembic import command, util
    from alembic.runtime.migration import MigrationContext

    with engine.connect() as connection, _without_foreign_keys(connection), connection.begin():
        if engine.dialect.name == "postgresql":
            wait_without_limit(connection)  # for what rewrites large tables
            connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            # one at a time, of no table too
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            _lock_tables(connection)
        config, revision = _alembic(connection), MigrationContext.configure(connection).get_current_revision()
        if revision is None:
            JOBS.metadata.create_all(connection, checkfirst=False)  # a foreign table of the name is an error
            command.stamp(config, "head")
            return
        try:
            command.upgrade(config, "head")
        except util.CommandError as error:
            raise SchemaMismatch(
                f"the state store has schema revision {revision}, from which this release does not upgrade: run the"
                " version of Icewright that migrated the store; one of a build before the first release is made again"
            ) from error


def _lock_tables(connection: sa.Connection) -> None:
    """Lock all tables of the store, the revision first: it is what every claim of work reads first."""
    names = sorted(sa.inspect(connection).get_table_names(), key=lambda name: (name != "alembic_version", name))
    if names:
        quoted = ", ".join(map(connection.dialect.identifier_preparer.quote, names))
        connection.exec_driver_sql(f"LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")


def _is_lock_conflict(error: BaseException) -> bool:
    """Return whether PostgreSQL ended a transaction for a deadlock or a lock that it did not get in time."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _LOCK_CONFLICTS


@contextmanager
def _without_foreign_keys(connection: sa.Connection) -> Iterator[None]:
    """Suspend foreign keys: SQLite alters a table by making it anew, while others refer to it."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.dbapi_connection  # SQLite ignores the pragma inside a transaction
    driver.execute("pragma foreign_keys = off")
    try:
        yield
    finally:
        driver.execute("pragma foreign_keys = on")
