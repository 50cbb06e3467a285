"""Who gets in, and what they may: tokens, sessions, roles and scopes over every route."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from icewright.app.tokens import digest, new_token
from icewright.app.web.identity import COOKIE, CSRF, Access
from icewright.core.permissions import PERMISSIONS, Action, Grant, Role, grant
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import ProcessRow
from icewright.ports.access import SessionRow
from tests.web.conftest import ELSEWHERE, Served
from tests.web.test_events import problem

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

API = "/api/v1"
REQUIRED = Access(required=True)
BODIES: Mapping[tuple[str, str], Any] = {
    ("post", "/tables/{name}/jobs"): {"operations": ["compact"], "dry_run": True},
    ("post", "/tables/{name}/pause"): {"reason": "x"},
    ("post", "/tables/pause"): {"tables": ["lake.sales.*"]},
    ("post", "/tables/resume"): {"tables": ["lake.sales.*"]},
    ("post", "/tables/cancel"): {"catalog": "lake"},
    ("post", "/tables/run"): {"tables": ["lake.sales.*"], "operations": ["compact"]},
    ("post", "/fleet/pause"): {"reason": "x"},
    ("post", "/catalogs/{catalog}/vacuum"): {"dry_run": True},
    ("post", "/jobs/{job_id}/undo"): {"dry_run": True},
    ("post", "/tables/{name}/restore"): {"to": "main", "dry_run": True},
    ("post", "/tables/{name}/repair"): {"dry_run": True},
    ("post", "/tables/{name}/erase"): {"where": "id = 1"},
    ("post", "/tables/{name}/layouts"): {"filters": ["id = 1"]},
    ("post", "/tables/{name}/copy"): {"to": "s3://elsewhere/orders"},
    ("post", "/catalogs/{catalog}/register"): {"name": "sales.orders", "place": "s3://lake/none", "dry_run": True},
    ("put", "/tables/{name}/pins/{reader}"): {"snapshot_id": 1},
    ("put", "/alerts/{alert_id}/acknowledgement"): {"note": "x"},
    ("put", "/policies/{scope}"): {"set": {"compact.min_input_files": 9}},
    ("post", "/policies/{scope}/preview"): {"set": {"compact.min_input_files": 9}},
    ("post", "/tokens"): {"name": "x", "role": "viewer"},
}
PLACES = {
    "name": "lake.sales.orders",
    "reader": "r",
    "catalog": "lake",
    "scope": "lake.sales",
    "job_id": "JOB",
    "token_id": "none",
    "process": "none",
    "alert_id": "1",
}


def bearer(served: Served, role: str, *scopes: str, days: int | None = 1) -> dict[str, str]:
    """The header of somebody's new token."""
    token, row = new_token([grant(role, scopes)], role, "test", served.bench.clock.now(), days)
    served.bench.store.access.add_token(row)
    return {"authorization": f"Bearer {token}"}


_ROUTES: list[tuple[str, str, Action | None]] = []


def routes(served: Served) -> list[tuple[str, str, Action | None]]:
    """Every route of the API but that of events, with its permission."""
    if not _ROUTES:
        for path, methods in served.app().openapi()["paths"].items():
            for method, said in methods.items():
                if path.startswith(f"{API}/") and path != f"{API}/events":
                    permission = said["x-permission"]
                    action = None if permission == "anybody" else Action(permission)
                    _ROUTES.append((method, path.removeprefix(API), action))
    return _ROUTES


def call(client: TestClient, method: str, path: str, headers: Mapping[str, str], job: str, **more: str) -> Any:
    """Call a route with something that it may take."""
    filled = path.format(**PLACES | {"job_id": job} | more)
    return client.request(method, API + filled, headers=headers, json=BODIES.get((method, path)))


@pytest.mark.parametrize("role", Role)
def test_every_route_by_every_role(served: Served, role: Role) -> None:
    """Each route lets in whom the table of permissions says, and refuses others; the refusal is written down."""
    client = served.client(served.app(access=REQUIRED), host=ELSEWHERE)
    scopes = ("lake",) if role is Role.OWNER else ()
    headers = bearer(served, role, *scopes)
    job = served.job()
    for method, path, action in routes(served):
        answer = call(client, method, path, headers, job)
        allowed = action is None or role in PERMISSIONS[action].roles
        if action is Action.ALERTS_TEST and role is Role.OWNER:
            allowed = False  # the channels are everybody's
        if path.startswith(("/fleet/", "/processes/")) and role is Role.OWNER:
            allowed = False  # the fleet is everybody's
        assert (answer.status_code != 403) is allowed, (method, path, answer.text)
        assert answer.status_code < 500, (method, path, answer.text)
    refused = served.bench.store.audit.entries(None, None, 500, refused=True)
    wanted = {str(a) for _, _, a in routes(served) if a is not None and role not in PERMISSIONS[a].roles}
    assert {entry.action for entry in refused} >= wanted


