"""Logging in, by a real OpenID provider that the test starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from icewright.app.sections import AuthSection
from icewright.app.web.identity import COOKIE, CSRF, access_of
from icewright.app.web.oidc import PENDING, local_path
from tests.web.conftest import Served
from tests.web.test_access import API
from tests.web.test_events import problem

SECRET = "client-secret-hush"
GROUPS = {"staff": {"role": "viewer"}, "sales": {"role": "owner", "scope": ["lake.sales"]}}
PEOPLE = {
    "ann": {"email": "ann@example.com", "groups": ["staff", "sales"]},
    "mal": {"email": "ann@example.com", "email_verified": False, "groups": ["staff"]},
    "eve": {"email": "eve@x", "groups": ["no"]},
    "ida": {"email": "ida@x", "groups": ["staff"], "aud": "another", "azp": "icewright"},
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the provider's own


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider that knows three people."""
    import oidc_provider_mock as mock

    people = [mock.User(sub=sub, claims=claims) for sub, claims in PEOPLE.items()]
    with mock.run_server_in_thread(user_claims=people, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def client(served: Served, issuer: str) -> TestClient:
    """A browser at a service where people log in."""
    oidc = {"issuer": issuer, "client_id": "icewright", "client_secret": SECRET, "groups": GROUPS}
    return served.client(served.app(access=access_of(AuthSection.model_validate({"oidc": oidc}))))


def begin(client: TestClient, page: str = "/") -> str:
    """Where the browser is sent."""
    sent = client.get("/auth/login", params={"next": page}, follow_redirects=False)
    assert sent.status_code == 302, sent.text
    return str(sent.headers["location"])


def answer(url: str, sub: str) -> str:
    """Where the provider sends the browser back to, once somebody has said who they are."""
    sent = httpx2.post(url, data={"sub": sub}, follow_redirects=False, timeout=60)
    assert sent.status_code == 302, sent.text
    return str(sent.headers["location"])


def log_in(client: TestClient, sub: str, page: str = "/") -> Any:
    """All of it."""
    back = urlsplit(answer(begin(client, page), sub))
    return client.get(f"{back.path}?{back.query}", follow_redirects=False)


@pytest.mark.external
def test_somebody_logs_in(served: Served, client: TestClient) -> None:
    """Reads, changes with the CSRF token what their groups own, and logs out; the cookie is no script's."""
    done = log_in(client, "ann", "/tables?sort=health")
    assert (done.status_code, done.headers["location"]) == (303, "/tables?sort=health")
    cookie = next(c for c in done.headers.get_list("set-cookie") if c.startswith(f"{COOKIE}="))
    assert re.search("(?i)httponly", cookie)
    assert re.search("(?i)samesite=lax", cookie)
    assert "secure" not in cookie.lower()
    me = client.get(f"{API}/me").json()
    assert me["name"] == "ann@example.com"
    assert me["grants"] == [{"role": "viewer", "scope": []}, {"role": "owner", "scope": ["lake.sales"]}]
    url = f"{API}/tables/lake.sales.orders/pause"
    problem(client.post(url, json={}), 403)
    assert client.post(url, json={}, headers={CSRF: me["csrf"]}).status_code == 204
    assert client.post("/auth/logout", headers={CSRF: me["csrf"]}).status_code == 204
    problem(client.get(f"{API}/me"), 401)
    (entry,) = served.bench.store.audit.entries(None, None, 10, action="login")
    assert (entry.actor, entry.refused) == ("ann@example.com", False)


@pytest.mark.external
def test_a_login_expires_so_that_groups_count(served: Served, client: TestClient) -> None:
    """The browser of an active person asks the provider again by itself; who is refused then has no session."""
    log_in(client, "ann")
    served.bench.clock.advance(minutes=50)
    assert client.get(f"{API}/me").status_code == 200
    served.bench.clock.advance(minutes=11)
    problem(client.get(f"{API}/me"), 401)
    again = client.get("/login?next=/tables%3Fa%3Db", follow_redirects=False)
    assert (again.status_code, again.headers["location"]) == (303, "/auth/login?next=%2Ftables%3Fa%3Db")
    problem(log_in(client, "eve"), 403)
    assert client.get("/login").status_code == 200


@pytest.mark.external
def test_an_unverified_address_is_no_name(client: TestClient) -> None:
    """Whoever enters another person's address is named by the provider's id of them."""
    assert log_in(client, "mal").status_code == 303
    assert client.get(f"{API}/me").json()["name"] == "mal"


@pytest.mark.external
def test_somebody_without_a_role(served: Served, client: TestClient) -> None:
    """Is refused, and it is written down."""
    problem(log_in(client, "eve"), 403)
    problem(client.get(f"{API}/me"), 401)
    (entry,) = served.bench.store.audit.entries(None, None, 10, action="login")
    assert (entry.actor, entry.refused, entry.via) == ("eve@x", True, "")
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]
    for _ in range(9):
        problem(client.get(f"/auth/callback?state={state}&error=x"), 403)
    assert len(served.bench.store.audit.entries(None, None, 10, action="login")) <= 3  # anybody may cause them


@pytest.mark.external
def test_answers_that_are_not_to_this_browser(client: TestClient) -> None:
    """Another state, no cookie, another browser's code, a code used twice, another's token: none begins a session."""
    asked = begin(client)
    query = parse_qs(urlsplit(asked).query)
    assert query["code_challenge_method"] == ["S256"]
    back = urlsplit(answer(asked, "ann"))
    problem(client.get(f"/auth/callback?code=x&state={'0' * 64}"), 400)
    problem(client.get(f"/auth/callback?state={query['state'][0]}&error=access_denied"), 403)
    mine = client.cookies[PENDING]
    client.cookies.delete(PENDING)
    problem(client.get(f"/auth/callback?{back.query}"), 400)
    other = parse_qs(urlsplit(begin(client)).query)["state"][0]
    code = parse_qs(back.query)["code"][0]
    failed = client.get(f"/auth/callback?code={code}&state={other}", follow_redirects=False)
    assert "begin again" in problem(failed, 400)["detail"]
    assert mine not in failed.text
    assert SECRET not in failed.text
    assert "InvalidClaimError" in problem(log_in(client, "ida"), 400)["detail"]  # a token for another service
    problem(client.get(f"{API}/me"), 401)


def test_where_nobody_logs_in(served: Served) -> None:
    """Where no login is configured, there is no login page."""
    problem(served.client().get("/auth/login"), 404)


@pytest.mark.parametrize("page", ["//evil.example", "https://evil.example", "/\\evil", "javascript:x", "", "/a\n", "x"])
def test_nobody_is_sent_elsewhere(page: str) -> None:
    """Whatever page is asked for after the login."""
    assert local_path(page) == "/"
    assert local_path("/tables?x=1#y") == "/tables?x=1#y"
