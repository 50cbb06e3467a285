"""What holds for every request: problems, headers, limits, the log; and the server on a real socket."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel
from starlette.types import Message

from icewright.app.web.middlewares import BodyLimitMiddleware, TokenBuckets
from icewright.app.web.running import serving
from icewright.core.errors import ConfigError
from tests.pushed import cloudevent
from tests.web.conftest import ELSEWHERE, HERE, TOKEN, Served
from tests.web.test_events import URL, problem, push

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test


class Asked(BaseModel):
    """What a route may ask for."""

    number: int


def test_probes(served: Served) -> None:
    """Alive is who answers; ready is who can do its work, and who cannot says why to those on this machine."""
    here, elsewhere = served.client(), served.client(host=ELSEWHERE)
    assert here.get("/healthz").json() == here.get("/readyz").json() == {"status": "ok"}
    served.faults = ["the state store does not answer"]
    assert here.get("/healthz").status_code == 200
    assert problem(here.get("/readyz"), 503)["errors"] == served.faults
    assert "errors" not in problem(elsewhere.get("/readyz"), 503)


@pytest.mark.cases(115)
def test_a_process_with_a_stuck_loop_is_not_alive(served: Served) -> None:
    """Only a new process mends that, and the orchestrator makes one."""
    served.stuck_loops = ["the loop evaluate has stopped"]
    problem(served.client().get("/healthz"), 503)
    served.stuck_loops = []
    assert served.client().get("/healthz").status_code == 200


def test_a_worker_serves_probes_alone(served: Served) -> None:
    """On every address, as a pod must: they hold nothing to protect."""
    app = served.app(probes_only=True)
    with serving(app, "0.0.0.0", 0):  # noqa: S104
        pass
    client = served.client(app, host=ELSEWHERE)
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    for path in ("/", "/metrics", "/api/openapi.json", "/api/v1/tables", URL):
        problem(client.get(path), 404)


def test_metrics(served: Served) -> None:
    """Metrics are served in the format that Prometheus reads."""
    response = served.client().get("/metrics")
    assert response.text == "icewright_tables 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_monitors_ask_for_heads(served: Served) -> None:
    """HEAD is answered as GET, without the body; a live page, whose answer does not end, refuses it."""
    client = served.client()
    for path in ("/healthz", "/metrics", "/tables", "/api/v1/tables", "/none"):
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.headers["content-length"]) == (got.status_code, str(len(got.content))), path
        assert head.content == b""
    assert client.head("/live/alerts").status_code == 405


def test_the_api_is_described(served: Served) -> None:
    """In OpenAPI, with its problems; there is no page that would load scripts from elsewhere."""
    client = served.client()
    described = client.get("/api/openapi.json").json()["paths"][URL]["post"]
    assert set(described["requestBody"]["content"]) >= {"application/json", "application/cloudevents+json"}
    assert {"202", "401", "413", "415", "422", "429", "503"} <= described["responses"].keys()
    for path in ("/docs", "/redoc", "/openapi.json"):
        problem(client.get(path), 404)


def test_every_error_is_a_problem(served: Served) -> None:
    """Also those that no route of ours raises."""
    app = served.app()

    @app.post("/asks")
    async def asks(_: Asked) -> None:
        """Take a number."""

    @app.get("/breaks")
    async def breaks() -> None:
        """Break."""
        raise RuntimeError("hush: postgresql://me:hush@db")

    client = served.client(app)
    nothing = problem(client.get("/none"), 404)
    assert (nothing["title"], "missing or misspelt" in nothing["detail"]) == ("Not Found", True)
    refused = client.get(URL)
    problem(refused, 405)
    assert refused.headers["allow"] == "POST"
    assert problem(client.post("/asks", json={"number": "x"}), 422)["errors"][0].startswith("body.number: ")
    cut = problem(client.post("/asks", content=b"{", headers={"content-type": "application/json"}), 422)
    assert cut["errors"][0].startswith("body: not JSON from character 1 on: Expecting property name")
    broken = client.get("/breaks")
    assert "id of this request" in problem(broken, 500)["detail"]
    assert "hush" not in broken.text


def test_headers_of_every_answer(served: Served) -> None:
    """Browsers guess no types, show nothing in frames and keep nothing; a route may say otherwise."""
    app = served.app()

    @app.get("/page")
    async def page() -> Any:
        """A page."""
        from starlette.responses import HTMLResponse

        return HTMLResponse("", headers={"content-security-policy": "default-src 'self'"})

    client = served.client(app)
    for path in ("/healthz", "/none", URL):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
    assert client.get("/page").headers["content-security-policy"] == "default-src 'self'"


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("a" * 65, False), ("a b", False), ("", False)])
def test_request_ids(served: Served, caplog: pytest.LogCaptureFixture, given: str, kept: bool) -> None:
    """A proxy's is kept, if it can stand in a log; each request has a line there, without what it asked for."""
    with caplog.at_level(logging.INFO, "icewright.app.web"):
        response = served.client().get("/none%0Afaked?token=hush", headers={"x-request-id": given})
    answered = response.headers["x-request-id"]
    assert (answered == given) is kept
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("GET /none%0Afaked 404 ")
    assert line.endswith(f"from {HERE}, request {answered}")


