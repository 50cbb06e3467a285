"""The pages as a server answers them: who gets what, how forms are held, how parts follow, what numbers look like."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx2
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from icewright.app.web import pages
from icewright.app.web.callers import Caller
from icewright.app.web.identity import COOKIE, Access
from icewright.app.web.middlewares import PrincipalSlots
from icewright.app.web.pages import formats, policies, render, table_view
from icewright.app.web.pages.render import FLASH
from icewright.app.web.pages.urls import TableNameConvertor, table_url, with_query
from icewright.app.web.problems import Problem
from icewright.app.web.running import serving
from icewright.core.errors import StoreUnavailable
from icewright.core.permissions import Role
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate, thresholds
from icewright.ports import Trigger
from icewright.testing import NOW, facts, knobs, metadata, partition, spec
from icewright.testing.contracts.cases import record_cost
from tests.waiting import until
from tests.web.conftest import ELSEWHERE, HERE, Served
from tests.web.test_access import REQUIRED, bearer
from tests.web.test_api import HOSTILE, TABLE, add

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

BROWSER = {"accept": "text/html,application/xhtml+xml"}
PAGE = "/tables/lake/sales/orders"
PAGES = (
    "/",
    "/tables",
    "/queue",
    "/jobs",
    PAGE,
    *(f"{PAGE}?show={side}" for side in ("runs", "snapshots", "recovery", "knobs")),
)
FORM = {"content-type": "application/x-www-form-urlencoded"}
CHANGES = {
    "/do/run": {"table": "lake.sales.orders", "operation": "compact", "how": "run"},
    "/do/pause": {"table": "lake.sales.orders", "reason": "x"},
    "/do/resume": {"table": "lake.sales.orders"},
    "/do/cancel": {"job": "JOB"},
    "/do/undo": {"job": "JOB", "how": "undo"},
    "/do/restore": {"table": "lake.sales.orders", "to": "main"},
    "/do/repair": {"table": "lake.sales.orders"},
}


def token_of(client: TestClient, path: str = PAGE, headers: Mapping[str, str] = BROWSER) -> str:
    """What the page's forms bring."""
    found = re.search(r'name="csrf" value="([^"]+)"', client.get(path, headers=headers).text)
    assert found is not None
    return found[1]


def test_headers_of_pages(served: Served) -> None:
    """Scripts and style come from here alone, nobody frames them, nothing is kept; no page has either inside it."""
    served.evaluate()
    client = served.client()
    for path in PAGES:
        page = client.get(path, headers=BROWSER)
        assert page.status_code == 200, path
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|https?://(?!vega)", page.text), path


