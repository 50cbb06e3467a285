"""What the tests of what is shipped share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.house import House


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[House]:
    """An empty lakehouse; whatever a test does with it, Spark is not started."""
    made = House(tmp_path / "house", monkeypatch, capsys)
    yield made
    assert not made.spark_started
