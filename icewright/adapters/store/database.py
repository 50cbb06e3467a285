"""Opening the store's database: pragmas, transactions, and tokens that tell whether it has changed."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import tenacity
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InvalidatePoolError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from icewright.adapters.postgresql import give_up_lost_servers
from icewright.adapters.private import make_private
from icewright.adapters.store import revisions
from icewright.adapters.store.change_tokens import ChangeTokens
from icewright.adapters.store.failures import message_of, unavailable
from icewright.adapters.store.schema import JOBS
from icewright.core.addresses import address_fault, postgres_time_limits
from icewright.core.errors import ConfigError, SchemaMismatch, StoreUnavailable
from icewright.ports.work import progress

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.sql.dml import ReturningUpdate

READS = "icewright_reads"  # option of a connection that only reads, and waits for no writer
_ONE_STATEMENT = "icewright_one_statement"  # option of a connection: its one statement is a transaction of itself
_WRITE_LOCK = "icewright_write_lock"  # option of an engine: the lock of the threads of this process that write
_CHANGE_TOKENS = "icewright_change_tokens"  # option of an engine: the source of its change tokens
_USED = "icewright_used"  # of a connection's information: it is not a new one
_LOCK_LIMIT = "30s"  # that a statement waits, as for a table that an administrator has locked


def check_address(address: str) -> None:
    """Raise `ConfigError` when the address is neither `sqlite:///file` nor `postgresql+psycopg://...`."""
    _url(address)


def open_database(address: str) -> sa.Engine:
    """Return an engine on `sqlite:///file` or `postgresql+psycopg://...`. Raises `ConfigError` for anything else."""
    url = _url(address)
    return _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)


def _url(address: str) -> URL:
    if fault := address_fault(address):
        raise ConfigError([f"state: {fault}"])
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise ConfigError(
            ["state: not a database URL; write sqlite:///icewright.db or postgresql+psycopg://..."]
        ) from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError([f"state: {url.get_backend_name()} is not supported; use sqlite or postgresql+psycopg"])
    return url


def _postgresql(url: URL) -> sa.Engine:
    limits, url = postgres_time_limits(url.query), url.set(drivername="postgresql+psycopg")
    # the driver begins no transaction: SQLAlchemy does, below
    engine = give_up_lost_servers(sa.create_engine(url, connect_args=limits, isolation_level="AUTOCOMMIT"))

    @sa.event.listens_for(engine, "checkout")
    def _checked_out(connection: Any, record: Any, _proxy: Any) -> None:  # noqa: ANN401 - the driver's own objects
        # a server sends something to an idle connection when it ends it: no ping costs each transaction a round trip
        if record.info.get(_USED) and (connection.closed or _has_input(connection.fileno())):
            raise InvalidatePoolError
        record.info[_USED] = True

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get(_ONE_STATEMENT):
            connection.exec_driver_sql(f"begin; set local lock_timeout = '{_LOCK_LIMIT}'")  # one round trip

    return engine


def _has_input(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _make_file(database: str) -> None:
    folder = Path(database).expanduser().resolve().parent
    try:
        make_private(folder)
        if not (file := Path(database).expanduser()).exists():  # with the mode that SQLite gives its other files, too
            file.touch(mode=0o600)
    except OSError as error:
        raise StoreUnavailable(f"state: {database}: it cannot be made: {error.strerror}; name another file") from error


def _sqlite(url: URL) -> sa.Engine:
    if url.database and url.database != ":memory:":
        if not url.database.startswith("file:"):  # a URI of SQLite itself
            _make_file(url.database)
        options = {_WRITE_LOCK: threading.RLock()}  # waiting in SQLite itself polls, up to 100 ms apart
        engine = sa.create_engine(url, connect_args={"timeout": 60}, execution_options=options)
        engine.update_execution_options(**{_CHANGE_TOKENS: ChangeTokens(engine)})
    else:
        engine = sa.create_engine(url, connect_args={"check_same_thread": False}, poolclass=sa.StaticPool)

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own objects
        connection.isolation_level = None  # the driver begins no transaction: SQLAlchemy does, below
        cursor = connection.cursor()
        for pragma in ("journal_mode = wal", "synchronous = full", "foreign_keys = on", "busy_timeout = 60000"):
            cursor.execute(f"pragma {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        # without IMMEDIATE a transaction that reads first and writes later fails instead of waiting
        reads = connection.get_execution_options().get(READS)
        connection.exec_driver_sql("begin" if reads else "begin immediate")

    return engine


def is_current(engine: sa.Engine) -> bool:
    """Return whether the database has the newest revision."""
    with _transaction(engine) as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return False
        return revisions.schema_fault(connection) is None


def is_new(engine: sa.Engine) -> bool:
    """Return whether the database has no table of the store; a catalog may have tables in it."""
    with _transaction(engine) as connection:
        return {"alembic_version", *JOBS.metadata.tables}.isdisjoint(sa.inspect(connection).get_table_names())


def is_writable(engine: sa.Engine) -> bool:
    """Return whether the database takes writes: a standby, a server set read-only, and a file without rights do not."""
    if engine.dialect.name != "postgresql":
        file = Path(engine.url.database or "")
        return not file.is_file() or all(os.access(path, os.W_OK) for path in (file, file.resolve().parent))
    with _transaction(engine) as connection:
        return bool(connection.exec_driver_sql("show transaction_read_only").scalar() == "off")


def server_time(engine: sa.Engine) -> datetime | None:
    """Return the time of the database's server; None for a file, which has no clock. Raises `StoreUnavailable`."""
    if engine.dialect.name != "postgresql":
        return None
    with _transaction(engine) as connection:
        server_now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return server_now.astimezone(UTC)


