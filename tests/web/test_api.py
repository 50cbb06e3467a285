"""The API: lists, pages, tags, triggers, policies, and whatever names and bodies are sent."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import Pointer
from icewright.testing import NOW
from tests.core.test_events import JSON_VALUES
from tests.web.conftest import Served
from tests.web.test_access import API, BODIES, PLACES, routes
from tests.web.test_events import problem

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HOSTILE = (
    "<script>alert(1)</script>",
    "x' OR 1=1; DROP TABLE tables; --",
    "../../etc/passwd",
    "a/b/jobs",
    "a.b",
    "100%",
    "%2F%00",
    "`tick`",
    "ünïcödé ☃ \U0001f9ca",
    "a b\tc",
    "a?b#c&d=e",
    "\\",
    '"',
    "%s%n{}{{7*7}}",
    "jobs",
)
TABLE = f"{API}/tables/lake.sales.orders"


def add(served: Served, *names: str, namespace: str = "sales") -> list[TableRef]:
    """Let the catalog list further tables."""
    refs = [TableRef("lake", (namespace,), name) for name in names]
    rows = served.bench.store.tables.list()
    known = [Pointer(row.ref, row.metadata_location) for row in rows]
    served.bench.store.tables.record_listing("lake", [*known, *(Pointer(ref, f"m-{ref.name}") for ref in refs)], NOW)
    return refs


def pages(client: TestClient, path: str, **params: Any) -> list[list[Any]]:
    """All pages of a list."""
    found, cursor = [], None
    while True:
        answer = client.get(f"{API}{path}", params={**params, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        cursor = answer.json()["next"]
        if cursor is None:
            return found


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(served: Served, name: str) -> None:
    """A table of any name, in a namespace of the same, is listed, found, paused and filtered by; no other is."""
    (ref,) = add(served, name, namespace=name)
    client, url = served.client(), f"{API}/tables/{quote(str(ref), safe='')}"
    found = client.get(url)
    assert found.status_code == 200, found.text
    assert (found.json()["namespace"], found.json()["name"]) == ([name], name)
    assert client.post(f"{url}/pause", json={"reason": name}).status_code == 204
    row = served.bench.store.tables.get(ref)
    assert row is not None
    assert row.paused == name
    assert [t["name"] for t in client.get(f"{API}/tables", params={"search": name}).json()["items"]] == [name]
    assert client.get(f"{API}/tables", params={"namespace": f"`{name.replace('`', '``')}`"}).json()["total"] == 1
    assert client.get(f"{API}/jobs", params={"table": str(ref)}).json()["items"] == []
    scope = quote(str(ref), safe="")
    rule = client.put(f"{API}/policies/{scope}", json={"set": {"importance": "high"}})
    assert rule.status_code == 200, rule.text
    assert client.get(f"{API}/policies/{quote(rule.json()['scope'], safe='')}/versions").json()["items"]
    assert served.bench.store.rules.list()[0].match == ref.parts
    assert served.client().get(f"{API}/audit").json()["items"][0]["target"].startswith("policy ")


@pytest.mark.parametrize("sort", ["name", "health", "files", "due_since", "evaluated_at", "queries_per_day"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_tables(served: Served, sort: str, order: str) -> None:
    """Every table is on one page and one alone, those without a value last, while others come in between."""
    add(served, *(f"t{n:02}" for n in range(9)))
    served.evaluate()
    client = served.client()
    first = client.get(f"{API}/tables", params={"sort": sort, "order": order, "limit": 3}).json()
    assert first["total"] == 10
    add(served, "t00a", "zz")
    rest = pages(client, "/tables", sort=sort, order=order, limit=3, cursor=first["next"])
    names = [t["name"] for page in (first["items"], *rest) for t in page]
    assert len(names) == len(set(names))
    assert {f"t{n:02}" for n in range(9)} | {"orders"} <= set(names)
    if sort in ("health", "files", "due_since", "evaluated_at"):
        assert names[0] == "orders"
    if (sort, order) == ("name", "asc"):
        assert names == sorted(names)


def test_filters_of_tables(served: Served) -> None:
    """By catalog, state, health and what is due."""
    add(served, "new")
    served.evaluate()
    client = served.client()
    for params, names in (
        ({"state": "due"}, ["orders"]),
        ({"state": ["new", "due"]}, ["new", "orders"]),
        ({"due": "compact"}, ["orders"]),
        ({"due": "remove_orphans"}, []),
        ({"health_below": 50}, ["orders"]),
        ({"health_below": 5}, []),
        ({"catalog": "other"}, []),
        ({"search": "RDE"}, ["orders"]),
        ({"search": "%"}, []),
        ({"state": "dropped"}, []),
    ):
        assert [t["name"] for t in client.get(f"{API}/tables", params=params).json()["items"]] == names, params


def test_pages_of_jobs(served: Served) -> None:
    """Newest first; each once, though more are made meanwhile."""
    made = []
    for _ in range(7):
        made.append(served.job())
        served.bench.clock.advance(seconds=1)
    client = served.client()
    first = client.get(f"{API}/jobs", params={"limit": 3}).json()
    served.job()
    rest = pages(client, "/jobs", limit=3, cursor=first["next"])
    assert [j["job_id"] for page in (first["items"], *rest) for j in page] == made[::-1]
    assert client.get(f"{API}/jobs", params={"state": "failed"}).json()["items"] == []
    assert len(client.get(f"{API}/jobs", params={"operation": "compact", "trigger": "cycle"}).json()["items"]) == 8
    assert client.get(f"{API}/jobs/{made[0]}").json()["state"] == "succeeded"


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "W10",
        "WzFd",
        "W251bGwsMSwyXQ",
        "WyJhIiwxLCJiIl0",
        "WzFlNDAwLDEsMV0",
        "e30",
        "☃",
        "WzE4NDQ2NzQ0MDczNzA5NTUxNjE2XQ",
    ],
)
def test_cursors_that_nobody_gave(served: Served, cursor: str) -> None:
    """Are refused, or give a page; never an error inside."""
    for path in ("/tables", "/jobs", "/runs", "/queue", "/audit"):
        answer = served.client().get(f"{API}{path}", params={"cursor": cursor})
        assert answer.status_code in (200, 422), (path, answer.text)


def test_tags(served: Served) -> None:
    """Whoever has an answer is not sent it again until it changes."""
    client = served.client()
    first = client.get(TABLE)
    tag = first.headers["etag"]
    again = client.get(TABLE, headers={"if-none-match": f'"x", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert again.headers["cache-control"] == "private, no-cache"
    served.evaluate()
    changed = client.get(TABLE, headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag
    assert "etag" not in client.get(f"{API}/tables/lake.sales.none").headers


def test_one_table(served: Served) -> None:
    """Health, verdicts, how operations stand, knobs with origin, snapshots and pins."""
    served.evaluate()
    client = served.client()
    found = client.get(TABLE).json()
    assert found["state"] == "due"
    assert {v["operation"]: v["verdict"] for v in found["verdicts"]}["compact"] == "due"
    assert found["maintenance"]["compact"]["status"] == "Not_Yet_Run"
    assert found["maintenance"]["remove_orphans"]["status"] == "Disabled"
    served.bench.run(*[op for op in found["due"] if op == "expire_snapshots"])
    client.put(f"{API}/policies/lake.sales", json={"set": {"compact.min_input_files": 9}})
    knobs = {k["knob"]: k for k in client.get(f"{TABLE}/knobs").json()["knobs"]}
    assert (knobs["compact.min_input_files"]["value"], knobs["compact.min_input_files"]["level"]) == (9, "namespace")
    snapshots = client.get(f"{TABLE}/snapshots").json()
    newest = snapshots["current_snapshot_id"]
    assert isinstance(newest, str)
    pinned = client.put(f"{TABLE}/pins/etl%2Fa", json={"snapshot_id": newest, "hours": 2})
    assert pinned.json()["reader"] == "reader etl/a"
    assert client.get(TABLE).json()["pins"][0]["snapshot_id"] == newest
    kept = {s["snapshot_id"]: (s["kept_by"], s["expires"]) for s in client.get(f"{TABLE}/snapshots").json()["items"]}
    assert kept[newest] == ("current snapshot", None)
    assert all((by is None) is (until is not None) for by, until in kept.values())
    paged, cursor = list[str](), None
    while cursor or not paged:
        page = client.get(f"{TABLE}/snapshots", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        paged += [s["snapshot_id"] for s in page["items"]]
        cursor = page["next"]
    assert paged == list(kept)
    assert page["total"] == len(paged) > 2
    problem(client.get(f"{TABLE}/snapshots?cursor=WzFd"), 422)
    assert client.delete(f"{TABLE}/pins/etl%2Fa").status_code == 204
    problem(client.delete(f"{TABLE}/pins/etl%2Fa"), 404)
    problem(client.put(f"{TABLE}/pins/x", json={"snapshot_id": 4711}), 409)


def test_triggers(served: Served) -> None:
    """A job waits before all others, once for a key; a second one is refused; it is cancelled."""
    client, body = (
        served.client(),
        {"operations": ["expire_snapshots", "compact"], "set": {"compact.min_input_files": 3}},
    )
    problem(client.post(f"{TABLE}/jobs", json=body), 409)
    served.evaluate()
    key = {"Idempotency-Key": "k1"}
    first = client.post(f"{TABLE}/jobs", json=body, headers=key)
    assert first.status_code == 202, first.text
    assert client.post(f"{TABLE}/jobs", json=body, headers=key).json() == first.json()
    problem(client.post(f"{TABLE}/jobs", json=body | {"force": True}, headers=key), 422)
    assert "has a job already" in problem(client.post(f"{TABLE}/jobs", json=body), 409)["detail"]
    job_id = first.json()["job_id"]
    (waits,) = client.get(f"{API}/queue").json()["jobs"]
    assert (waits["job_id"], waits["operations"], waits["trigger"]) == (
        job_id,
        ["compact", "expire_snapshots"],
        "manual",
    )
    assert client.post(f"{API}/jobs/{job_id}/cancel").json()["state"] == "cancelled"
    problem(client.post(f"{API}/jobs/{job_id}/cancel"), 409)
    client.post(f"{TABLE}/pause", json={"reason": "why"})
    assert "is paused (why)" in problem(client.post(f"{TABLE}/jobs", json=body), 409)["detail"]
    assert client.post(f"{TABLE}/jobs", json=body | {"force": True}).status_code == 202
    assert [j.state for j in served.bench.store.jobs.list()].count(JobState.QUEUED) == 1
    (job,) = served.bench.store.jobs.dequeue("w", ["lake"], NOW, 1)
    assert job.options == {"set": body["set"], "force": True}


def test_a_dry_run(served: Served) -> None:
    """Says what would be done; nothing is queued."""
    served.evaluate()
    answer = served.client().post(f"{TABLE}/jobs", json={"operations": ["expire_snapshots"], "dry_run": True})
    assert (answer.status_code, answer.json()["dry_run"]) == (200, True)
    assert answer.json()["operations"][0]["operation"] == "expire_snapshots"
    assert served.bench.store.jobs.list() == []


def test_policies(served: Served) -> None:
    """A rule is previewed, set, seen with its author, changed by whoever saw the newest, and taken back."""
    served.evaluate()
    client, url = served.client(), f"{API}/policies/lake.sales"
    body = {"set": {"compact.enabled": False}}
    (would,) = client.post(f"{url}/preview", json=body).json()["items"]
    assert would["knobs"] == [{"knob": "compact.enabled", "before": True, "after": False}]
    assert {v["operation"]: (v["before"], v["after"]) for v in would["verdicts"]} == {"compact": ("due", "blocked")}
    assert client.get(f"{API}/policies").json()["rules"][-1]["scope"] == "platform"
    assert client.put(url, json=body | {"version": 0}).json()["version"] == 1
    problem(client.put(url, json={"set": {"importance": "high"}, "version": 0}), 409)
    assert client.put(url, json={"set": {"importance": "high"}, "version": 1}).json()["version"] == 2
    rule = client.get(f"{API}/policies").json()["rules"][-1]
    assert (rule["scope"], rule["source"], rule["author"]) == ("lake.sales", "store", "local")
    problem(client.delete(url, params={"version": 1}), 409)
    assert client.delete(url, params={"version": 2}).status_code == 204
    problem(client.delete(url), 404)
    assert [v["version"] for v in client.get(f"{url}/versions").json()["items"]] == [3, 2, 1]
    found = problem(client.put(url, json={"set": {"compact.nonsense": 1, "importance": "x"}}), 422)
    assert len(found["errors"]) == 2
    problem(client.put(f"{API}/policies/nowhere", json=body), 422)


def test_overview(served: Served) -> None:
    """A funnel in which each part is one of the part before."""
    add(served, "a", "b")
    served.evaluate()
    found = served.client().get(f"{API}/overview").json()
    assert found["funnel"] == {"tables": 3, "changed": 3, "due": 1, "running": 0}
    assert (sum(found["health"]), found["health_unknown"]) == (1, 2)
    assert found["verdicts"]["compact"] == {"due": 1}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON_VALUES, st.sampled_from(sorted(BODIES)))
def test_any_body(served: Served, body: Any, route: tuple[str, str]) -> None:
    """Whatever JSON is sent, the answer is none of an error inside."""
    method, path = route
    client = served.client()
    url = API + path.format(**PLACES)
    for sent in (body, {**BODIES[route], "set": body} if "set" in BODIES[route] else {"operations": body}):
        answer = client.request(method, url, content=json.dumps(sent), headers={"content-type": "application/json"})
        assert answer.status_code < 500, answer.text


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 5000, b'{"operations": NaN}', b"null", b""])
def test_malformed_bodies(served: Served, body: bytes) -> None:
    """A body that is no JSON of the right shape is answered with a problem."""
    for method, path in BODIES:
        kind = {"content-type": "application/json"}
        answer = served.client().request(method, API + path.format(**PLACES), content=body, headers=kind)
        assert 400 <= answer.status_code < 500, (path, answer.text)


def test_oversized(served: Served) -> None:
    """Bodies, paths and parameters that are too long are refused."""
    client = served.client(served.app(max_body=10_000))
    problem(client.put(f"{API}/policies/lake", json={"set": {"compact.where": "x" * 20_000}}), 413)
    problem(client.get(f"{API}/tables/{'x' * 5000}"), 400)
    problem(client.get(f"{API}/tables", params={"search": "x" * 2000}), 422)
    problem(client.get(f"{API}/tables/lake.sales.a%00b"), 400)
    problem(client.get(f"{API}/tables?search=%00"), 400)
    for path in ("jobs", "runs", "alerts", "audit"):
        problem(client.get(f"{API}/{path}", params={"since": "9999-12-31T23:59:59-23:59"}), 422)
    problem(client.post(f"{TABLE}/pause", json={"reason": "a\0b"}), 422)


def test_the_document_describes_every_route(served: Served) -> None:
    """Each has a summary, tags, its permission and its problems."""
    spec = served.client().get("/api/openapi.json").json()
    for method, path, _ in routes(served):
        said = spec["paths"][API + path][method]
        assert said["summary"], path
        assert said["tags"], path
        assert {"401", "403", "429", "503"} <= said["responses"].keys(), path
    assert json.dumps(spec)
