"""Database addresses: passwords that would be parsed as something else, and the limits of time of connections."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

# of libpq: a server that vanishes without a word, as its machine or the network is gone, is known within half a minute
_TIME_LIMITS: Mapping[str, int] = {
    "connect_timeout": 10,  # seconds
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,  # milliseconds that what was sent may stay unconfirmed
}
_OPTION = re.compile(r"[?&][a-z_]+=[^&]*")
_USER = re.compile(r"(?:[^:/]*(?::[^@]*)?@)?")  # user and password as SQLAlchemy splits them


def postgres_time_limits(given: Container[str]) -> dict[str, int]:
    """Return the options of a PostgreSQL connection that limit its waits, but for those that an address has given."""
    return {name: value for name, value in _TIME_LIMITS.items() if name not in given}


def address_fault(address: str) -> str | None:
    """Return why part of the password would be parsed as host, port or database, and shown; None for a safe address.

    Addresses of SQLite files have no password, and their paths may contain any character.
    """
    scheme, _, remainder = address.partition("://")
    if scheme.startswith("sqlite") or "@" not in _OPTION.sub("", _USER.sub("", remainder, count=1)):
        return None
    return "an @ stands where none belongs; percent-encode the password: @ is %40 (and in a user's name / is %2F)"