def test_every_route_has_its_permission(served: Served) -> None:
    """None is open by oversight; what every caller may see says so."""
    found = routes(served)
    assert {path for _, path, action in found if action is None} == {"/me", "/permissions"}
    client = served.client(served.app(access=REQUIRED))
    for method, path, _ in found:
        assert call(client, method, path, {}, "x").status_code == 401, (method, path)


@pytest.mark.parametrize("role", Role)
def test_filters_are_for_those_who_may_try_layouts(served: Served, role: Role) -> None:
    """They may name a person: neither the job nor its page shows them to others."""
    client, jobs, now = served.client(served.app(access=REQUIRED)), served.bench.store.jobs, served.bench.clock.now()
    options = {"layouts": "branch", "filters": ["name = 'ann'"], "predict_only": True}
    job = jobs.claim(TableRef.parse("lake.sales.orders"), "u", (), served.bench.runtime().trigger, now, options=options)
    assert job is not None
    jobs.finish(job, JobState.SUCCEEDED, "", now)
    headers = bearer(served, role, *(("lake",) if role is Role.OWNER else ()))
    found = client.get(f"{API}/jobs/{job}", headers=headers).json()["options"]
    may = role in PERMISSIONS[Action.JOBS_RUN].roles
    assert (found["filters"], found["predict_only"]) == (["name = 'ann'"] if may else [], True)


@pytest.mark.parametrize("role", Role)
def test_a_predicate_is_for_those_who_may_erase(served: Served, role: Role) -> None:
    """It may name a person: neither the job nor its page nor its result shows it to others."""
    client, jobs, now = served.client(served.app(access=REQUIRED)), served.bench.store.jobs, served.bench.clock.now()
    trigger, options = served.bench.runtime().trigger, {"erase": "name = 'ann'", "search_only": True}
    job = jobs.claim(TableRef.parse("lake.sales.orders"), "u", (), trigger, now, options=options)
    assert job is not None
    jobs.record_result(
        job, {"steps": [], "unread": {}, "predicate": "name = 'ann'", "summary": "", "certificate": None}
    )
    jobs.finish(job, JobState.SUCCEEDED, "", now)
    headers = bearer(served, role, *(("lake",) if role is Role.OWNER else ()))
    may = Action.TABLES_ERASE in {action for action in Action if role in PERMISSIONS[action].roles}
    assert client.get(f"{API}/jobs/{job}", headers=headers).json()["options"]["erase"] == (
        "name = 'ann'" if may else ""
    )
    assert client.get(f"{API}/jobs/{job}/result", headers=headers).status_code == (200 if may else 403)
    page = client.get(f"/jobs/{job}", headers={**headers, "accept": "text/html"})
    assert (page.status_code, "ann" in html.unescape(page.text)) == (200, may)


@pytest.mark.parametrize("role", ["viewer", "operator", "owner"])
def test_scopes(served: Served, role: str) -> None:
    """Who is bound to another place neither sees the table nor its jobs, in lists or by name, whatever they ask.

    What processes report of themselves names tables and places of all catalogs, and is for who sees all.
    """
    client, job, now = served.client(served.app(access=REQUIRED)), served.job(), served.bench.clock.now()
    details = {"places": {"lake": ["s3://lake"]}, "faults": ["lake.sales.orders hangs"]}
    served.bench.store.processes.record_heartbeat(ProcessRow("host:1:2", "service", now, now, 2, details))
    for headers, seen in ((bearer(served, role, "lake.hr"), {}), (bearer(served, "viewer"), details)):
        assert [p["details"] for p in client.get(f"{API}/processes", headers=headers).json()] == [seen]
    outside, inside = bearer(served, role, "lake.hr"), bearer(served, role, "lake.sa*")
    for path in ("/tables", "/jobs", "/runs", "/queue", "/deletions"):
        found = client.get(API + path, headers=outside).json()
        assert [i for part in ("items", "jobs", "waiting") for i in found.get(part, [])] == []
    assert client.get(f"{API}/tables", headers=inside).json()["total"] == 1
    assert [j["job_id"] for j in client.get(f"{API}/jobs", headers=inside).json()["items"]] == [job]
    assert client.get(f"{API}/overview", headers=outside).json()["funnel"]["tables"] == 0
    for method, path, action in routes(served):
        if "{name}" in path or "{job_id}" in path:
            allowed = action is not None and role in PERMISSIONS[action].roles
            answer = call(client, method, path, outside, job)
            assert answer.status_code == (404 if allowed else 403), (method, path, answer.text)


