"""Column types and helpers that all tables of the schema share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class Moment(sa.TypeDecorator[datetime]):
    """A time in UTC. SQLite stores no zone, so the zone is removed on writing and added on reading."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Convert an aware datetime to UTC for the database."""
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ANN401, ARG002
        """Return the database's value as an aware datetime in UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


class Sentence(sa.TypeDecorator[str]):
    """A text for people, such as an error, in which characters that databases do not take are replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Replace NUL, which PostgreSQL refuses, and lone surrogates, as of names of files that are not UTF-8."""
        return None if value is None else value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def row_id() -> sa.Column[int]:
    """Return a primary key column that counts up."""
    wide = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up in INTEGER columns alone
    return sa.Column("id", wide, primary_key=True, autoincrement=True)


SCHEMA = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


@sa.event.listens_for(SCHEMA, "before_create")
def _limit_indexes(schema: sa.MetaData, connection: sa.Connection, **_options: Any) -> None:
    """Limit partial indexes on PostgreSQL as on SQLite.

    As an argument of the index, its condition would load the dialect of PostgreSQL in each command: 40 ms and 3 MB.
    """
    if connection.dialect.name == "postgresql":
        for index in (index for table in schema.tables.values() for index in table.indexes):
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
