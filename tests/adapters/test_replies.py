"""Replies of catalogs that never end, inflate to gigabytes or drip cost their table or catalog, and little memory."""

from __future__ import annotations

import gzip
import json
import resource
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, repeat
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from icewright.adapters.catalogs import replies
from icewright.adapters.catalogs.nessie_client import NessieClient
from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.translate import rest_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.read_limits import ReadLimits, read_limits, set_read_limits
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, MetadataTooLarge
from icewright.core.table import TableRef
from icewright.core.vacuum import Content, Reference
from icewright.ports import Pointer
from tests.contracts.bench import FixedClock
from tests.servers.relay import answer

LIMIT = 1 << 20
MANY_PAGES = 101
LEAST_GROWTH_KIB = 64 << 10  # of a process that reads a bomb of four gigabytes
BODIES = (b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1;")
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


def drip(before: bytes) -> Answer:
    """After this, one byte now and then, within every time-out between two bytes."""

    def send(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 " + before)
        while not threading.Event().wait(0.01):
            request.wfile.write(b" ")

    return send


def pages(request: BaseHTTPRequestHandler) -> None:
    """A page of names, and after each another one."""
    tables = [{"namespace": ["sales"], "name": f"t{n}" * 100} for n in range(100)]
    plain({"identifiers": tables, "next-page-token": uuid4().hex})(request)


class Server:
    """A REST catalog of two tables, one of which answers as told, and its listing too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.overrides: dict[str, str] = {}
        self.table: Answer = plain({})
        self.listing: Answer = plain(
            {"identifiers": [{"namespace": ["sales"], "name": name} for name in ("orders", "small")]}
        )
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each reply waits 40 ms for the acknowledgement of its headers

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
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, path: str) -> Answer:
        """What a path leads to."""
        path = path.partition("?")[0]
        if path.endswith("/tables/orders") or "/trees" in path:
            return self.table
        if "/tables/" in path:
            return plain({"metadata-location": "s3://b/small.json", "metadata": {}})
        if path.endswith("/tables"):
            return self.listing
        config = {"defaults": {}, "overrides": self.overrides}
        return plain({"namespaces": [["sales"]]} if path.endswith("/namespaces") else config)


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


@pytest.mark.parametrize(("tokens", "most"), [(repeat("same"), 10), (map(str, count()), 120)], ids=["same", "new"])
def test_a_listing_that_goes_in_a_circle(
    server: Server, catalog: RestCatalog, tokens: Iterator[str], most: int
) -> None:
    """Pages that bring nothing new are the server's fault, at once where their token is the same; nothing is gone."""
    names = [{"namespace": ["sales"], "name": "small"}]

    def page(request: BaseHTTPRequestHandler) -> None:
        plain({"identifiers": names, "next-page-token": next(tokens)})(request)

    server.listing = page
    with pytest.raises(CatalogUnavailable, match="lists namespaces/sales/tables in a circle"):
        catalog.pointers()
    assert len(server.asked) < most


def test_a_listing_of_many_pages_is_no_circle(server: Server, catalog: RestCatalog) -> None:
    """However many there are, each brings a table."""
    numbers = count()

    def page(request: BaseHTTPRequestHandler) -> None:
        number = next(numbers)
        more = {"next-page-token": str(number)} if number < MANY_PAGES else {}
        plain({"identifiers": [{"namespace": ["sales"], "name": f"t{number}"}], **more})(request)

    server.listing = page
    assert len(catalog.pointers()) == MANY_PAGES + 1


def test_commits_of_nessie_that_go_in_a_circle(server: Server) -> None:
    """Pages of Nessie that lead back to an earlier one end with an error, as those of REST do."""
    server.table = plain({"logEntries": [], "hasMore": True, "token": "same"})
    with pytest.raises(CatalogUnavailable, match="in a circle"):
        list(NessieClient("lake", f"{server.address}/api/v2").log("00"))


@pytest.mark.cases(150)
@pytest.mark.parametrize("before", [b"2", b"200 OK\r\nX-A: ", *(b"200 OK\r\n" + b for b in BODIES)])
def test_a_reply_that_drips_is_given_up(
    server: Server, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """No time-out between two bytes ends it, be it status, headers, body or what is between chunks, but a pace."""
    monkeypatch.setattr(replies, "_PATIENCE", 0.05)
    server.table = drip(before)
    nessie = NessieClient("lake", f"{server.address}/api/v2")
    for ask, slow in ((partial(catalog.load, ORDERS), "timed out"), (partial(nessie.reference, "main"), "ReadTimeout")):
        with pytest.raises(CatalogUnavailable, match=slow):
            answer(ask)


def test_a_commit_whose_reply_never_ends_has_an_unknown_outcome(server: Server) -> None:
    """It may have landed: nothing of it may be cleaned up."""
    server.table = endless
    content = Content("id", ("orders",), "s3://b/v2.json", 1)
    with pytest.raises(CommitStateUnknown, match="the reply to a commit was lost"):
        NessieClient("lake", f"{server.address}/api/v2").commit(Reference("main", True, "00"), content, {}, "m")


@pytest.mark.parametrize(("status", "outcome"), [(429, CommitConflict), (503, CommitStateUnknown)])
def test_a_commit_to_a_busy_server(server: Server, status: int, outcome: type[Exception]) -> None:
    """Nessie says that it has not begun; a gateway before it does not know how far it is."""

    def busy(request: BaseHTTPRequestHandler) -> None:
        request.send_error(status)

    server.table = busy
    content = Content("id", ("orders",), "s3://b/v2.json", 1)
    with pytest.raises(outcome, match=str(status)):
        NessieClient("lake", f"{server.address}/api/v2").commit(Reference("main", True, "00"), content, {}, "m")


def test_an_error_that_quotes_the_token(server: Server) -> None:
    """No message has it, of either kind of catalog, nor what another header of the configuration holds."""

    def quote(request: BaseHTTPRequestHandler) -> None:
        why = f"{request.headers['Authorization']} is not valid, nor is {request.headers['X-Api-Key']}"
        content = json.dumps({"message": why, "error": {"message": why}}).encode()
        request.send_response(401)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    server.table = server.listing = quote
    properties = {"uri": server.address, "token": "hush-4711", "header.X-Api-Key": "hush-4712"}
    rest = RestCatalog(rest_catalog("lake", properties), LocalStorage(), FixedClock())
    nessie = NessieClient("lake", f"{server.address}/api/v2", "hush-4711")
    for ask, key in ((rest.pointers, r"\*\*\*"), (nessie.references, "None")):
        with pytest.raises(CatalogUnavailable, match=rf"Bearer \*\*\* is not valid, nor is {key}"):
            ask()
    rest.close()


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose certificate has expired."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=2), now - timedelta(days=1))
    pem = serialization.Encoding.PEM
    content = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    content += key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"https://localhost:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("http://nowhere.invalid", r"\[Errno -?\d+\] [\w ]+; is the server up\?"),
        ("", "certificate verify failed; renew the server's certificate"),
    ],
    ids=["DNS", "TLS"],
)
def test_a_commit_that_was_never_sent_leaves_no_doubt(
    server: Server, catalog: RestCatalog, expired: str, address: str, remedy: str
) -> None:
    """Where the server has no address, or no certificate that holds, the catalog is at fault, and nothing was done."""
    server.overrides = {"uri": address or expired}
    content = Content("id", ("orders",), "s3://b/v2.json", 1)
    with pytest.raises(CatalogUnavailable, match=f"lake at .* does not answer: {remedy}"):
        catalog._client.send("POST", "tables")
    with pytest.raises(CatalogUnavailable, match=remedy.partition("; ")[2]):
        NessieClient("lake", f"{address or expired}/api/v2").commit(Reference("main", True, "00"), content, {}, "m")