def test_owners_delete_and_rule_in_their_own_places(served: Served) -> None:
    """An operator rewrites; an owner of the place deletes and sets policy too; of another place neither."""
    client = served.client(served.app(access=REQUIRED))
    url, rule = f"{API}/tables/lake.sales.orders/jobs", f"{API}/policies/lake.sales"
    operator, owner = bearer(served, "operator"), bearer(served, "owner", "lake.sales")
    both = bearer(served, "owner", "lake.hr")
    served.evaluate()
    for operation in ("expire_snapshots", "remove_orphans", "expire_rows"):
        found = problem(client.post(url, json={"operations": [operation]}, headers=operator), 403)
        assert found["action"] == "jobs.delete"
    knobs = {"operations": ["compact"], "set": {"execute.check_totals": False}}
    assert problem(client.post(url, json=knobs, headers=operator), 403)["action"] == "policies.change"
    assert client.post(url, json={"operations": ["compact"]}, headers=operator).status_code == 202
    assert client.get(f"{API}/queue", headers=owner).json()["jobs"][0]["actor"] == "operator"
    body = {"set": {"compact.min_input_files": 9}}
    assert client.put(rule, json=body, headers=operator).status_code == 403
    assert client.put(rule, json=body, headers=both).status_code == 403
    for beyond in ("platform", "lake", "lake.*", "*"):
        assert client.put(f"{API}/policies/{beyond}", json=body, headers=owner).status_code == 403, beyond
    assert client.put(rule, json=body, headers=owner).status_code == 200
    audit = client.get(f"{API}/audit", headers=owner).json()["items"]
    assert {(e["actor"], e["action"], e["refused"]) for e in audit} >= {
        ("owner", "policies.change", False),
        ("operator", "jobs.delete", True),
    }
    assert client.get(f"{API}/audit", headers=both).json()["items"] == []


@pytest.mark.parametrize(
    "header", ["Bearer ", "Bearer iw_", "Basic bWU6", "Bearer iw_000000000000_x", "Bearer iw_zz_x", "x", "Bearer \xff"]
)
def test_strangers(served: Served, header: str) -> None:
    """What is no token opens nothing, not even on this machine; it is written down without what was sent."""
    answer = served.client().get(f"{API}/tables", headers=[(b"authorization", header.encode("latin-1"))])
    problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    (entry,) = served.bench.store.audit.entries(None, None, 10)
    assert (entry.refused, entry.source) == (True, "127.0.0.1")
    assert "_x" not in str(entry)


def test_tokens_end(served: Served) -> None:
    """By their time, or when they are revoked; a secret that is wrong by a letter opens nothing."""
    client, clock = served.client(served.app(access=REQUIRED)), served.bench.clock
    headers = bearer(served, "viewer", days=1)
    assert client.get(f"{API}/me", headers=headers).json()["name"] == "viewer"
    (row,) = served.bench.store.access.tokens()
    assert row.used == clock.now()
    text_ = headers["authorization"]
    wrong = text_[:-1] + ("a" if text_[-1] != "a" else "b")
    problem(client.get(f"{API}/me", headers={"authorization": wrong}), 401)
    clock.advance(days=1)
    problem(client.get(f"{API}/me", headers=headers), 401)
    other = bearer(served, "admin", days=None)
    made = client.post(f"{API}/tokens", json={"name": "ci", "role": "owner", "scope": ["lake"]}, headers=other).json()
    mine = {"authorization": f"Bearer {made['token']}"}
    assert client.get(f"{API}/me", headers=mine).json()["grants"] == [{"role": "owner", "scope": ["lake"]}]
    assert client.delete(f"{API}/tokens/{made['id']}", headers=other).status_code == 204
    problem(client.get(f"{API}/me", headers=mine), 401)
    problem(client.delete(f"{API}/tokens/{made['id']}", headers=other), 404)


