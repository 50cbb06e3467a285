"""Which addresses of databases are torn apart by their password."""

from __future__ import annotations

import pytest

from icewright.core.addresses import address_fault


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://u:hunter2@Tango99@127.0.0.1:9/db",
        "postgresql://u:@@host/db",
        "postgresql://u:hun@ter/2@host/db",
        "postgresql://u:hun@ter:2@host/db",
        "postgresql://u:hun@ter?2@host/db",
        "postgresql://u:hun\n@ter2@host/db",
        "postgresql://dom/u:hunter2@host/db",
    ],
)
def test_torn(address: str) -> None:
    """An @ behind the one that ends the password is refused, with what to write and nothing of what was written."""
    said = address_fault(address)
    assert said is not None
    assert "percent-encode the password: @ is %40" in said
    assert not any(part in said for part in ("hun", "ter", "Tango"))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://u:hunter2%40Tango99@127.0.0.1:9/db",
        "postgresql://u:h:u/n?t#er@host/db",
        "postgresql://user@server:hunter2@host/db",
        "postgresql://host/db",
        "postgresql://u:hunter2@/db?host=@socket&application_name=a@b",
        "postgresql://host/db?passfile=/home/me@corp/.pgpass",
        "sqlite:////data/me@home/a@b.db",
        "data/me@home@b.db",
    ],
)
def test_whole(address: str) -> None:
    """A password that is encoded, an @ in a user's name or in an option, and files of SQLite are as they should be."""
    assert address_fault(address) is None