def test_a_browser_is_answered_by_a_page(served: Served) -> None:
    """What goes wrong is a page for a browser, a problem for a program; of the API always a problem."""
    client = served.client()
    page = client.get("/nowhere", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "frame-ancestors" in page.headers["content-security-policy"]
    assert page.headers["x-request-id"] in page.text
    assert client.get("/nowhere").headers["content-type"] == "application/problem+json"
    assert client.get("/api/v1/nowhere", headers=BROWSER).headers["content-type"] == "application/problem+json"
    served.bench.store.views.list_jobs = None  # type: ignore[method-assign, assignment] # a fault of ours
    broken = client.get("/jobs", headers=BROWSER)
    assert broken.status_code == 500
    assert "<h1>Internal Server Error</h1>" in broken.text


def test_strangers_are_led_to_the_login(served: Served) -> None:
    """With the page that they asked for; a program is told to bring a token."""
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    sent = client.get(f"{PAGE}?show=runs", headers=BROWSER, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (
        303,
        "/login?next=%2Ftables%2Flake%2Fsales%2Forders%3Fshow%3Druns",
    )
    assert client.get(PAGE).status_code == 401
    assert 'value="/x"' in client.get("/login?next=/x", headers=BROWSER).text
    assert "evil" not in client.get("/login?next=//evil.example", headers=BROWSER).text
    assert served.client().get("/login", headers=BROWSER, follow_redirects=False).headers["location"] == "/"
    parts = {"{name:named}": "lake/sales/orders", "{job_id:segment}": "x", "{simulation:segment}": "x"}
    found = [one for one in page_routes(pages.router) if one[1] != "/login" and not one[1].startswith("/static")]
    assert len(found) > 50
    for method, path in found:
        url = re.sub(r"\{[^}]+\}", lambda part: parts[part[0]], path)
        sent = client.request(method, url, headers=BROWSER | FORM, follow_redirects=False)
        assert sent.status_code == (303 if method == "GET" else 401), (method, path)
        assert sent.headers.get("location", "/login").startswith("/login"), path
        assert method == "GET" or "Your login has ended" in sent.text


def page_routes(router: Any) -> Iterator[tuple[str, str]]:
    """The method and path of each route of the pages, those of included routers too."""
    for route in router.routes:
        if isinstance(route, Route):
            yield from ((method, route.path) for method in (route.methods or ()) if method != "HEAD")
        else:
            yield from page_routes(route.original_router)


def test_a_login_by_token_has_a_cookie_for_its_way(served: Served) -> None:
    """No script reads it, and it is sent back over TLS alone where the browser speaks TLS, also with an ingress."""
    token = bearer(served, "viewer")["authorization"].removeprefix("Bearer ")
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    for by, secure in (({}, False), ({"x-forwarded-proto": "https"}, True), ({"x-forwarded-proto": "http"}, False)):
        sent = client.post("/login", data={"token": token}, headers=BROWSER | by, follow_redirects=False)
        (cookie,) = (c.lower() for c in sent.headers.get_list("set-cookie") if c.startswith(f"{COOKIE}="))
        assert ("httponly" in cookie, "samesite=lax" in cookie, "secure" in cookie) == (True, True, secure)


@pytest.mark.parametrize("path", CHANGES)
def test_forms_come_from_our_pages(served: Served, path: str) -> None:
    """Without their token, with another's, from another site or as another kind of body, none changes anything."""
    served.log_in("secret")
    served.evaluate()
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    client.cookies.set(COOKIE, "secret")
    fields = CHANGES[path]
    right = token_of(client)
    for wrong in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": "ü"}):
        refused = client.post(path, data=fields | wrong, headers=BROWSER)
        assert (refused.status_code, "load it again" in refused.text, "Ask an owner" in refused.text) == (
            403,
            True,
            False,
        )
    foreign = {"origin": "https://evil.example", **BROWSER}
    assert client.post(path, data=fields | {"csrf": right}, headers=foreign).status_code == 403
    other = {"sec-fetch-site": "cross-site", **BROWSER}
    assert client.post(path, data=fields | {"csrf": right}, headers=other).status_code == 403
    assert client.post(path, json=fields | {"csrf": right}).status_code == 415
    assert client.get(path, headers=BROWSER).status_code == 405
    assert served.bench.store.jobs.list() == []
    row = served.bench.store.tables.get(served.ref)
    assert row is not None
    assert row.paused is None
    assert client.post(path, data=fields | {"csrf": right}, headers=BROWSER).status_code in (200, 404)


def test_forms_where_nobody_logs_in(served: Served) -> None:
    """They bring a token too; it is not that of another service."""
    served.evaluate()
    client = served.client()
    fields = CHANGES["/do/pause"]
    other = served.client(served.app())
    assert client.post("/do/pause", data=fields | {"csrf": token_of(other)}, headers=BROWSER).status_code == 403
    done = client.post("/do/pause", data=fields | {"csrf": token_of(client)}, headers=BROWSER)
    assert "Paused: no automatic job" in done.text
    assert "Paused: no automatic job" not in client.get(PAGE, headers=BROWSER).text


def test_a_form_that_is_sent_twice(served: Served) -> None:
    """A form that is sent twice starts one job."""
    served.evaluate()
    client = served.client()
    fields = {**CHANGES["/do/run"], "csrf": token_of(client), "key": "k1"}
    for _ in range(2):
        sent = client.post("/do/run", data=fields, headers=BROWSER, follow_redirects=False)
        assert sent.status_code == 303
        assert sent.headers["location"].startswith("/jobs/")
    assert len(served.bench.store.jobs.list()) == 1
    again = client.post("/do/run", data=fields | {"key": "k2"}, headers=BROWSER)
    assert "has a job already" in again.text
    assert len(served.bench.store.jobs.list()) == 1


@pytest.mark.parametrize("role", Role)
def test_pages_by_role(served: Served, role: Role) -> None:
    """Everybody sees; buttons are shown to those alone who may press them."""
    served.evaluate()
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    headers = BROWSER | bearer(served, role, *(["lake"] if role is Role.OWNER else []))
    for path in PAGES:
        assert client.get(path, headers=headers).status_code == 200
    page = client.get(PAGE, headers=headers).text
    assert ("/do/run" in page and "Run now" in page) is (role is not Role.VIEWER)
    assert ("/do/pause" in page) is (role is not Role.VIEWER)
    assert ("Only owners can run" in page) is (role is Role.OPERATOR)
    assert "recovery_<wbr>points is off unless" in page  # a phone breaks reasons within no word


@pytest.mark.parametrize("name", [*HOSTILE, "..", ".", "``", "`a", "\u202ex"])
def test_hostile_names(served: Served, name: str) -> None:
    """The page of a table of any name is found, and shows the name as text."""
    (ref,) = add(served, name, namespace=name)
    client = served.client()
    page = client.get(table_url(ref), headers=BROWSER)
    assert page.status_code == 200, page.text
    assert "<script>alert" not in page.text
    for path in ("/", "/tables", "/queue", with_query("/jobs", {"table": str(ref)})):
        assert "<script>alert" not in client.get(path, headers=BROWSER).text
    assert (
        client.post("/do/pause", data={"table": str(ref), "reason": name, "csrf": token_of(client)}).status_code == 200
    )
    row = served.bench.store.tables.get(ref)
    assert row is not None
    assert row.paused == (name.strip() or row.paused)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), min_size=3, max_size=5
    )
)
def test_addresses_of_tables(parts: list[str]) -> None:
    """Each name has one, and each address leads to its name."""
    from urllib.parse import unquote

    ref = TableRef(parts[0], tuple(parts[1:-1]), parts[-1])
    segments = table_url(ref).removeprefix("/tables/").split("/")
    assert not {"", ".", ".."} & set(map(unquote, segments))
    encoded = "/".join(unquote(segment).replace("/", "\udc2f") for segment in segments)
    assert TableNameConvertor().convert(encoded) == str(ref)


