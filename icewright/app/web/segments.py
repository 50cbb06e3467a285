"""Names in URLs: whatever a segment holds, encoded slashes too, reaches the route as it was meant."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from icewright.app.web.problems import Problem

_SLASH = "\udc2f"  # a lone surrogate: no path that is decoded from UTF-8 has one
LONGEST = 4096


class Segment(Convertor[str]):
    """One segment of a path, decoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Percent-decode a segment of the path."""
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        """Percent-encode a value as a segment of a path."""
        return value.replace("/", _SLASH)


register_url_convertor("segment", Segment())


class Segmented:
    """Keeps slashes that are part of a name from parting it; refuses what no name or value can hold."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            raw, query = scope.get("raw_path") or b"", scope.get("query_string", b"")
            if b"%00" in raw or b"%00" in query or b"\0" in raw or len(raw) > LONGEST:
                problem = Problem(400, f"no name holds a null character, and no path is longer than {LONGEST} bytes")
                await problem.response(scope)(scope, receive, send)
                return
            if b"%" in raw:
                parts = raw.partition(b"?")[0].split(b"/")
                scope = {**scope, "path": "/".join(unquote(p.decode("latin-1")).replace("/", _SLASH) for p in parts)}
        await self.app(scope, receive, send)
