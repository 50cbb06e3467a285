"""One Nessie server for the session, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.nessie import NessieServer
from tests.vacuuming import NessieWorkspace


@pytest.fixture
def workspace(nessie: NessieServer, tmp_path: Path) -> Iterator[NessieWorkspace]:
    """An empty repository, with tables of this test to come; other tests on the server find it empty again."""
    made = NessieWorkspace(nessie, tmp_path, f"s{uuid4().hex[:8]}")
    made.reset()
    yield made
    made.reset()
