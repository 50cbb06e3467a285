"""The store's database: equal to the schema in code however it was made, and errors that people can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from icewright.adapters.store.database import is_current, open_database
from icewright.adapters.store.schema import SCHEMA
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.core.errors import ConfigError, IcewrightError, SchemaMismatch, StorageUnavailable
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.ports import Pointer, Trigger
from tests.contracts.bench import new_database

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIRST = Path(__file__).parent / "first_schema"  # what the first release makes, in each dialect
REF = TableRef("lake", ("sales",), "orders")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.external)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database of each kind."""
    postgres = request.param == "postgres"
    url = (
        new_database(request.getfixturevalue("postgres_url")) if postgres else f"sqlite:///{tmp_path}/deep/er/state.db"
    )
    opened = open_database(url)
    yield opened
    opened.dispose()


@pytest.fixture(params=["new", "of the first release"])
def upgraded(request: pytest.FixtureRequest, engine: sa.Engine) -> sa.Engine:
    """A database that was empty before its upgrade, or had the store of the first release."""
    if request.param != "new":
        statements = (FIRST / f"{engine.dialect.name}.sql").read_text(encoding="utf-8")
        with engine.begin() as connection:
            for statement in statements.split(";\n")[:-1]:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0014')")
    upgrade(engine)
    return engine


def test_an_upgrade_makes_the_schema(upgraded: sa.Engine) -> None:
    """A database that was upgraded has exactly the tables, columns, types and indexes of the code."""
    with upgraded.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, SCHEMA) == []
        tables = set(sa.inspect(connection).get_table_names())
    assert tables == {*SCHEMA.tables, "alembic_version"}


def test_an_upgrade_names_as_the_schema_does(upgraded: sa.Engine) -> None:
    """Constraints and indexes have the names that the code gives them, so that later migrations can drop them."""
    with upgraded.begin() as connection:
        found = sa.inspect(connection)
        for table in SCHEMA.tables.values():
            unnamed = upgraded.dialect.name == "sqlite" and table.dialect_options["sqlite"]["autoincrement"]
            assert found.get_pk_constraint(table.name)["name"] == (None if unnamed else table.primary_key.name)
            assert {i["name"] for i in found.get_indexes(table.name) if "duplicates_constraint" not in i} == {
                i.name for i in table.indexes
            }
            assert {k["name"] for k in found.get_foreign_keys(table.name)} == {
                k.name for k in table.foreign_key_constraints
            }


def test_an_unknown_revision_is_left_alone(engine: sa.Engine) -> None:
    """A store of a newer release, or of a build before the first, is refused with its revision and what to do."""
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0007'")
    with pytest.raises(SchemaMismatch, match="revision 0007, from which this release does not upgrade: run"):
        upgrade(engine)


