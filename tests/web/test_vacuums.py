"""Vacuum of a catalog by the API: who may, what it answers, and what is kept of it."""

from __future__ import annotations

import threading

import pytest

from icewright.core.permissions import Role
from icewright.ports import FleetPause
from tests.web.conftest import ELSEWHERE, Served
from tests.web.test_access import API, REQUIRED, bearer
from tests.web.test_events import problem

pytestmark = pytest.mark.external
URL = f"{API}/catalogs/lake/vacuum"


def vacuum_ended() -> None:
    """Wait for the vacuum in the background."""
    for thread in threading.enumerate():
        if thread.name == "vacuum lake":
            thread.join(60)


@pytest.mark.cases(147)
@pytest.mark.parametrize(
    ("role", "scopes", "may"),
    [
        (Role.VIEWER, (), False),
        (Role.OPERATOR, (), False),
        (Role.OWNER, ("lake",), True),
        (Role.OWNER, ("lake.sales",), False),
        (Role.OWNER, ("pond",), False),
        (Role.ADMIN, (), True),
    ],
)
def test_owners_of_the_catalog_and_admins_alone_vacuum_it(
    served: Served, role: Role, scopes: tuple[str, ...], may: bool
) -> None:
    """Others are refused, dry or not, and neither see what the last vacuum did."""
    client = served.client(served.app(access=REQUIRED), host=ELSEWHERE)
    headers = bearer(served, role, *scopes)
    for dry_run, status in ((True, 200), (False, 202)):
        answer = client.post(URL, json={"dry_run": dry_run}, headers=headers)
        assert answer.status_code == (status if may else 403), answer.text
    vacuum_ended()
    assert client.get(URL, headers=headers).status_code == (200 if may else 403)


def test_the_answer_of_a_vacuum_is_kept(served: Served) -> None:
    """What the dry run counts is what the run does, and what the last vacuum answers, metrics included."""
    client = served.client(served.app())
    assert problem(client.get(URL), 404)["detail"].startswith("catalog lake was not vacuumed")
    dry = client.post(URL, json={"dry_run": True}).json()
    assert (dry["catalog"], dry["dry_run"]) == ("lake", True)
    assert client.post(URL, json={}).json()["state"] == "started"
    vacuum_ended()
    kept = client.get(URL).json()
    assert kept["metrics"]["num_tables"] == dry["metrics"]["num_tables"] == 1
    assert kept["state"] == dry["state"]
    assert len(dry["jobs"]) == 1


def test_a_vacuum_that_may_not_begin(served: Served) -> None:
    """A catalog that nobody knows, and a pause of everything."""
    client = served.client(served.app())
    problem(client.post(f"{API}/catalogs/pond/vacuum", json={}), 404)
    served.bench.store.fleet.begin(FleetPause("a migration", "me", served.bench.clock.now()))
    assert "a migration" in problem(client.post(URL, json={}), 409)["detail"]
