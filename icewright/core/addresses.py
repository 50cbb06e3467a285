"""Check database addresses for passwords whose characters would be parsed as host, port or database."""

from __future__ import annotations

import re

_OPTION = re.compile(r"[?&][a-z_]+=[^&]*")
_USER = re.compile(r"(?:[^:/]*(?::[^@]*)?@)?")  # user and password as SQLAlchemy splits them


def address_fault(address: str) -> str | None:
    """Return why part of the password would be parsed as host, port or database, and shown; None for a safe address.

    Addresses of SQLite files have no password, and their paths may contain any character.
    """
    scheme, _, remainder = address.partition("://")
    if scheme.startswith("sqlite") or "@" not in _OPTION.sub("", _USER.sub("", remainder, count=1)):
        return None
    return "an @ stands where none belongs; percent-encode the password: @ is %40 (and in a user's name / is %2F)"