class Database:
    """Transactions on one SQLAlchemy engine, shared by all parts of the store."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._reader = engine.execution_options(**{READS: True})
        self._claimer = engine.execution_options(**{_ONE_STATEMENT: True})
        self._shared = threading.local()

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Begin a transaction that may write, or join that of `writing_together`.

        Raises `StoreUnavailable` for every error of the database, `ValueError` for a value that it does not take, and
        `LeaseLost` in a thread whose work was abandoned.
        """
        progress()  # what an abandoned thread brings back is not recorded
        if (shared := self._joined()) is not None:
            if not self.shares_writes:
                raise RuntimeError("reads that share a transaction are followed by a write before it ends")
            yield shared  # an error of the database passes as it is, so that nobody goes on in its transaction
            progress()
            return
        with (
            self.engine.get_execution_options().get(_WRITE_LOCK, nullcontext()),
            _transaction(self.engine) as connection,
        ):
            yield connection
            progress()

    @contextmanager
    def claiming(self) -> Iterator[sa.Connection]:
        """Begin a transaction that claims work for this process.

        Raises `SchemaMismatch` when the schema is not of this program's revision: during a rolling upgrade a process of
        another version claims nothing, and finishes its running work as usual.
        """
        with self.begin() as connection:
            if (fault := revisions.schema_fault(connection)) is not None:
                raise SchemaMismatch(fault)
            yield connection

    def claim(self, update: ReturningUpdate[Any], parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Claim work for this process by one update, and return the rows that it returns; see `claiming`.

        On PostgreSQL the one statement sees the revision too, and costs one round trip where a transaction costs four.
        """
        if self.engine.dialect.name != "postgresql" or self._joined() is not None:
            with self.claiming() as connection:
                return connection.execute(update, parameters).all()
        progress()
        try:
            with _transaction(self._claimer) as connection:
                return revisions.claim(connection, update, parameters)
        except StoreUnavailable as error:  # the schema of another version may lack a column
            if (fault := self.schema_fault()) is not None:
                raise SchemaMismatch(fault) from error
            raise

    def schema_fault(self) -> str | None:
        """Return why this process may not work on the database's schema; None while both know the same revision."""
        with self.reading() as connection:
            return revisions.schema_fault(connection)

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction that only reads, or join the shared one; it does not wait for writers."""
        shared = self._joined()
        return _transaction(self._reader) if shared is None else nullcontext(shared)

    @property
    def shares_writes(self) -> bool:
        """Return whether the calls of this thread share a transaction that may write: see `writing_together`."""
        shared = self._joined()
        return shared is not None and not shared.get_execution_options().get(READS)

    def _joined(self) -> sa.Connection | None:
        """Return the connection of the transaction that the calls of this thread share now; None when they do not."""
        connection: sa.Connection | None = getattr(self._shared, "connection", None)
        return connection

    def rows(self, query: sa.Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Return all rows of one query in a transaction that only reads; see `reading`."""
        with self.reading() as connection:
            return connection.execute(query, parameters).all()

    def write(self, statement: sa.Executable) -> int:
        """Execute one statement in a transaction of its own, and return the number of rows that it changed."""
        with self.begin() as connection:
            return connection.execute(statement).rowcount

    def reading_together(self) -> AbstractContextManager[None]:
        """Let all reads of this thread share one transaction. Raises `RuntimeError` for a write before it ends."""
        return self._share(self.reading())

    def writing_together(self) -> AbstractContextManager[None]:
        """Let all calls of this thread share one transaction, which an error in the block rolls back."""
        return self._share(self.begin())

    @contextmanager
    def _share(self, transaction: AbstractContextManager[sa.Connection]) -> Iterator[None]:
        with transaction as connection:
            earlier, self._shared.connection = self._joined(), connection
            try:
                yield
            finally:
                self._shared.connection = earlier

    def change_token(self) -> Hashable | None:
        """Return a value that changes with every commit of any process; None where no cheap one exists."""
        tokens: ChangeTokens | None = self.engine.get_execution_options().get(_CHANGE_TOKENS)
        try:
            return None if tokens is None else tokens.now()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise unavailable(self.engine, error) from error


@contextmanager
def _transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    try:
        with _begin(engine) as connection:
            yield connection
            if not connection.get_execution_options().get(READS):  # what was read is not lost with a connection
                connection.commit()
    except DataError as error:  # the value is at fault, and the same store takes others
        raise ValueError(f"the state store does not take a value: {message_of(error)}") from error
    except (DBAPIError, NoConnection) as error:
        raise unavailable(engine, error) from error


def _begin(engine: sa.Engine) -> sa.Connection:
    """Return a connection whose transaction has begun.

    An error before that is retried for a second, as nothing was asked of the database: connections are refused for a
    moment, or one of the pool was lost without a word.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((DBAPIError, NoConnection)),
        wait=tenacity.wait_random_exponential(0.05, max=0.4),
        stop=tenacity.stop_after_delay(1),
        reraise=True,
    )
    return retrying(_begin_once, engine)


def _begin_once(engine: sa.Engine) -> sa.Connection:
    connection = engine.connect()
    try:
        connection.begin()
    except BaseException:
        connection.close()
        raise
    return connection


def dialect_insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert of the dialect, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return named_dialect_insert(connection.dialect.name, table)


def named_dialect_insert(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert of the dialect of that name."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)