def test_a_table_of_somebody_else_is_left_alone(engine: sa.Engine) -> None:
    """Where the database has a table of one of the store's names already, nothing is made."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE jobs (theirs INTEGER)")
    with pytest.raises(StorageUnavailable, match="jobs"):
        upgrade(engine)
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == ["jobs"]


def test_upgrading_twice_changes_nothing(engine: sa.Engine) -> None:
    """The second upgrade keeps every row."""
    assert not is_current(engine)
    upgrade(engine)
    assert is_current(engine)
    store = SqlStore(engine)
    store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    upgrade(engine)
    assert is_current(engine)
    assert [row.ref for row in store.tables.list()] == [REF]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("icewright.db", "state: not a database URL"),
        ("mysql://me:hush-4711@host/db", "state: mysql is not supported; use sqlite or postgresql"),
        ("oracle://me:hush-4711@host/db", "state: oracle is not supported"),
        ("postgresql+psycopg://me:hush-4711@host:port/db", "state: not a database URL"),
        ("", "state: not a database URL"),
    ],
)
def test_an_address_that_is_no_database(address: str, said: str) -> None:
    """What is neither SQLite nor PostgreSQL is refused, without repeating the password."""
    with pytest.raises(ConfigError, match=said) as caught:
        open_database(address)
    assert "hush-4711" not in str(caught.value)


def see(store: SqlStore) -> int:
    """The catalog lists the table."""
    return store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)


def claim(store: SqlStore) -> str | None:
    """A job wants the table."""
    return store.jobs.claim(REF, "u1", (Operation.COMPACT,), Trigger("cycle", "me", "host:1:2"), NOW)


@pytest.mark.external
def test_connections_that_a_server_ended_are_replaced(server: Callable[[], sa.Engine], postgres_url: str) -> None:
    """After a restart, or when an administrator ends idle connections, the next transaction works."""
    engine = server()
    with engine.connect() as one, engine.connect() as two:
        pids = [opened.exec_driver_sql("SELECT pg_backend_pid()").scalar() for opened in (one, two)]
    ends = sa.text("SELECT pg_terminate_backend(pid, 10000) FROM unnest(CAST(:pids AS int[])) AS pid")
    administrator = sa.create_engine(postgres_url)
    with administrator.connect() as connection:
        assert [ended for (ended,) in connection.execute(ends, {"pids": pids})] == [True, True]
    administrator.dispose()
    assert SqlStore(engine).jobs.list() == []
    with engine.connect() as one, engine.connect() as two:
        assert pids != [opened.exec_driver_sql("SELECT pg_backend_pid()").scalar() for opened in (one, two)]


NOT_THERE = {
    "postgresql+psycopg://me:hush-4711@127.0.0.1:1/db": r"127\.0\.0\.1:1/db",
    "postgresql+psycopg://127.0.0.1:1/db?user=me&password=hush-4711": r"127\.0\.0\.1:1/db",
    "sqlite:////dev/null": "/dev/null",
}


@pytest.mark.slow
def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    """Every call raises `StorageUnavailable`, which names the database and never the password.

    So does one to a file that is no database.
    """
    (tmp_path / "state.db").write_bytes(b"this is no database" * 100)
    addresses = {**NOT_THERE, f"sqlite:///{tmp_path}/state.db": r"state\.db"}
    with ThreadPoolExecutor(4 * len(addresses)) as threads, ExitStack() as opened:  # a call is retried for a second
        answers: list[tuple[str, Future[object]]] = []
        for address, name in addresses.items():
            store = SqlStore(open_database(address))
            opened.callback(store.engine.dispose)
            calls = (store.tables.list, partial(see, store), partial(claim, store), partial(upgrade, store.engine))
            answers += [(name, threads.submit(call)) for call in calls]
        for name, answer in answers:
            with pytest.raises(StorageUnavailable, match=name) as caught:
                answer.result()
            assert "hush-4711" not in str(caught.value)


def test_a_sqlite_file_that_was_never_migrated(tmp_path: Path) -> None:
    """An empty file is an error on purpose."""
    (tmp_path / "state.db").write_bytes(b"")
    engine = open_database(f"sqlite:///{tmp_path}/state.db")
    with pytest.raises(StorageUnavailable, match=r"state\.db"):
        SqlStore(engine).tables.list()
    engine.dispose()


@pytest.mark.parametrize("place", ["/proc/nowhere/state.db", "/dev/null/state.db"])
def test_a_folder_that_cannot_be_made(place: str) -> None:
    """A SQLite file in a place where no folder can be made is an error that names the place, not a traceback."""
    with pytest.raises(IcewrightError, match=place):
        SqlStore(open_database(f"sqlite:///{place}")).tables.list()


def test_a_read_only_store(tmp_path: Path) -> None:
    """A store that cannot be written says so, and starts nothing."""
    upgrade(made := open_database(f"sqlite:///{tmp_path}/state.db"))
    see(SqlStore(made))
    made.dispose()
    engine = open_database(f"sqlite:///file:{tmp_path}/state.db?mode=ro&uri=true")
    with pytest.raises(StorageUnavailable, match="readonly database; let this user write the file"):
        claim(SqlStore(engine))
    engine.dispose()
