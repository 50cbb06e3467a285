"""Addresses of databases, in which a password must not be taken for something else."""

from __future__ import annotations

import re

_OPTION = re.compile(r"[?&][a-z_]+=[^&]*")
_USER = re.compile(r"(?:[^:/]*(?::[^@]*)?@)?")  # user and password as SQLAlchemy finds them


def address_fault(address: str) -> str | None:
    """Why a part of the password would be taken for host, port or database, and shown as such; None when it is not.

    Files of SQLite have no password, and may be called as one likes.
    """
    scheme, _, rest = address.partition("://")
    if scheme.startswith("sqlite") or "@" not in _OPTION.sub("", _USER.sub("", rest, count=1)):
        return None
    return "an @ stands where none belongs; percent-encode the password: @ is %40 (and in a user's name / is %2F)"
