"""What the tests of the flow share: a bench of fakes around a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from icewright.adapters.store.sql import SqlStore
from icewright.ports import deadlines
from tests.flow.bench import Bench


@pytest.fixture
def bench(copied_store: Callable[[Path], sa.Engine], tmp_path: Path) -> Iterator[Bench]:
    """An empty lake, its catalog enabled, and a store that knows nothing."""
    store = SqlStore(copied_store(tmp_path / "state.db"))
    yield Bench(store)
    store.engine.dispose()


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of evaluation that give up waiting soon."""
    monkeypatch.setattr("icewright.flow.evaluator.ROUND", timedelta(milliseconds=100))


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that soon see whether their catalog fails meanwhile."""
    monkeypatch.setattr(deadlines, "_LOOK_SECONDS", 0.01)
