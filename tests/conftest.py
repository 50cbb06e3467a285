"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from icewright.app.demo.rest_server import RestHost
from tests.postgres import postgres
from tests.rest import fixture

settings.register_profile("long", max_examples=300, deadline=None)  # pytest --hypothesis-profile=long


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("ICEWRIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for the whole session; mark as `external` what asks for it."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def rest_fixture() -> Iterator[RestHost]:
    """The JVM of Apache's REST catalog for the whole session; mark as `external` what asks for it."""
    with fixture() as host:
        yield host
