"""A catalog with what stands around it: PyIceberg's client of it, its database, its warehouse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from uuid import uuid4

import pytest
import sqlalchemy as sa
from pyiceberg.catalog import Catalog as PyIcebergClient
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.catalogs.translate import sql_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake
from icewright.core.paths import local_path
from icewright.core.table import MAIN, TableMetadata, TableRef
from icewright.ports import AddSnapshot, Change, RemoveSnapshots

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SCHEMA = Schema(NestedField(1, "id", LongType()))
TYPES = {"V0": "", "V1": ", iceberg_type varchar(5)"}


@dataclass
class FixedClock:
    """A clock that stands still unless it is set."""

    time: datetime = NOW

    def now(self) -> datetime:
        """The time that was set."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.time += timedelta(seconds=seconds)


def lost() -> OperationalError:
    """What a driver says of a connection that broke."""
    return OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))


@dataclass
class Losing:
    """An engine over the real one whose commits end in an error: `landing` says whether they happen all the same."""

    real: sa.Engine
    landing: bool
    afterwards: Callable[[], None] = field(default=lambda: None)
    dead: bool = False  # whether nobody answers after the error

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction whose end is never heard of."""
        with self.real.connect() as connection:
            transaction = connection.begin()
            yield connection
            (transaction.commit if self.landing else transaction.rollback)()
        self.afterwards()
        raise lost()

    def connect(self) -> sa.Connection:
        """A connection, as long as somebody answers."""
        if self.dead:
            raise lost()
        return self.real.connect()


@dataclass
class Bench:
    """A catalog, PyIceberg's client of it, and the database and warehouse behind both."""

    uri: str
    warehouse: Path
    clock: FixedClock = field(default_factory=FixedClock)
    name: str = "lake"
    rounds: ClassVar[int] = 3  # of many commits at once
    overlaid: ClassVar[dict[str, str]] = {}  # properties that the catalog gives each table
    row_name = "lake"  # the catalog's name in the rows of the database

    def __post_init__(self) -> None:
        self.properties = sql_catalog(self.name, {"uri": self.uri, "warehouse": f"file://{self.warehouse}"})
        self.client = self.properties.pyiceberg_properties()  # what PyIceberg is given
        self.iceberg: PyIcebergClient = PyIcebergCatalog(self.name, **self.client)
        self.database = sa.create_engine(self.properties.url)
        self.catalog: Any = self.open()
        self._engine = self.catalog._engine  # tests may put another in its place

    def open(self) -> Any:
        """Another client of the same catalog."""
        return SqlCatalog(self.properties, LocalStorage(), self.clock)

    def lose(self, **how: Any) -> None:
        """From now on replies to commits are lost; see `Losing`."""
        self.catalog._engine = Losing(self.catalog._engine, **how)

    def close(self) -> None:
        """Let go of the database."""
        self.iceberg.close()
        self.database.dispose()
        self._engine.dispose()

    def ref(self, *parts: str) -> TableRef:
        """The table's name in this catalog."""
        return TableRef(self.name, parts[:-1], parts[-1])

    def execute(self, statement: str, **values: object) -> None:
        """Change the database behind everybody's back."""
        with self.database.begin() as connection:
            connection.execute(sa.text(statement), values)

    def insert(self, namespace: str, name: str, location: str | None, **more: str) -> None:
        """Insert a row of a table, as some other client would."""
        row = {"catalog_name": self.row_name, "table_namespace": namespace, "table_name": name, **more}
        row |= {"metadata_location": location} if location is not None else {}
        self.execute(f"INSERT INTO iceberg_tables ({', '.join(row)}) VALUES (:{', :'.join(row)})", **row)  # noqa: S608

    def start_over(self, version: str) -> None:
        """Make the catalog's tables anew, as a client of this schema version does."""
        self.execute("DROP TABLE iceberg_tables")
        self.execute(
            "CREATE TABLE iceberg_tables (catalog_name varchar(255) NOT NULL, table_namespace varchar(255) NOT NULL, "
            "table_name varchar(255) NOT NULL, metadata_location varchar(1000), "
            f"previous_metadata_location varchar(1000){TYPES[version]}, "
            "PRIMARY KEY (catalog_name, table_namespace, table_name))"
        )

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The pointers in the database: current and previous metadata file by namespace and name."""
        query = "SELECT table_namespace, table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
        with self.database.connect() as connection:
            return {(space, name): (now, before) for space, name, now, before in connection.execute(sa.text(query))}

    def create(self, *parts: str) -> Table:
        """Make an empty table by PyIceberg."""
        self.iceberg.create_namespace_if_not_exists(parts[:-1])
        return self.iceberg.create_table(parts, SCHEMA)

    def craft(self, name: str, snapshots: int = 4, change: Callable[[Craft], None] | None = None) -> TableMetadata:
        """Make a table of so many snapshots, an hour apart, one file each."""
        lake = Lake(self.iceberg, no_spark, self.warehouse, self.clock.now())
        craft = Craft(lake, name, SCHEMA)
        for number in range(snapshots):
            craft.commit(NOW - timedelta(hours=snapshots - number), [craft.data({"id": [number]})])
        if change is not None:
            change(craft)
        craft.publish()
        made: TableMetadata = self.catalog.load(self.ref(*name.split(".")))
        return made

    def read(self, *parts: str) -> Table:
        """The table as PyIceberg loads it."""
        return self.iceberg.load_table(parts)


def no_spark() -> NoReturn:
    """Spark is not wanted here."""
    raise AssertionError


def json_of(location: str) -> dict[str, Any]:
    """The JSON of a metadata file."""
    content = file_of(location).read_bytes()
    document: dict[str, Any] = json.loads(
        gzip.decompress(content) if location.endswith(".gz.metadata.json") else content
    )
    return document


def file_of(location: str) -> Path:
    """The local file."""
    path = local_path(location)
    assert path is not None
    return Path(path)


def edit(location: str, **fields: Any) -> None:
    """Change top fields of a metadata file, as a writer of another client would have written them."""
    changed = {name.replace("_", "-"): value for name, value in fields.items()}
    file_of(location).write_text(json.dumps(json_of(location) | changed), encoding="utf-8")


def new_database(url: str) -> str:
    """An empty database in the server of `url`."""
    name = f"test_{uuid4().hex}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} STRATEGY wal_log"))
    engine.dispose()
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def removal(base: TableMetadata, *indexes: int, refs: tuple[str, ...] = ()) -> RemoveSnapshots:
    """Remove the snapshots at these places of the history."""
    return RemoveSnapshots(frozenset(base.snapshots[i].snapshot_id for i in indexes), frozenset(refs))


def addition(base: TableMetadata, **fields: Any) -> AddSnapshot:
    """Add a snapshot that reads as the current one does."""
    current = next(
        s for s in json_of(base.metadata_location)["snapshots"] if s["snapshot-id"] == base.current_snapshot_id
    )
    new = current | {"snapshot-id": 4711, "parent-snapshot-id": base.current_snapshot_id}
    new |= {"sequence-number": base.last_sequence_number + 1, "timestamp-ms": int(NOW.timestamp() * 1000)}
    return AddSnapshot(new | {"summary": {**current["summary"], "operation": "replace"}} | fields, MAIN)


CHANGES: dict[str, Callable[[TableMetadata], Change]] = {"remove": lambda base: removal(base, 0), "add": addition}


@dataclass(frozen=True)
class Kind:
    """A catalog that the suite runs over, and what it can."""

    name: str
    external: bool = True  # it needs a server
    deep: bool = True  # namespaces of several levels
    any_name: bool = True  # names of any characters
    removes: bool = True  # snapshots, by itself: Nessie leaves them to vacuum, which sees all branches
    compares: bool = True  # the metadata file as a whole: commits to one base exclude one another
    pyiceberg: bool = True  # knows it where files are local: Nessie's REST side serves S3 alone
    loses: bool = True  # tests can take its reply to a commit away
    sql: bool = False  # a database that tests change behind everybody's back

    def __str__(self) -> str:
        return self.name


KINDS = (
    Kind("sql-sqlite", external=False, sql=True),
    Kind("sql-postgres", sql=True),
    Kind("rest", compares=False, loses=False),
    Kind("nessie", removes=False, pyiceberg=False, loses=False),
    Kind("glue", deep=False),
    Kind("hive", deep=False, any_name=False),
)


def where(can: Callable[[Kind], bool]) -> pytest.MarkDecorator:
    """Run the test over the catalogs that can do it."""
    return pytest.mark.parametrize("uri", [_param(kind) for kind in KINDS if can(kind)], indirect=True)


def _param(kind: Kind) -> Any:
    return pytest.param(kind.name, marks=[pytest.mark.external] if kind.external else [])


# for tests of what only a database can show, such as files that are changed under the catalog's feet
only_sql = where(lambda kind: kind.sql)
deep = where(lambda kind: kind.deep)
any_name = where(lambda kind: kind.any_name)
removes = where(lambda kind: kind.removes)
local = where(lambda kind: kind.sql or kind.name == "rest")
by_pyiceberg = where(lambda kind: kind.pyiceberg)
loses = where(lambda kind: kind.loses)
compares = where(lambda kind: kind.compares and kind.removes)
each_change = pytest.mark.parametrize(
    ("uri", "change"),
    [
        pytest.param(kind.name, change, marks=_param(kind).marks, id=f"{kind}-{name}")
        for kind in KINDS
        for name, change in CHANGES.items()
        if kind.removes or name != "remove"
    ],
    indirect=["uri"],
)
