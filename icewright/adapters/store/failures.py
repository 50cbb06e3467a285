"""Errors of the store's database, as its users read them."""

from __future__ import annotations

import sqlalchemy as sa

from icewright.core.errors import StoreUnavailable
from icewright.core.words import first_line

_FILE_RIGHTS = "let this user write the file and its folder, or name another file in `state`"
#: What helps, by the beginning of SQLite's name of an error, or PostgreSQL's number.
_REMEDIES = {
    "SQLITE_READONLY": _FILE_RIGHTS,
    "SQLITE_CANTOPEN": _FILE_RIGHTS,
    "SQLITE_FULL": "make room on its disk",
    "53100": "make room on its disk",
    "25006": "name the primary in `state`, as a standby takes no writes",
}


def unavailable(engine: sa.Engine, error: Exception) -> StoreUnavailable:
    """Return the error for users, without the statement, its parameters and the password."""
    address, cause = engine.url.set(query={}).render_as_string(hide_password=True), getattr(error, "orig", None)
    code = str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None))
    remedy = next((f"; {text}" for sign, text in _REMEDIES.items() if code.startswith(sign)), "")
    return StoreUnavailable(f"the state store {address} failed: {message_of(error)}{remedy}")


def message_of(error: Exception) -> str:
    """Return the first line of the database's own message."""
    return first_line(getattr(error, "orig", None) or error)
