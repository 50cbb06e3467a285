"""What the tests of the flow share: a bench of fakes around a real store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from tests.flow.bench import Bench


@pytest.fixture
def bench(empty_store: Path, tmp_path: Path) -> Iterator[Bench]:
    """An empty lake, its catalog enabled, and a store that knows nothing."""
    store = SqlStore(open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'state.db')}"))
    yield Bench(store)
    store.engine.dispose()