def test_no_secret_is_kept(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the database nor the log nor any list holds a token or a session's secret."""
    client = served.client(served.app(access=REQUIRED))
    admin = bearer(served, "admin")
    with caplog.at_level(logging.DEBUG):
        made = client.post(f"{API}/tokens", json={"name": "ci", "role": "viewer"}, headers=admin).json()["token"]
        client.get(f"{API}/me", headers={"authorization": f"Bearer {made}"})
        listed = client.get(f"{API}/tokens", headers=admin).text + client.get(f"{API}/audit", headers=admin).text
    served.log_in("session-secret-hush")
    secrets = [made.split("_", 2)[2], admin["authorization"].split("_", 2)[2], "session-secret-hush"]
    with served.bench.store.engine.connect() as connection:
        tables = connection.execute(text("select name from sqlite_master where type = 'table'")).scalars().all()
        kept = "".join(str(connection.execute(text(f'select * from "{t}"')).all()) for t in tables)  # noqa: S608
    for secret in secrets:
        assert secret not in kept + listed + caplog.text
    assert digest(made) not in listed


def test_sessions(served: Served) -> None:
    """A session reads by its cookie; a change brings the CSRF token too, from no other site; it ends by itself."""
    client, clock = served.client(served.app(access=REQUIRED)), served.bench.clock
    served.log_in("secret-1")
    client.cookies.set(COOKIE, "secret-1")
    me = client.get(f"{API}/me").json()
    assert (me["name"], me["via"]) == ("ann@example.com", "session")
    url, token = f"{API}/tables/lake.sales.orders/pause", {CSRF: me["csrf"]}
    foreign = ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"})
    for headers in ({}, {CSRF: "x"}, *(token | more for more in foreign)):
        problem(client.post(url, json={}, headers=headers), 403)
    assert client.post(url, json={}, headers=token).status_code == 204
    assert client.post(url, json={}, headers=token | {"origin": "http://127.0.0.1:8765"}).status_code == 204
    clock.advance(minutes=50)
    assert client.get(f"{API}/me").status_code == 200
    clock.advance(minutes=61)
    problem(client.get(f"{API}/me"), 401)
    served.log_in("secret-2")
    client.cookies.set(COOKIE, "secret-2")
    for _ in range(23):
        clock.advance(minutes=30)
        assert client.get(f"{API}/me").status_code == 200
    clock.advance(minutes=30)
    problem(client.get(f"{API}/me"), 401)


def test_without_auth_this_machine_alone(served: Served) -> None:
    """Everybody here is an admin; nobody else gets in by whatever name, and no other site changes anything."""
    here = served.client()
    assert here.get(f"{API}/me").json()["grants"] == [{"role": "admin", "scope": []}]
    problem(served.client(host=ELSEWHERE).get(f"{API}/tables"), 403)
    rebound = served.client(at="http://evil.example")
    for path in (f"{API}/tables", "/metrics", "/healthz", "/readyz", "/api/openapi.json"):
        problem(rebound.get(path), 403)
    url = f"{API}/tables/lake.sales.orders/pause"
    problem(here.post(url, json={}, headers={"origin": "http://evil.example"}), 403)
    problem(here.post(url, json={}, headers={"sec-fetch-site": "cross-site"}), 403)
    assert here.post(url, json={}).status_code == 204


def test_several_grants(served: Served) -> None:
    """Somebody may what any of the grants lets them."""
    grants = [Grant(Role.VIEWER), Grant(Role.OWNER, (("lake", "sales"),))]
    token, row = new_token(grants, "both", "test", served.bench.clock.now())
    served.bench.store.access.add_token(row)
    client = served.client(served.app(access=REQUIRED))
    headers = {"authorization": f"Bearer {token}"}
    assert client.get(f"{API}/tables", headers=headers).json()["total"] == 1
    assert client.put(f"{API}/policies/lake", json={"set": {}}, headers=headers).status_code == 403
    assert client.post(f"{API}/tables/lake.sales.orders/resume", headers=headers).status_code == 204
    assert json.loads(client.get(f"{API}/me", headers=headers).text)["actions"][-1] == "audit.read"


def test_sessions_and_tokens_are_kept_by_digest(served: Served) -> None:
    """And one that is over is forgotten when the next begins."""
    now = served.bench.clock.now()
    for number, until in enumerate((now - timedelta(1), now + timedelta(1))):
        row = SessionRow(digest(str(number)), "x", (Grant(Role.VIEWER),), now, now, until)
        served.bench.store.access.add_session(row)
    assert served.bench.store.access.session(digest("1")) is not None
    served.log_in("another")
    assert served.bench.store.access.session(digest("0")) is None
    served.bench.store.access.end_session(digest("1"))
    assert served.bench.store.access.session(digest("1")) is None
