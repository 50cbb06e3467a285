"""Give each request an id, a log line, security headers, and a 500 problem when it crashes."""

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
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = {  # defaults; a route may set its own, as pages do
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
    """Assigns request ids, sets security headers and logs every request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and answer 500 when it raises before a response began."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        header = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = header if _VALID_ID.fullmatch(header) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, REQUEST_ID: request_id}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass  # the client has disconnected
        except Exception:
            _log.exception("request %s failed", request_id)
            if status:
                raise  # the response has begun: the server closes the connection
            problem = Problem(500, "internal error; search the log of the service for the id of this request")
            await problem.response(scope)(scope, receive, send_with_headers)
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1000
            path = scope.get("raw_path", b"").decode(
                "ascii", "replace"
            )  # percent-encoded, so that a newline cannot forge a log line
            client = (scope.get("client") or ("-",))[0]
            _log.info(
                "%s %s %s %.1f ms from %s, request %s", scope["method"], path, status, elapsed_ms, client, request_id
            )
