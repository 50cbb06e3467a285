"""Floods of connections, heavy requests and refused tokens, by real sockets: others are served, and logs stay small."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from typing import Any

import httpx2
import pytest

from icewright.adapters.store import access as store_access
from icewright.app.tokens import new_token
from icewright.app.web.api import policies
from icewright.app.web.identity import Access
from icewright.app.web.running import AcceptErrors, ConnectionLimits, serving
from icewright.core.permissions import Role, grant
from icewright.flow.preview import preview
from icewright.ports.access import AuditRow
from tests.web.conftest import HERE, Served
from tests.web.test_server import ask

pytestmark = [pytest.mark.external, pytest.mark.cases(152)]
PROBE = b"GET /healthz HTTP/1.0\r\n\r\n"


def test_1100_idle_connections_keep_nobody_from_being_served(served: Served) -> None:
    """A flood from one address closes its own oldest connections alone: neither new clients nor quiet others notice."""
    limits = ConnectionLimits(total=200, header_seconds=60)
    with serving(served.app(), HERE, 0, limits) as port, ExitStack() as stack:
        quiet = stack.enter_context(socket.create_connection((HERE, port), timeout=10))
        flood = [
            stack.enter_context(socket.create_connection((HERE, port), timeout=10, source_address=("127.0.0.2", 0)))
            for _ in range(1100)
        ]
        began = time.monotonic()
        assert ask(port, PROBE).startswith(b"HTTP/1.1 200 ")
        quiet.sendall(PROBE)
        assert quiet.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert time.monotonic() - began < limits.header_seconds, "nobody waits until idle connections end"
        assert sum(map(_was_closed, flood)) == 1000


def _was_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_request_head_must_come_in_time(served: Served) -> None:
    """Neither silence, nor a byte now and then, nor a head begun after a response holds a connection."""
    heads = (b"", b"GET /healthz HTTP/1.1\r\nX: ", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /")
    with serving(served.app(), HERE, 0, ConnectionLimits(total=16, header_seconds=0.5)) as port, ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((HERE, port), timeout=10)) for _ in heads]
        for client, head in zip(clients, heads, strict=True):
            client.sendall(head)
        for client in clients:
            assert _is_closed(client)


def _is_closed(client: socket.socket) -> bool:
    try:
        while client.recv(4096):
            client.sendall(b"x")
    except ConnectionError:
        return True
    return True


def test_a_slow_answer_is_no_slow_request(served: Served) -> None:
    """The clock runs for the head of a request alone."""
    app = served.app()

    @app.get("/slow")
    async def slow() -> str:
        """Take longer than a head may."""
        await asyncio.sleep(1.2)
        return "done"

    with serving(app, HERE, 0, ConnectionLimits(total=16, header_seconds=1)) as port:
        assert httpx2.get(f"http://{HERE}:{port}/slow", timeout=60).json() == "done"


def test_accept_errors_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Without a traceback; other errors of the loop are logged as ever."""
    moments = iter([0.0] * 1000 + [61.0] * 2)
    handler, loop = AcceptErrors(clock=lambda: next(moments)), asyncio.new_event_loop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
    with caplog.at_level(logging.ERROR):
        for _ in range(1001):
            handler(loop, context)
        handler(loop, {"message": "another", "exception": OSError(errno.EBADF, "Bad")})
    loop.close()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept connections: Too many; raise the limit of open files (0 more since the last line)",
        "cannot accept connections: Too many; raise the limit of open files (999 more since the last line)",
        "another",
    ]


def test_heavy_requests_of_one_viewer_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 previews at once two are worked on; others get 429, and an admin's preview and list are answered."""
    now = served.bench.clock.now()
    texts = {}
    for name, role in (("eve", Role.VIEWER), ("ann", Role.ADMIN)):
        texts[name], row = new_token([grant(role, [])], name, "test", now)
        served.bench.store.access.add_token(row)
    url, body = "/api/v1/policies/platform/preview", {"set": {"compact.min_input_files": 9}}
    eves_two, answered = threading.Semaphore(2), threading.Event()

    def slow_preview(*args: Any) -> Any:
        """Keep the first two waiting until the others are answered."""
        if eves_two.acquire(blocking=False):
            assert answered.wait(30)
        return preview(*args)

    monkeypatch.setattr(policies, "preview", slow_preview)
    with serving(served.app(access=Access(required=True)), HERE, 0) as port, ThreadPoolExecutor(60) as pool:
        base = f"http://{HERE}:{port}"
        eve, ann = ({"authorization": f"Bearer {texts[name]}"} for name in ("eve", "ann"))
        sent = [pool.submit(httpx2.post, base + url, json=body, headers=eve, timeout=60) for _ in range(60)]
        refused = [future.result().status_code for future in islice(as_completed(sent), 58)]
        assert httpx2.post(base + url, json=body, headers=ann, timeout=30).status_code == 200
        assert httpx2.get(f"{base}/api/v1/tables", headers=ann, timeout=30).status_code == 200
        answered.set()
        statuses = sorted(future.result().status_code for future in sent)
    assert refused == [429] * 58
    assert statuses == [200] * 2 + [429] * 58


def test_refused_tokens_of_one_network_are_audited_at_one_rate(served: Served) -> None:
    """300 addresses of one /64 leave as few rows as one address does."""
    app = served.app(access=Access(required=True))
    for i in range(300):
        client = served.client(app, host=f"2001:db8::{i:x}")
        assert client.get("/api/v1/me", headers={"authorization": "Bearer iw_000000000000_x"}).status_code in (401, 429)
    assert len(served.bench.store.audit.entries(None, None, 500, refused=True)) < 30


def test_the_audit_log_forgets_old_refusals_and_no_change(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever strangers do; refusals of people who are known have room of their own."""
    monkeypatch.setattr(store_access, "MAX_REFUSALS", 50)
    audit, now = served.bench.store.audit, served.bench.clock.now()
    known = AuditRow(now, "ann", "token", "jobs.run", "t", None, refused=True, source="")
    change = AuditRow(now, "ann", "token", "jobs.run", "t", None, refused=False, source="")
    audit.append(change)
    audit.append(known)
    for i in range(400):
        audit.append(AuditRow(now + timedelta(seconds=i), "", "", "GET /", "", None, refused=True, source="x"))
    strangers = audit.entries(None, None, 1000, via="")
    assert 50 <= len(strangers) <= 150
    assert strangers[0].at == now + timedelta(seconds=399)
    assert len(audit.entries(None, None, 1000, via="token")) == 2