def test_what_breaks_is_in_the_log(served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """With the request's id, by which whoever asked can have it looked up; no token is."""
    monkeypatch.setattr(served.bench.store.inbox, "receive", None)
    client = served.client(served.app(tokens=[TOKEN]))
    with caplog.at_level(logging.INFO, "icewright.app.web"):
        found = problem(push(client, authorization=f"Bearer {TOKEN}"), 500)
    assert f"request {found['request_id']} failed" in caplog.text
    assert "TypeError" in caplog.text
    assert TOKEN not in caplog.text


def test_who_asks_too_often(served: Served) -> None:
    """Is told when to come again; others, and probes, are not turned away."""
    app = served.app(requests_per_second=1)
    client = served.client(app)
    statuses = [push(client).status_code for _ in range(4)]
    assert statuses == [202, 202, 429, 429]
    refused = push(client)
    assert "server.requests_per_second" in problem(refused, 429)["detail"]
    assert refused.headers["retry-after"] == "1"
    assert client.get("/healthz").status_code == 200
    assert served.client(app, host="127.0.0.2").get("/none").status_code == 404


def test_token_buckets() -> None:
    """Filled at a steady rate, twice the rate at most, for so many clients as can be known."""
    now = 0.0
    buckets = TokenBuckets(10, lambda: now, limit=2)
    assert [buckets.wait("a") for _ in range(20)] == [0] * 20
    assert buckets.wait("a") == pytest.approx(0.1)
    now = 0.5
    assert [buckets.wait("a") > 0 for _ in range(6)] == [False] * 5 + [True]
    now = 100.0
    assert sum(not buckets.wait("a") for _ in range(30)) == 20
    for client in "bcd":
        assert buckets.wait(client) == 0
    assert buckets.wait("a") == 0
    assert len(buckets._buckets) == 2


def test_a_network_of_ipv6_is_one_client(served: Served) -> None:
    """Whoever has one has all addresses of it."""
    app = served.app(requests_per_second=1)
    hosts = [f"2001:db8:0:{n // 8}::{n}" for n in range(9)]
    assert [served.client(app, host=host).get("/none").status_code for host in hosts] == [404] * 2 + [429] * 6 + [404]


def test_a_body_that_does_not_come() -> None:
    """Is not waited for without end."""

    async def read(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass

    async def slow() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(_: Message) -> None:
        raise AssertionError

    with pytest.raises(Exception, match="did not come within") as caught:
        asyncio.run(BodyLimitMiddleware(read, 1000, seconds=0.05)({"type": "http", "headers": []}, slow, send))
    assert getattr(caught.value, "status_code", None) == 408


def ask(port: int, request: bytes) -> bytes:
    """Speak HTTP by hand, and read until the server closes."""
    with socket.create_connection((HERE, port), 60) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_on_a_real_socket(served: Served) -> None:
    """Events come over the network, many at once, and the server is gone after the block."""
    with serving(served.app(), HERE, 0) as port, httpx2.Client(base_url=f"http://{HERE}:{port}", timeout=60) as client:
        assert client.get("/healthz").json() == {"status": "ok"}

        def send(number: int) -> int:
            return client.post(URL, json=cloudevent(id=str(number))).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(send, range(32))) == {202}
        assert served.looked_at()
        assert "server" not in client.get("/healthz").headers
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HERE, port), 1)


