"""What tests of faults share: lakehouses for the session, and the sweeps that were made over them."""

from __future__ import annotations

import pytest

from tests.faults.sweeping import Sweeps, prepare, prepare_unsettled


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    """A lakehouse, and what operations do to it."""
    return prepare(tmp_path_factory.mktemp("faults") / "home")


@pytest.fixture(scope="session")
def unsettled(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    """A lakehouse with planned deletions that wait for the next start."""
    return prepare_unsettled(tmp_path_factory.mktemp("faults") / "home")
