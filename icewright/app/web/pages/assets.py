"""Serve style sheets, scripts and icons under URLs with a digest, so that browsers cache them for ever."""

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
_IMMUTABLE = "public, max-age=31536000, immutable"
_SECONDS = 120  # to build the bundle
VEGA = "vega.js"
# built in a child process: vl_convert's engine needs more memory than the whole service
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"


@dataclass(frozen=True)
class Asset:
    """A static file with the digest of its content."""

    digest: str
    media_type: str
    content: Callable[[], tuple[bytes, bytes]]  # plain and gzipped


@router.get("/{digest}/{name}")
def asset(digest: str, name: str, request: Request) -> Response:
    """Serve an asset; an outdated digest is served uncached. Raises `Problem` 404."""
    asset = assets().get(name)
    if asset is None:
        raise Problem(404, "there is no such file")
    plain, gzipped = asset.content()
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": _IMMUTABLE if digest == asset.digest else "no-store", "vary": "accept-encoding"}
    if accepts_gzip:
        headers["content-encoding"] = "gzip"
    return Response(gzipped if accepts_gzip else plain, media_type=asset.media_type, headers=headers)


def asset_url(name: str) -> str:
    """Return the URL of an asset, with its digest."""
    return f"/static/{assets()[name].digest}/{name}"


@cache
def assets() -> Mapping[str, Asset]:
    """Return the static files and the Vega-Lite bundle by name."""
    files = {path.name: _file(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _KINDS}
    digest = _digest(f"{version('vl-convert-python')} {vl_convert.get_vega_version()}".encode())
    return {**files, VEGA: Asset(digest, _KINDS[".js"], _bundle)}


def _file(path: Path) -> Asset:
    content = path.read_bytes()
    encodings = content, gzip.compress(content, mtime=0)
    return Asset(_digest(content), _KINDS[path.suffix], lambda: encodings)


@cache
def _bundle() -> tuple[bytes, bytes]:
    """Return the bundle of Vega, Vega-Lite and Vega-Embed, built at the first request."""
    bundle = subprocess.run([sys.executable, "-c", _BUNDLE], capture_output=True, check=True, timeout=_SECONDS)  # noqa: S603 - ours
    return bundle.stdout, gzip.compress(bundle.stdout, mtime=0)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