def test_an_endless_body_on_a_real_socket(served: Served) -> None:
    """Is answered and cut off, though its sender never stops."""
    head = f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    with serving(served.app(max_body=1000), HERE, 0) as port:
        answer = ask(port, head.encode() + b"400\r\n" + b" " * 1024 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()
        said = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\nContent-Type: a\r\n\r\n"
        assert ask(port, said).startswith(b"HTTP/1.1 413 ")
        assert ask(port, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_proxy_says_for_whom_it_asks(served: Served) -> None:
    """One on this machine lets nobody in who could not come himself."""
    with serving(served.app(), HERE, 0) as port, httpx2.Client(base_url=f"http://{HERE}:{port}", timeout=60) as client:
        forwarded = client.post(URL, json=cloudevent(), headers={"x-forwarded-for": f"127.0.0.1, {ELSEWHERE}"})
        problem(forwarded, 403)


def test_what_runs_is_answered_before_the_end(served: Served) -> None:
    """Requests that have begun are finished when the block ends."""
    app = served.app()
    begun = threading.Event()

    @app.get("/slow")
    def slow() -> str:
        """Answer late."""
        begun.set()
        time.sleep(0.3)
        return "done"

    with ThreadPoolExecutor(1) as pool:
        with serving(app, HERE, 0) as port:
            answer = pool.submit(httpx2.get, f"http://{HERE}:{port}/slow")
            assert begun.wait(60)
        assert answer.result(60).json() == "done"


def test_who_cannot_be_told_apart_is_not_let_in(served: Served) -> None:
    """Without tokens the server listens on this machine alone, whatever it is told."""
    everywhere = "0.0.0.0"  # noqa: S104 - what is refused here
    for host in (everywhere, "::", "::ffff:0.0.0.0"):
        with pytest.raises(ConfigError, match="set auth") as caught, serving(served.app(), host, 0):
            pass
        assert host in str(caught.value)
    with pytest.raises(ConfigError, match="set auth"), serving(served.app(tokens=[TOKEN]), everywhere, 0):
        pass  # API and pages would be open to a sidecar
    with serving(served.app(tokens=[TOKEN], exposed=True), everywhere, 0) as port:
        assert ask(port, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.cases(153)
def test_an_exposed_service_without_auth_serves_events_and_probes_alone(served: Served) -> None:
    """On an address that others reach nobody is an admin by place, not even through a mesh's sidecar at 127.0.0.6."""
    exposed = served.app(tokens=[TOKEN], exposed=True)
    client = served.client(exposed, host="127.0.0.6")
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200
    pushed = client.post(URL, json={}, headers={"authorization": f"Bearer {TOKEN}"})
    assert pushed.status_code == 422
    rule = client.put("/api/v1/policies/platform", json={"set": {"remove_orphans.mode": "delete"}})
    assert "set auth" in problem(rule, 403)["detail"]
    for path in ("/", "/tables", "/login", "/api/openapi.json", "/api/v1/tables", "/static/x/app.js"):
        problem(client.get(path), 403)


@pytest.mark.cases(153)
@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto", "X-Envoy-Peer"]
)
def test_a_forwarded_request_is_not_local(served: Served, header: str) -> None:
    """A proxy on the same machine connects from loopback for anybody, and is no admin."""
    client = served.client()
    assert client.get("/api/v1/me").json()["via"] == "local"
    problem(client.get("/api/v1/me", headers={header: "127.0.0.1"}), 403)
    problem(client.post(URL, json={}, headers={header: "127.0.0.1"}), 403)


@pytest.mark.cases(153)
def test_nginx_as_it_is_by_default_is_not_this_machine(served: Served) -> None:
    """It connects from loopback under a loopback name for anybody, with no header that says so, by HTTP/1.0."""
    with serving(served.app(), HERE, 0) as port:
        for version, status in (("1.0", 403), ("1.1", 200)):
            request = f"GET /api/v1/me HTTP/{version}\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            assert ask(port, request.encode()).startswith(f"HTTP/1.1 {status} ".encode())


def test_an_address_that_cannot_be_had(served: Served) -> None:
    """Is a fault of the configuration, which is named."""
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host, number in ((HERE, port), ("no-such-host.invalid", 80)):
            expected = pytest.raises(ConfigError, match=f"server: {host}:{number} cannot be listened on")
            with expected, serving(served.app(), host, number):
                pass