def test_values_of_queries(served: Served) -> None:
    """What a form leaves blank is not asked for; what nobody can mean is refused, in words."""
    client = served.client()
    assert client.get("/tables?search=&catalog=&due=&health_below=", headers=BROWSER).status_code == 200
    for query in (
        "state=x",
        "due=x",
        "sort=x",
        "health_below=-1",
        "health_below=999",
        "cursor=x",
        "from=x",
        f"search={'x' * 2000}",
    ):
        assert client.get(f"/tables?{query}", headers=BROWSER).status_code == 422, query
    assert client.get("/jobs?state=x", headers=BROWSER).status_code == 422
    assert client.get(f"{PAGE}?show=x", headers=BROWSER).status_code == 404
    said = urlsafe_b64encode(json.dumps(["evil", "<b>"]).encode()).decode()
    for cookie in (said, "x", "", "e30="):
        client.cookies.set(FLASH, cookie)
        assert client.get("/", headers=BROWSER).status_code == 200


def test_pages_of_a_catalog_that_does_not_answer(served: Served) -> None:
    """Show what the store knows, and say what cannot be read."""
    from icewright.core.errors import CatalogUnavailable

    served.evaluate()
    served.bench.catalog.down = CatalogUnavailable("lake: connection to db.internal:5432 refused")
    client = served.client()
    page = client.get(f"{PAGE}?show=snapshots", headers=BROWSER)
    assert page.status_code == 200
    assert "cannot be read now" in page.text
    assert "db.internal" not in page.text


def test_the_page_of_an_unreadable_table_claims_nothing(served: Served) -> None:
    """Its operations and parts say that it cannot be read, not that nobody has tried, nor that it has no files."""
    (row,) = served.bench.store.tables.list()
    served.bench.store.tables.record_unreadable(row.ref, "its manifest list is gone", NOW)
    page = served.client().get(PAGE, headers=BROWSER).text
    assert "the table cannot be read" in page
    assert not [text for text in ("ot evaluated yet", "No data files", "No partitions") if text in page]
    worst = served.client().get("/", headers=BROWSER).text.partition("Least healthy")[2].partition("</section>")[0]
    assert "its manifest list is gone" in worst  # nothing is worse off


