"""Vacuum of a catalog by the API: who may, what it answers, and what is kept of it."""

from __future__ import annotations

import threading

import pytest

from icewright.app.web.running import serving
from icewright.client import Client, Refusal
from icewright.core.permissions import Role
from icewright.ports import FleetPause
from tests.web.conftest import ELSEWHERE, HERE, Served
from tests.web.test_access import API, REQUIRED, bearer
from tests.web.test_events import problem
from tests.web.test_pages import BROWSER, token_of

pytestmark = pytest.mark.external
URL, PAGE = f"{API}/catalogs/lake/vacuum", "/vacuum?catalog=lake"


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
    """Others are refused by API, page and client, dry or not, and none sees the last vacuum; jobs are the caller's."""
    app = served.app(access=REQUIRED)
    client, headers = served.client(app, host=ELSEWHERE), bearer(served, role, *scopes)
    pages = BROWSER | headers
    csrf = token_of(client, "/policies/edit", pages)
    settings = client.get("/settings", headers=pages)
    assert ("/vacuum?catalog=lake" in settings.text) is may
    with serving(app, HERE, 0) as port, Client(f"http://{HERE}:{port}", headers["authorization"][7:]) as commands:
        for dry_run, status in ((True, 200), (False, 202)):
            answer = client.post(URL, json={"dry_run": dry_run}, headers=headers)
            assert answer.status_code == (status if may else 403), answer.text
            vacuum_ended()
            form = {"csrf": csrf, "catalog": "lake", "how": "" if dry_run else "confirmed"}
            assert client.post("/do/vacuum", data=form, headers=pages).status_code == (200 if may else 403)
            vacuum_ended()
            if may:
                assert commands.vacuum("lake", dry_run=dry_run)["dry_run"] is dry_run
                vacuum_ended()
            else:
                with pytest.raises(Refusal):
                    commands.vacuum("lake", dry_run=dry_run)
    assert client.get(URL, headers=headers).status_code == (200 if may else 403)
    assert client.get("/vacuum?catalog=lake", headers=pages).status_code == (200 if may else 403)
    assert [job.actor for job in served.bench.store.jobs.list()] == [str(role)] * (3 if may else 0)


def test_the_answer_of_a_vacuum_is_kept(served: Served) -> None:
    """What the dry run counts is what the run does, and what the last vacuum answers, metrics included."""
    client = served.client(served.app())
    assert problem(client.get(URL), 404)["detail"].startswith("catalog lake was never vacuumed")
    dry = client.post(URL, json={"dry_run": True}).json()
    assert (dry["catalog"], dry["dry_run"]) == ("lake", True)
    assert client.post(URL, json={}).json()["state"] == "started"
    vacuum_ended()
    kept = client.get(URL).json()
    assert kept["metrics"]["num_tables"] == dry["metrics"]["num_tables"] == 1
    assert kept["state"] == dry["state"]
    assert len(dry["jobs"]) == 1


def test_the_page_asks_before_it_vacuums(served: Served) -> None:
    """It shows what a vacuum would do, begins it once confirmed, and has its answer later."""
    client = served.client()
    assert "No vacuum yet" in client.get(PAGE, headers=BROWSER).text
    form = {"csrf": token_of(client, PAGE), "catalog": "lake"}
    asks = client.post("/do/vacuum", data=form, headers=BROWSER).text
    assert "<dt>Tables</dt><dd>1</dd>" in asks
    assert "num_" not in asks
    assert "nothing is changed yet" in asks
    assert served.bench.store.jobs.list() == []
    assert "has begun" in client.post("/do/vacuum", data=form | {"how": "confirmed"}, headers=BROWSER).text
    vacuum_ended()
    assert "the answer of the last vacuum" in client.get(PAGE, headers=BROWSER).text
    assert len(served.bench.store.jobs.list()) == 1


def test_a_vacuum_that_may_not_begin(served: Served) -> None:
    """A catalog that nobody knows, a second vacuum beside the first, and a pause of everything."""
    client = served.client(served.app())
    assert client.get("/vacuum?catalog=pond", headers=BROWSER).status_code == 404
    problem(client.post(f"{API}/catalogs/pond/vacuum", json={}), 404)
    with served.vacuum_locks["lake"]:
        for body in ({}, {"dry_run": True}):
            assert "vacuum" in problem(client.post(URL, json=body), 409)["detail"]
    served.bench.store.fleet.begin(FleetPause("a migration", "me", served.bench.clock.now()))
    assert "a migration" in problem(client.post(URL, json={}), 409)["detail"]
    form = {"csrf": token_of(client, PAGE), "catalog": "lake", "how": "confirmed"}
    assert "a migration" in client.post("/do/vacuum", data=form, headers=BROWSER).text
