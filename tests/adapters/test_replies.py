"""Replies of catalogs that never end, inflate to gigabytes or drip cost their table or catalog, and little memory."""

from __future__ import annotations

import gzip
import json
import resource
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest

from icewright.adapters.catalogs import replies
from icewright.adapters.catalogs.nessie_client import NessieClient
from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.translate import rest_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.read_limits import ReadLimits, read_limits, set_read_limits
from icewright.core.errors import CatalogUnavailable, CommitStateUnknown, MetadataTooLarge
from icewright.core.table import TableRef
from icewright.core.vacuum import Content, Reference
from icewright.ports import Pointer
from tests.contracts.bench import FixedClock

LIMIT = 1 << 20
LEAST_GROWTH_KIB = 64 << 10  # of a process that reads a bomb of four gigabytes
Answer = Callable[[BaseHTTPRequestHandler], None]
ORDERS, SMALL = (TableRef("lake", ("sales",), name) for name in ("orders", "small"))


def headed(request: BaseHTTPRequestHandler, **headers: str) -> None:
    """Send status and headers."""
    request.send_response(200)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def plain(document: object) -> Answer:
    """An answer of this JSON."""
    content = json.dumps(document).encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        headed(request, Content_Length=str(len(content)))
        request.wfile.write(content)

    return answer


def endless(request: BaseHTTPRequestHandler) -> None:
    """Chunks until nobody reads them."""
    headed(request, Transfer_Encoding="chunked")
    while True:
        request.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def bomb(request: BaseHTTPRequestHandler) -> None:
    """Four gigabytes in four megabytes, of which a tenth of a percent is read."""
    piece = gzip.compress(bytes(256 << 20), 1)
    headed(request, Content_Encoding="gzip", Content_Length=str(16 * len(piece)))
    for _ in range(16):
        request.wfile.write(piece)


def drip(request: BaseHTTPRequestHandler) -> None:
    """One byte now and then, within every time-out between two bytes."""
    headed(request, Content_Length="1000000")
    while True:
        request.wfile.write(b" ")
        request.wfile.flush()
        if threading.Event().wait(0.05):
            return


def pages(request: BaseHTTPRequestHandler) -> None:
    """A page of names, and after each another one."""
    tables = [{"namespace": ["sales"], "name": f"t{n}" * 100} for n in range(100)]
    plain({"identifiers": tables, "next-page-token": uuid4().hex})(request)


class Server:
    """A REST catalog of two tables, one of which answers as told, and its listing too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.table: Answer = plain({})
        self.listing: Answer = plain(
            {"identifiers": [{"namespace": ["sales"], "name": name} for name in ("orders", "small")]}
        )
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer by path."""
                server.asked.append(self.path)
                try:
                    server.answer(self.path)(self)
                except OSError:  # the client reads no more
                    self.close_connection = True

            do_POST = do_GET  # noqa: N815 - the name that the server calls

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str) -> Answer:
        """What a path leads to."""
        path = path.partition("?")[0]
        if path.endswith("/tables/orders") or "/trees/" in path:
            return self.table
        if path.endswith("/tables/small"):
            return plain({"metadata-location": "s3://b/small.json", "metadata": {}})
        if path.endswith("/tables"):
            return self.listing
        return plain({"namespaces": [["sales"]]} if path.endswith("/namespaces") else {"defaults": {}, "overrides": {}})


@pytest.fixture
def server() -> Iterator[Server]:
    """A server, beside which this process may read a megabyte of a reply."""
    before, made = read_limits(), Server()
    set_read_limits(ReadLimits(LIMIT, LIMIT, 5, LIMIT))
    yield made
    set_read_limits(before)
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def catalog(server: Server) -> Iterator[RestCatalog]:
    """Icewright's client, whose waiting takes no time."""
    made = RestCatalog(rest_catalog("lake", {"uri": server.address}), LocalStorage(), FixedClock())
    yield made
    made.close()


@pytest.mark.cases(150)
@pytest.mark.parametrize("reply", [endless, bomb], ids=["endless", "bomb"])
def test_a_table_whose_reply_never_ends_costs_itself_alone(server: Server, catalog: RestCatalog, reply: Answer) -> None:
    """It is set aside with the name of the setting, asked once; its neighbour is listed; memory hardly grows."""
    server.table = reply
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MetadataTooLarge, match=r"tables/orders: the catalog's reply has \d+ bytes.*max_metadata_mb"):
        catalog.load(ORDERS)
    assert sum("orders" in path for path in server.asked) == 1
    listed = catalog.pointers()
    assert Pointer(SMALL, "s3://b/small.json") in listed
    assert {pointer.ref for pointer in listed} == {ORDERS, SMALL}
    assert catalog.pointers() == listed
    assert sum("orders" in path for path in server.asked) == 2, "it was asked for once more, by the first listing"
    if reply is endless:  # the bomb is made in this process
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LEAST_GROWTH_KIB


@pytest.mark.cases(150)
@pytest.mark.parametrize("reply", [endless, bomb, pages], ids=["endless", "bomb", "pages"])
def test_a_listing_that_never_ends_is_the_catalogs_fault(server: Server, catalog: RestCatalog, reply: Answer) -> None:
    """All pages together have one limit, and the error names it."""
    server.listing = reply
    with pytest.raises(CatalogUnavailable, match=r"catalog lake: the replies to .* raise reading.max_listing_mb"):
        catalog.pointers()


@pytest.mark.cases(150)
def test_a_reply_that_drips_is_given_up(server: Server, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out between two bytes ends it, but a pace that it must keep."""
    monkeypatch.setattr(replies, "_PATIENCE", 0.3)
    server.table = drip
    with pytest.raises(CatalogUnavailable, match="timed out"):
        catalog.load(ORDERS)


def test_a_commit_whose_reply_never_ends_has_an_unknown_outcome(server: Server) -> None:
    """It may have landed: nothing of it may be cleaned up."""
    server.table = endless
    content = Content("id", ("orders",), "s3://b/v2.json", 1)
    with pytest.raises(CommitStateUnknown, match="the reply to a commit was lost"):
        NessieClient("lake", f"{server.address}/api/v2").commit(Reference("main", True, "00"), content, {}, "m")