def test_the_sums_of_a_table_are_those_of_all_its_runs(served: Served) -> None:
    """They do not stop at as many as a page lists; the rest is on the next page."""
    store = served.bench.store
    (row,) = store.tables.list()
    for _ in range(6):
        job = store.jobs.claim(row.ref, row.table_uuid or "", (Operation.CHECK,), Trigger("manual", "a", "h:1:2"), NOW)
        assert job is not None
        for operation in Operation:
            record_cost(store, job, row.ref, operation, 0.1)
        store.jobs.finish(job, JobState.SUCCEEDED, "done", NOW)
    client = served.client()
    page = client.get(f"{PAGE}?show=runs", headers=BROWSER).text
    assert f"in 90 days, by {6 * len(Operation)} runs" in page
    following = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    rows = [text.count('<td><a href="/jobs/') for text in (page, client.get(following, headers=BROWSER).text)]
    assert rows == [50, 6 * len(Operation) - 50]
    assert page.index('data-live="/live/tables/lake/sales/orders?show=runs') < page.index('aria-label="Runs"')


def test_the_last_run_of_an_operation_that_is_off(served: Served) -> None:
    """It is shown as it ended; an operation that is off and never ran is called disabled."""
    served.evaluate()
    store = served.bench.store
    (row,) = store.tables.list()
    job = store.jobs.claim(row.ref, row.table_uuid or "", (Operation.CHECK,), Trigger("manual", "ann", "h:1:2"), NOW)
    assert job is not None
    record_cost(store, job, row.ref, Operation.CHECK, 0.1)
    store.jobs.finish(job, JobState.SUCCEEDED, "done", NOW)
    page = served.client().get(PAGE, headers=BROWSER).text
    rows = {
        name: next(row for row in page.split("<tr>") if f'value="{name}"' in row) for name in ("check", "expire_rows")
    }
    assert [("committed" in row, "disabled" in row) for row in rows.values()] == [(True, False), (False, True)]


def test_static_files(served: Served) -> None:
    """Are kept for ever under the mark of their content, packed for who takes it; nothing else is found there."""
    client = served.client()
    for name in ("style.css", "app.js", "charts.js", "icon.svg"):
        found = client.get(render.asset_url(name))
        assert found.status_code == 200
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["content-encoding"] == "gzip"
        assert client.get(render.asset_url(name), headers={"accept-encoding": "identity"}).text == found.text
    assert client.get("/static/older/style.css").headers["cache-control"] == "no-store"
    for path in ("/static/x/nowhere.css", "/static/x/..%2F..%2Fapplication.py", "/static/x/__init__.py"):
        assert client.get(path).status_code == 404


def test_the_bundle_of_charts_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers that come while a child process builds it wait for that one: each takes 150 MB."""
    begun: list[int] = []

    def build(*_: object, **__: object) -> SimpleNamespace:
        begun.append(1)
        time.sleep(0.1)
        return SimpleNamespace(stdout=b"bundle")

    render._built.cache_clear()
    try:
        with monkeypatch.context() as patch, ThreadPoolExecutor(4) as browsers:
            patch.setattr(subprocess, "run", build)
            contents = browsers.map(lambda _: render.assets()[render.VEGA].content()[0], range(4))
            assert (set(contents), len(begun)) == ({b"bundle"}, 1)
    finally:
        render._built.cache_clear()


def follow(client: httpx2.Client, path: str) -> Any:
    """What comes by a stream, event by event."""
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif not line and name:
                yield name
                name = ""


def test_a_job_is_followed_until_it_ends(served: Served) -> None:
    """Each change comes once; the end closes the stream."""
    served.evaluate()
    client = served.client()
    job = served.job()
    assert list(follow(client, f"/live/jobs/{job}")) == ["part", "end"]
    assert client.get("/live/jobs/nowhere").status_code == 404


def test_rules_audit_and_vacuums_are_followed(served: Served) -> None:
    """As lists of tables and jobs are; a catalog that is not there has no stream."""
    with serving(served.app(), HERE, 0) as port, httpx2.Client(timeout=10) as client:
        here = f"http://{HERE}:{port}/live"
        for path in ("policies", "audit?outcome=refused", "vacuum?catalog=lake"):
            assert next(follow(client, f"{here}/{path}")) == "part"
        assert client.get(f"{here}/vacuum?catalog=pond").status_code == 404


def test_what_cannot_be_shown_ends_its_stream(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is not there has no stream; a store that goes away ends one without a traceback in the log."""
    answers = iter([policies._rules])
    monkeypatch.setattr(policies, "_rules", lambda caller: next(answers, away)(caller))  # noqa: PLW0108 - one each time
    monkeypatch.setattr(policies, "_EVERY", 0.0)
    with serving(served.app(), HERE, 0) as port, httpx2.Client(timeout=10) as client:
        here = f"http://{HERE}:{port}/live"
        assert client.get(f"{here}/tables/lake.sales.nowhere").status_code == 404
        assert list(follow(client, f"{here}/policies")) == ["part"]
        assert client.get(f"{here}/policies").status_code == 503
    assert "Traceback" not in caplog.text


