"""Schema revisions: the one of this program, the one of the database, and claims that need both to be equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from icewright.core.errors import SchemaMismatch

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import ReturningUpdate

MIGRATIONS = Path(__file__).parent / "migrations"
_REVISION: sa.Select[str] = sa.select(sa.column("version_num", sa.Text)).select_from(sa.table("alembic_version"))


@cache
def newest_revision() -> str:
    """Return the newest revision of the migrations, whose files are named by their revisions."""
    newest = max((MIGRATIONS / "versions").glob("v*.py"))
    return newest.name.removeprefix("v").partition("_")[0]


def schema_fault(connection: sa.Connection) -> str | None:
    """Return why this process may not work on the database's schema; None while the revisions are equal."""
    return _fault(connection.execute(_REVISION).scalar())


def _fault(revision: str | None) -> str | None:
    if revision == newest_revision():
        return None
    return (
        f"the state store has schema revision {revision or 'none'}, and this process knows {newest_revision()}:"
        " it takes no work until both agree; run the version of Icewright that migrated the store"
    )


def claim(connection: sa.Connection, update: ReturningUpdate[Any], parameters: Mapping[str, Any]) -> Sequence[Any]:
    """Execute an update and the check of the revision in one statement, and return the updated rows.

    Raises `SchemaMismatch`, and changes nothing, when the schema has another revision than this program.
    """
    rows = connection.execute(_with_revision(update), {**parameters, "known_revision": newest_revision()}).all()
    if (fault := _fault(rows[0].version_num if rows else None)) is not None:
        raise SchemaMismatch(fault)
    return [row for row in rows if row.claimed]


@cache
def _with_revision(update: ReturningUpdate[Any]) -> sa.Select[Any]:
    """Return the statement that selects the revision and, where it is `known_revision`, updates.

    PostgreSQL locks tables in the order of the WITH queries, also for a prepared plan, and does not inline one that is
    read twice: the revision comes first. A migration begins with that lock too, so neither has what the other needs.
    """
    revision = _REVISION.cte("revision")
    known = sa.exists().where(revision.c.version_num == sa.bindparam("known_revision"))
    claimed = update.where(known).returning(sa.true().label("claimed")).cte("claimed")
    return sa.select(revision.c.version_num, claimed).select_from(revision.outerjoin(claimed, sa.true()))
