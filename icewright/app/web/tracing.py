"""Around every request: its id, its line in the log, headers for browsers, and a problem where all else failed."""

from __future__ import annotations

import logging
import re
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icewright.app.web.problems import Problem

REQUEST_ID = "x-request-id"
_GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = {  # a route that says otherwise, such as a page, is let
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)


class RequestLogMiddleware:
    """The outermost of our layers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, whatever happens."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _GIVEN.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, REQUEST_ID: request_id}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            pass  # whoever asked has gone: nobody is left to be told
        except Exception:
            _log.exception("request %s failed", request_id)
            if status:
                raise  # too late for another answer: the server closes the connection
            problem = Problem(500, "something went wrong inside; the service's log says what, by the request's id")
            await problem.response(scope)(scope, receive, sending)
        finally:
            taken = (time.perf_counter() - began) * 1000
            path = scope.get("raw_path", b"").decode("ascii", "replace")  # encoded: it cannot break the line
            client = (scope.get("client") or ("-",))[0]
            _log.info("%s %s %s %.1f ms from %s, request %s", scope["method"], path, status, taken, client, request_id)