def away(_: Caller) -> NoReturn:
    """The store does not answer."""
    raise StoreUnavailable("gone")


def test_followers_are_let_go(served: Served) -> None:
    """When the server stops they do not hold it up; so many at the same time are answered, and no more."""
    app = served.app()
    app.state.stream_slots = PrincipalSlots("live pages", 2, 2)
    events: list[str] = []
    with httpx2.Client(timeout=10) as client:
        with serving(app, HERE, 0) as port:
            here = f"http://{HERE}:{port}"
            threads = [
                threading.Thread(target=lambda: events.extend(follow(client, f"{here}/live/queue"))) for _ in "ab"
            ]
            for thread in threads:
                thread.start()
            until(lambda: len(events) > 1, "both are told something", 60)
            assert events == ["part", "part"]
            assert client.get(f"{here}/live/overview").status_code == 429
            began = time.monotonic()
        for thread in threads:
            thread.join(5)
    assert time.monotonic() - began < 5
    for _ in "ab":
        app.state.stream_slots.acquire("local local")  # there is room again


def test_a_revoked_token_is_told_nothing_more(served: Served) -> None:
    """A stream that was open before the revocation ends with the next change, in place of telling it."""
    served.evaluate()
    jobs, access = served.bench.store.jobs, served.bench.store.access
    job = jobs.claim(served.ref, "u1", (Operation.COMPACT,), Trigger("manual", "ann", "h:1:2"), NOW)
    assert job is not None
    header = bearer(served, Role.VIEWER)
    with httpx2.Client(timeout=10, headers=header) as client, serving(served.app(access=REQUIRED), HERE, 0) as port:
        events = follow(client, f"http://{HERE}:{port}/live/jobs/{job}")
        assert next(events) == "part"
        assert access.revoke_token(header["authorization"].split("_")[1], NOW)
        jobs.finish(job, JobState.FAILED, "no space", NOW)
        assert list(events) == []


@pytest.mark.cases(152)
def test_one_principal_cannot_take_all_slots() -> None:
    """A principal at its own limit gets 429 while others are served; at the limit of all everybody gets 503."""
    slots = PrincipalSlots("live pages", per_principal=2, total=3)
    for who in ("ann", "ann", "bob"):
        slots.acquire(who)
    for who, status in (("ann", 429), ("bob", 503)):
        with pytest.raises(Problem) as refused:
            slots.acquire(who)
        assert refused.value.status == status
    slots.release("ann")
    with slots.hold("eve"), pytest.raises(Problem):
        slots.acquire("bob")
    slots.acquire("bob")


def test_what_a_job_page_says(served: Served) -> None:
    """Of a job that failed why, with its text as text; the log in order."""
    store, now = served.bench.store, NOW
    job = store.jobs.claim(served.ref, "u1", (Operation.COMPACT,), Trigger("manual", "<i>eve</i>", "h:1:2"), now)
    assert job is not None
    store.activity.record("progress", now, served.ref, job_id=job, operation="compact", groups=4, groups_done=1)
    client = served.client()
    running = client.get(f"/jobs/{job}", headers=BROWSER).text
    assert "1 of 4 file groups" in running
    assert "&lt;i&gt;eve&lt;/<wbr>i&gt;" in running
    assert "/do/cancel" in running
    store.jobs.finish(job, JobState.FAILED, "no <b>space</b>", now)
    ended = client.get(f"/jobs/{job}", headers=BROWSER).text
    assert "no &lt;b&gt;space&lt;/b&gt;" in ended
    assert "/do/cancel" not in ended
    assert "not done" in ended


