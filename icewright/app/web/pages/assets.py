"""Style, scripts and pictures: each under an address that names its content, so that it is kept for ever."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import vl_convert
from fastapi import APIRouter, Request
from starlette.responses import Response

from icewright.app.web.problems import Problem

router = APIRouter(prefix="/static")
_FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"
_SECONDS = 120  # for making the bundle
VEGA = "vega.js"
# in a process of its own: the engine that puts it together takes more memory than the whole service
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"


@dataclass(frozen=True)
class Asset:
    """A file, and the mark of its content."""

    mark: str
    kind: str
    content: Callable[[], tuple[bytes, bytes]]  # as it is, and packed


@router.get("/{mark}/{name}")
def asset(mark: str, name: str, request: Request) -> Response:
    """One of them; an older mark is answered too, though it is not kept."""
    found = assets().get(name)
    if found is None:
        raise Problem(404, "there is no such file")
    plain, packed = found.content()
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": _FOR_EVER if mark == found.mark else "no-store", "vary": "accept-encoding"}
    if zipped:
        headers["content-encoding"] = "gzip"
    return Response(packed if zipped else plain, media_type=found.kind, headers=headers)


def asset_url(name: str) -> str:
    """Return the address of a file."""
    return f"/static/{assets()[name].mark}/{name}"


@cache
def assets() -> Mapping[str, Asset]:
    """Ours, by name; and the bundle of Vega-Lite."""
    found = {path.name: _file(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _KINDS}
    mark = _mark(f"{version('vl-convert-python')} {vl_convert.get_vega_version()}".encode())
    return {**found, VEGA: Asset(mark, _KINDS[".js"], _bundle)}


def _file(path: Path) -> Asset:
    content = path.read_bytes()
    both = content, gzip.compress(content, mtime=0)
    return Asset(_mark(content), _KINDS[path.suffix], lambda: both)


@cache
def _bundle() -> tuple[bytes, bytes]:
    """Vega, Vega-Lite and Vega-Embed, put together by the first who asks."""
    made = subprocess.run([sys.executable, "-c", _BUNDLE], capture_output=True, check=True, timeout=_SECONDS)  # noqa: S603 - ours
    return made.stdout, gzip.compress(made.stdout, mtime=0)


def _mark(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
