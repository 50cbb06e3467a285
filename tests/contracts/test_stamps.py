"""Whether anybody has changed the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import StorageUnavailable
from tests.contracts.bench import NOW

WRITE = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('delete from events'); c.commit(); c.close()"


def test_a_commit_of_anybody(store: SqlStore) -> None:
    """Of this store, of another one, and of another process; reading is none."""
    if store.engine.dialect.name != "sqlite":
        assert store.change_token() is None
        return
    other = SqlStore(open_database(str(store.engine.url)))
    seen = [store.change_token()]
    for writer in (store, other, store):
        writer.activity.record("something", NOW)
        seen.append(store.change_token())
    subprocess.run([sys.executable, "-c", WRITE, str(store.engine.url.database)], check=True)
    seen.append(store.change_token())
    assert len(set(seen)) == len(seen)
    store.tables.list()
    other.tables.list()
    assert store.change_token() == seen[-1]
    other.engine.dispose()


def test_a_new_connection_counts_anew(store: SqlStore) -> None:
    """Its stamps are none of those before."""
    if store.engine.dialect.name == "sqlite":
        before = store.change_token()
        store.engine.dispose()
        assert store.change_token() not in (None, before)


def test_in_memory() -> None:
    """One connection does it all, and counts nothing."""
    store = SqlStore(open_database("sqlite:///:memory:"))
    assert store.change_token() is None
    store.engine.dispose()


def test_unavailable(tmp_path: Path) -> None:
    """As whatever else is asked of the store."""
    (tmp_path / "state.db").mkdir()
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/state.db"))
    with pytest.raises(StorageUnavailable):
        store.change_token()
    store.engine.dispose()