@pytest.mark.parametrize(
    ("given_bytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KB"),
        (None, "\u2013"),
        (-2048, "\u22122.0 KB"),
        (5 * 1024**4, "5.0 TB"),
    ],
)
def test_sizes(given_bytes: float | None, said: str) -> None:
    """In the unit that is worth reading."""
    assert formats.size(given_bytes) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no reason, and more", "No reason, and more."),
        ("lake.a: no such table", "lake.a: no such table."),
        ("lake.* matches nothing", "lake.* matches nothing."),
        ("s3://a is full.", "s3://a is full."),
    ],
)
def test_sentences(text: str, said: str) -> None:
    """With a capital, unless they begin with a name."""
    assert formats.sentence(text) == said


def test_numbers_and_times() -> None:
    """With as many digits as are worth reading, and the whole of it at hand."""
    assert formats.number(1234567) == "1,234,567"
    assert [formats.stated(x) for x in ("1234567", "9" * 5000, "many", None)] == [
        formats.number(1234567),
        "9" * 5000,
        "many",
        "\u2013",
    ]
    assert [formats.gb_hours(x) for x in (None, 0, 0.000015, 1.5, 1234)] == [
        "\u2013",
        "0",
        "0.000015",
        "1.50",
        "1,234",
    ]
    assert [formats.span(x) for x in (None, 0.05, 5, 65, 7200, 10**6)] == [
        "\u2013",
        "50 ms",
        "5.0 s",
        "1 min 5 s",
        "2 h 0 min",
        "12 days",
    ]
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for ago, said in (
        (0, "just now"),
        (-30, "in a moment"),
        (300, "5 min ago"),
        (-7200, "in 2 h"),
        (10**6, "12 days ago"),
    ):
        moment = formats.moment(now - timedelta(seconds=ago), now)
        assert f">{said}<" in moment
    assert "2026-01-02 03:04:05 UTC" in formats.moment(now, now)
    assert formats.value({"a": [1.0, True, None]}) == "a: 1, true, \u2013"
    assert formats.breakable("<a>.b") == "&lt;a&gt;.<wbr>b"
    assert formats.marked("<a> `<b>` c") == "&lt;a&gt; <code>&lt;b&gt;</code> c"
    assert formats.breakable("a\u202egnp.exe") == "a\\u202egnp.<wbr>exe"
    assert len(formats.breakable("n" * 9000)) < 1100


def test_the_api_says_what_was_saved(served: Served) -> None:
    """The overview's sums are those of the runs."""
    served.evaluate()
    found = served.client().get("/api/v1/overview").json()["saved"]
    assert set(found) == {
        "runs",
        "gb_hours",
        "money",
        "data_files",
        "manifests",
        "snapshots",
        "deleted_files",
        "deleted_bytes",
    }
    facts = served.client().get(TABLE).json()["facts"]
    assert facts["worst_partitions"][0]["file_sizes"]
    facts["worst_partitions"][0]["candidate_files"] = 1
    assert table_view.partitions(facts, NOW, 0)[0].candidates == 0  # one file has no other to be merged with


def test_partitions_add_up(served: Served) -> None:
    """What the listed partitions leave out has a row of its own, so that files and bytes are those of the table."""
    (row,) = served.bench.store.tables.list()
    of = metadata(ref=row.ref, metadata_location=row.metadata_location, specs=(spec(region="identity"),))
    parts = [partition(f"p{n}", files=3 + n, mb=1) for n in range(25)]
    found = facts(*parts, of=of, thresholds=thresholds(knobs()))
    served.bench.store.tables.record_evaluation(evaluate(found, knobs(), {}, NOW), NOW)
    client = served.client()
    detail = client.get(TABLE).json()
    listed = detail["facts"]["worst_partitions"]
    others = detail["facts"]["partitions"] - len(listed)
    page = client.get(PAGE, headers=BROWSER).text
    last = page.partition(f"the other {others} partitions</th>")[2].partition("</tr>")[0]
    assert f">{detail['files'] - sum(one['files'] for one in listed)}<" in last
