"""Keys that cannot be named: each is left out of a listing and told, and every other key is listed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast
from unittest.mock import Mock

import boto3
import polars as pl
import pytest

from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.files import object_listing
from icewright.adapters.files.inventory import read_inventory
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.objects import ObjectStorage, open_bucket
from icewright.adapters.files.storage import UNNAMEABLE, displayed
from icewright.core.errors import AccessDenied, StorageUnavailable
from icewright.core.runs import FileAction
from icewright.ports import Storage, VendedCredentials
from icewright.testing import NOW, FixedClock
from tests.s3 import s3_server

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

PAGE = 3  # keys that the server lists at once
ODD = ["t//x", "t/./x", "t/../x", "t/a\tb", "t/a\x7f", "t/.", "t/..", "t/a//", "t/é//é", "t/a/./b"]
MARKERS = ["t/", "t/data/", "t/data/p=1/", "t/empty/"]
GOOD = ["t/..x", "t/.x", "t/a.", "t/a%2Fb", "t/a\\b", "t/a b", "t/x..", "t/...", "t/a\u0080", "t/data/p=1/f", "t/data0"]

external = pytest.mark.external


@pytest.fixture(scope="module")
def properties() -> Iterator[Mapping[str, str]]:
    """A server whose pages are small, so that few keys are many pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(PAGE))
        patch.setattr(object_listing, "PAGE", PAGE)
        with s3_server() as found:
            yield found


@pytest.fixture
def client(properties: Mapping[str, str]) -> Iterator[Any]:
    """For keys that obstore cannot write; leaves the bucket empty."""
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "region_name": "us-east-1"}
    made = boto3.client("s3", endpoint_url=properties["s3.endpoint"], **keys)
    yield made
    for page in made.get_paginator("list_objects_v2").paginate(Bucket="lake"):
        for one in page.get("Contents", []):
            made.delete_object(Bucket="lake", Key=one["Key"])


@pytest.fixture
def storage(properties: Mapping[str, str]) -> Storage:
    """The bucket."""
    return open_bucket("s3://lake", properties)


def put(client: Any, *keys: str, content: bytes = b"x") -> None:
    """New objects; those that end with a slash are empty."""
    for key in keys:
        client.put_object(Bucket="lake", Key=key, Body=b"" if key.endswith("/") else content)


