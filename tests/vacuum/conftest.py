"""One Nessie server for the session, emptied for each test."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.nessie import NessieServer
from tests.vacuuming import NessieWorkspace


@pytest.fixture
def workspace(nessie: NessieServer, tmp_path: Path) -> NessieWorkspace:
    """An empty repository, with tables of this test to come."""
    made = NessieWorkspace(nessie, tmp_path, f"s{uuid4().hex[:8]}")
    made.reset()
    return made
