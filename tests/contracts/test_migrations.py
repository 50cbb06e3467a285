"""The store's database: made by migrations alone, equal to the schema in code, and errors that people can read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from icewright.adapters.store.database import is_current, migrate, open_database, upgrade
from icewright.adapters.store.schema import SCHEMA
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import ConfigError, IcewrightError, StorageUnavailable
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.ports import Pointer, Trigger
from tests.contracts.bench import new_database

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")  # that a release, or a checkout, may have left
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


def test_migrations_make_the_schema(engine: sa.Engine) -> None:
    """A database that every migration has run on has exactly the tables, columns, types and indexes of the code."""
    upgrade(engine)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, SCHEMA) == []
        tables = set(sa.inspect(connection).get_table_names())
    assert tables == {*SCHEMA.tables, "alembic_version"}


def test_migrations_are_named_as_the_schema_is(engine: sa.Engine) -> None:
    """Constraints and indexes have the names that the code gives them, so that later migrations can drop them."""
    upgrade(engine)
    with engine.begin() as connection:
        found = sa.inspect(connection)
        for table in SCHEMA.tables.values():
            unnamed = engine.dialect.name == "sqlite" and table.dialect_options["sqlite"]["autoincrement"]
            assert found.get_pk_constraint(table.name)["name"] == (None if unnamed else table.primary_key.name)
            assert {i["name"] for i in found.get_indexes(table.name) if "duplicates_constraint" not in i} == {
                i.name for i in table.indexes
            }
            assert {k["name"] for k in found.get_foreign_keys(table.name)} == {
                k.name for k in table.foreign_key_constraints
            }


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


@pytest.mark.parametrize("revision", REVISIONS)
def test_upgrading_from_every_revision_keeps_what_is_known(engine: sa.Engine, revision: str) -> None:
    """A store that an earlier release made, with a table and an ended job in it, goes on where it was."""
    migrate(engine, revision)
    with engine.begin() as connection:
        tables, jobs = (sa.Table(name, sa.MetaData(), autoload_with=connection) for name in ("tables", "jobs"))
        known: dict[str, object] = {
            "namespace": '["sales"]',
            "name": "orders",
            "metadata_location": "m1",
            "dropped": False,
        }
        known |= {"evaluate_at": NOW.replace(tzinfo=None)} if "evaluate_at" in tables.c else {}
        connection.execute(sa.insert(tables).values(catalog="lake", first_seen=NOW.replace(tzinfo=None), **known))
        times = dict.fromkeys(("created", "started", "finished", "heartbeat"), NOW.replace(tzinfo=None))
        who = {"trigger": "cycle", "actor": "me", "holder": "host:1:2", "summary": "done", "state": "succeeded"}
        job = {"job_id": "job-1", "table_id": 1, "table_uuid": "u1", "operations": ["compact"], **who, **times}
        connection.execute(sa.insert(jobs).values(cancel_requested=False, **job))
    upgrade(engine)
    store = SqlStore(engine)
    (row,) = store.tables.list()
    assert (row.ref, row.metadata_location, row.held_by) == (REF, "m1", None)
    assert [(job.job_id, job.operations) for job in store.jobs.list(REF)] == [("job-1", (Operation.COMPACT,))]
    until = NOW + timedelta(minutes=1)
    assert [r.ref for r in store.tables.claim_evaluations(["lake"], "host:1:2", NOW, until, 10)] == [REF]
    assert claim(store) is not None


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


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://me:hush-4711@127.0.0.1:1/db",
        "postgresql+psycopg://127.0.0.1:1/db?user=me&password=hush-4711",
        "sqlite:////dev/null",
    ],
)
def test_a_database_that_does_not_answer(address: str) -> None:
    """Every call raises `StorageUnavailable`, which names the database and never the password."""
    engine = open_database(address)
    store = SqlStore(engine)
    for call in (store.tables.list, lambda: see(store), lambda: claim(store), lambda: upgrade(engine)):
        with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:1/db|/dev/null") as caught:
            call()
        assert "hush-4711" not in str(caught.value)
    engine.dispose()


@pytest.mark.parametrize("broken", [b"this is no database" * 100, b""], ids=["foreign file", "never migrated"])
def test_a_broken_sqlite_file(tmp_path: Path, broken: bytes) -> None:
    """A file that is no database, or an empty one, is an error on purpose."""
    (tmp_path / "state.db").write_bytes(broken)
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
    with pytest.raises(StorageUnavailable, match="readonly"):
        claim(SqlStore(engine))
    engine.dispose()