def listed(storage: Storage, location: str = "s3://lake/t", known: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The listing's keys, and what was told."""
    told: list[str] = []
    rows = [row for batch in storage.listing(location, told.append, known) for row in batch.to_pylist()]
    assert {row["bytes"] for row in rows} <= {0, 1}
    return [row["path"].removeprefix("s3://lake/") for row in rows], told


def as_told(keys: Sequence[str]) -> list[str]:
    """Keys as a listing tells of them."""
    return sorted(displayed(f"s3://lake/{key}") for key in keys)


@external
@pytest.mark.cases(108)
@pytest.mark.parametrize("around", [0, 3 * PAGE])
def test_the_rest_is_listed(storage: Storage, client: Any, around: int) -> None:
    """With keys before, after and between the odd ones, in pages without and with them."""
    good = [*GOOD, *(f"t/{where}{n:02}" for n in range(around) for where in ("!", "a/", "~"))]
    put(client, *good, *ODD, *MARKERS)
    put(client, "t.x", "t0", "t0//x")  # beside the location
    names, told = listed(storage)
    assert sorted(names) == sorted(good)
    assert sorted(told) == as_told([*ODD, *MARKERS])


@external
@pytest.mark.cases(108)
@pytest.mark.parametrize("position", [0, 1, PAGE, 3 * PAGE])
@pytest.mark.parametrize("run", [1, 2 * PAGE])
def test_wherever_in_the_pages(storage: Storage, client: Any, position: int, run: int) -> None:
    """One odd key, and more than a page of them, at the beginning, in the middle and at the end of the keys."""
    good = [f"t/{n:02}" for n in range(3 * PAGE + 1) if n != position]
    odd = [f"t/{position:02}/{n}//x" for n in range(run)]
    put(client, *good, *odd)
    names, told = listed(storage)
    assert (names, sorted(told)) == (good, as_told(odd))


@external
@pytest.mark.cases(108)
@pytest.mark.parametrize("odd", ["t//x", *MARKERS[:2]])
def test_one_alone(storage: Storage, client: Any, odd: str) -> None:
    """Of an odd key alone there is nothing to list."""
    put(client, odd)
    assert listed(storage) == ([], as_told([odd]))


@external
@pytest.mark.cases(108)
def test_keys_that_begin_with_a_slash(storage: Storage, client: Any) -> None:
    """At the root of a bucket they are no other keys."""
    put(client, "!", "/t/x", "t/x", "t/y")
    assert listed(storage, "s3://lake") == (["!", "t/x", "t/y"], ["s3://lake//t/x"])


@external
@pytest.mark.cases(108)
def test_past_a_marker(storage: Storage, client: Any) -> None:
    """The listing goes on behind a marker, which comes after names that continue its own, and is told once."""
    good = [f"t/!{n:02}" for n in range(10 * PAGE - 2)] + ["t/p-1"]  # a chunk, with the marker
    put(client, *good, "t/p/", "t/q//x", "t/z")
    assert listed(storage) == ([*good, "t/z"], as_told(["t/p/", "t/q//x"]))


@external
@pytest.mark.cases(108)
def test_any_keys(storage: Storage, client: Any) -> None:
    """Whatever lies in a bucket: what can be named is listed once, the rest is told once; at its root too.

    Whatever is known of it: each range of keys between known ones is a listing then.
    """
    made = random.Random(108)
    keys = {"".join(made.choices("ab/./\t-é", k=made.randint(1, 6))) for _ in range(80)} | {"/t/x", "//"}
    keys |= {f"t/{key}" for key in sorted(keys)[::2]}
    put(client, *sorted(keys))
    odd = {key for key in keys if re.search(UNNAMEABLE, key)}
    storage = replace(cast("ObjectStorage", storage), lists_in_order=True)
    for location, own in (("s3://lake", keys), ("s3://lake/t", {key for key in keys if key.startswith("t/")})):
        for number in (0, 1, 7, len(keys)):
            known = [f"s3a://lake/{key}" for key in [*made.sample(sorted(keys), number), *["t/none", "x"][:number]]]
            names, told = listed(storage, location, known)
            assert (sorted(names), sorted(told)) == (sorted(own - odd), as_told([*own & odd]))


@external
@pytest.mark.cases(108)
def test_files_and_markers_of_one_name(storage: Storage, client: Any) -> None:
    """The file stays in the listing, whether it is empty or not, as do files that have others below them."""
    put(client, "t/a", "t/a/", "t/b-1", "t/b/", "t/d", "t/d/x")
    put(client, "t/b", "t/c", "t/e", "t/e/", content=b"")
    assert listed(storage) == (["t/a", "t/b", "t/b-1", "t/c", "t/d", "t/d/x", "t/e"], as_told(["t/a/", "t/b/", "t/e/"]))
    client.put_object(Bucket="lake", Key="t/f/", Body=b"x")
    put(client, "t/f/x")
    assert listed(storage)[1][-1] == "s3://lake/t/f/"


@external
@pytest.mark.cases(101, 108)
def test_a_marker_is_no_file_of_its_name(storage: Storage, client: Any) -> None:
    """Nothing of it can be asked for, among many files as alone."""
    files = [f"t/data{n:02}" for n in range(20)]
    put(client, *files, "t/data/")
    paths = [f"s3://lake/{key}" for key in files]
    assert storage.stat([*paths, "s3://lake/t/data"], 2)["s3://lake/t/data"] is None
    assert storage.stat(["s3://lake/t/data"], 2) == {"s3://lake/t/data": None}


@external
@pytest.mark.cases(108)
def test_vended_credentials(properties: Mapping[str, str], client: Any) -> None:
    """Odd keys are passed with them too."""
    put(client, "t/a", "t//x", "t/z")
    vended = {**properties, "s3.session-token": "token"}
    endpoint = {key: properties[key] for key in ("s3.endpoint", "s3.region")}
    storage = open_bucket("s3://lake", endpoint, lambda: VendedCredentials("s3://lake", vended))
    assert listed(storage) == (["t/a", "t/z"], ["s3://lake/t//x"])


@external
@pytest.mark.cases(108)
def test_odd_keys_are_not_deleted(storage: Storage, client: Any) -> None:
    """Each is a failure with a reason, in a batch with others, and no other key goes for it; `stat` leaves it out."""
    near = ["t/x", "x", "t/a", "t/data", "t/é/é", "t/a/b", "t"]
    put(client, *near, *ODD, "other")
    odd = [f"s3://lake/{key}" for key in (*ODD, "t/data/", "/t/x", "t/\udcff", "")]
    others = [f"s3://lake/{name}" for name in ("t/gone", "other")]
    assert storage.stat([*odd, others[0]], 2) == {others[0]: None}
    planned = [FileAction(path, None, "data") for path in (*odd, *others)]
    only_storage: Any = storage
    present, stays = Deletion(only_storage, Mock(), FixedClock(NOW)).existing(planned, 2)
    assert ([file.path for file in present], [*stays]) == ([others[1]], odd)
    report = storage.delete([*odd, *others], 2)
    assert report.deleted == tuple(others)
    assert [*report.failures] == odd
    assert all("store's own tools" in why for why in report.failures.values())
    names, told = listed(storage)
    assert ([*names, "t", "x"], sorted(told)) == ([*sorted(n for n in near if "t/" in n), "t", "x"], as_told(ODD))


LISTS = "<ListBucketResult>{}{}</ListBucketResult>"
ENTRY = "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:05.678Z</LastModified></Contents>"
MORE = "<IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>"


@pytest.fixture
def pages() -> Iterator[tuple[int, list[list[str]]]]:
    """A server of listings: its port, and the keys that it gives, page by page."""
    given: list[list[str]] = []

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "encoding-type" in self.path and given[-1] == ["denied"]:  # as boto3 asks, and obstore does not
                self.send_response(403)
                self.end_headers()
                return
            number = int("continuation-token=1" in self.path)
            entries = "".join(ENTRY.format(key) for key in given[number])
            body = LISTS.format(entries, MORE if number + 1 < len(given) else "").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:05 GMT")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port, given
        server.shutdown()
        thread.join()


Opened = Callable[[int], Storage]


def s3_at(port: int) -> Storage:
    """A bucket of S3."""
    keys = {"s3.access-key-id": "key", "s3.secret-access-key": "hush", "s3.region": "us-east-1"}
    return open_bucket("s3://lake", {"s3.endpoint": f"http://127.0.0.1:{port}", **keys})


def gcs_at(port: int) -> Storage:
    """A bucket of Google's."""
    given = {"gcs.service.host": f"http://127.0.0.1:{port}", "gcs.oauth2.token": "hush"}
    return open_bucket("gs://lake", given)


@pytest.mark.cases(108)
@pytest.mark.parametrize(
    ("opened", "keys", "why"),
    [
        (s3_at, [["t/b", "t//x", "t/a"]], "not list its keys in their order"),
        (s3_at, [[f"t/{9 - n}" for n in range(10)], ["t//x"]], '"t//x" contained empty path segment: move or delete'),
        (gcs_at, [["t/a"], ["t//x"]], '"t//x" contained empty path segment: move or delete'),
        (s3_at, [["t/a"], ["t/b"], []], "lists in a circle: it named t/b"),  # the second page leads to itself
    ],
)
def test_where_nothing_leads_past_an_odd_key(
    pages: tuple[int, list[list[str]]], opened: Opened, keys: list[list[str]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing in no order cannot go on behind a key, nor can one of another store: it fails, and is never shorter.

    So does one that never ends.
    """
    monkeypatch.setattr(object_listing, "PAGE", 1)
    port, given = pages
    given[:] = keys
    storage = opened(port)
    with pytest.raises(StorageUnavailable, match=why):
        list(storage.listing(f"{'s3' if opened is s3_at else 'gs'}://lake/t"))


@pytest.mark.cases(108)
@pytest.mark.parametrize("keys", [[["t/a", "t/b"], ["t/c", "t/d"]], [["t/a", "t/c"], ["t/b", "t/d"]]])
def test_ranges_of_a_store_that_has_no_order(pages: tuple[int, list[list[str]]], keys: list[list[str]]) -> None:
    """Or that begins with its first key whatever is asked for: all of its keys are listed, some of them twice."""
    port, given = pages
    given[:] = keys
    storage = replace(cast("ObjectStorage", s3_at(port)), lists_in_order=True)
    names, _ = listed(storage, known=["s3://lake/t/a", "s3://lake/t/b"])
    assert {*names} == {"t/a", "t/b", "t/c", "t/d"}


@pytest.mark.cases(101)
def test_listings_that_say_milliseconds(pages: tuple[int, list[list[str]]]) -> None:
    """Of one object no store says them, so nobody does: times of a file are equal wherever they come from."""
    port, given = pages
    given[:] = [[f"t/{n:02}" for n in range(20)]]
    storage = s3_at(port)
    rows = [row for batch in storage.listing("s3://lake/t") for row in batch.to_pylist()]
    paths = [row["path"] for row in rows]
    stats = [*storage.stat(paths, 2).values(), *storage.stat(paths[:1], 2).values()]
    assert {row["modified"] for row in rows} == {one and one.modified for one in stats}
    assert len(stats) == 21


@pytest.mark.cases(108)
def test_odd_keys_that_may_not_be_listed(pages: tuple[int, list[list[str]]]) -> None:
    """Who is denied the way past them is told so."""
    port, given = pages
    given[:] = [["t//x"], ["denied"]]
    with pytest.raises(AccessDenied, match="s3://lake/t may not be listed"):
        listed(s3_at(port))


@pytest.mark.cases(108)
def test_the_location_itself(pages: tuple[int, list[list[str]]]) -> None:
    """Its marker, whatever it holds, is told, though there is an object of its name and time beside it."""
    port, given = pages
    given[:] = [["t/"]]
    assert listed(s3_at(port)) == ([], ["s3://lake/t/"])


@pytest.mark.cases(108)
def test_inventories(tmp_path: Path) -> None:
    """Odd keys of an inventory are told, the others are its files."""
    odd = [*ODD, *MARKERS]
    then = "2026-11-01T12:30:00.678Z"
    keys = [*GOOD, *odd, "elsewhere//x"]
    pl.DataFrame({"key": keys, "size": [1] * len(keys), "last_modified": [then] * len(keys)}).write_parquet(
        tmp_path / "i.parquet"
    )
    told: list[str] = []
    batches = read_inventory(LocalStorage(), f"file://{tmp_path}/i.parquet", "s3://lake/t", told.append)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["path"] for row in rows] == [f"s3://lake/{key}" for key in GOOD]
    assert {row["modified"] for row in rows} == {datetime(2026, 11, 1, 12, 30, tzinfo=UTC)}  # as a listing has it
    assert sorted(told) == as_told(odd)


@pytest.mark.cases(108)
def test_local_names(tmp_path: Path) -> None:
    """Tabs and newlines are names as others; what is not UTF-8 is told, a folder with all that it holds once."""
    for name in (b"good", b"tab\tnew\nline", b"bad\xff\n", b"folder\xfe/x", b"folder\xfe/y"):
        path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.touch()
    told: list[str] = []
    batches = LocalStorage().listing(f"file://{tmp_path}", told.append)
    names = {row["path"].removeprefix(f"file://{tmp_path}/") for batch in batches for row in batch.to_pylist()}
    assert names == {"good", "tab\tnew\nline"}
    assert sorted(told) == [f"file://{tmp_path}/bad\\xff\\n", f"file://{tmp_path}/folder\\xfe/"]
