"""Route path segments that contain encoded slashes, such as names of tables."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from icewright.app.web.problems import Problem

_SLASH = "\udc2f"  # a lone surrogate, which no path decoded from UTF-8 contains
LONGEST = 4096


class Segment(Convertor[str]):
    """A decoded path segment, which may contain slashes."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Percent-decode a segment of the path."""
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        """Percent-encode a value as a segment of a path."""
        return value.replace("/", _SLASH)


register_url_convertor("segment", Segment())


class PathSegmentMiddleware:
    """Protects encoded slashes of names from routing; refuses null characters and long paths."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with encoded slashes of the path replaced by a marker."""
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
