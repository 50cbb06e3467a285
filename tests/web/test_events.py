"""POST /api/v1/events: who may, what is taken, and what each refusal says."""

from __future__ import annotations

import gzip
import hmac
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icewright.core.alerts import AlertRule, Begin, default_terms
from icewright.core.errors import StorageUnavailable
from icewright.core.events.parse import MEDIA_TYPES
from icewright.flow.alert import judge
from tests.core.test_events import JSON_VALUES, almost
from tests.examples import examples
from tests.pushed import COMMIT_REPORT, GCS, GCS_HEADERS, SCAN_REPORT, TRINO, cloudevent, minio
from tests.web.conftest import ELSEWHERE, HERE, OTHER_TOKEN, SECRET, TOKEN, Served

URL = "/api/v1/events"
TABLE, PAGE = "/api/v1/tables/lake.sales.orders", "/tables/lake/sales/orders"
EVENT, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"


def push(client: TestClient, document: object = None, kind: str = "application/json", **headers: str) -> Any:
    """Post a document; header names are said with underscores."""
    body = document if isinstance(document, bytes) else json.dumps(cloudevent() if document is None else document)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(URL, content=body, headers={"content-type": kind, **named})


def problem(response: Any, status: int) -> Any:
    """What the problem says; every refusal is one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert (found["type"], found["status"]) == ("about:blank", status)
    assert found["title"]
    assert found["request_id"] == response.headers["x-request-id"]
    return found


@pytest.mark.parametrize(
    ("document", "kind", "headers"),
    [
        (cloudevent(), EVENT, {}),
        (cloudevent(), "Application/JSON; charset=utf-8", {}),
        ([cloudevent()], BATCH, {}),
        (COMMIT_REPORT, "application/json", {}),
        (minio("sales/orders/metadata/1.metadata.json"), "application/json", {}),
        ({"bucket": "lake", "name": "sales/orders/metadata/1.metadata.json"}, "application/json", GCS_HEADERS),
        ({"table": "iceberg.sales.orders"}, "application/json", GCS_HEADERS | {"ce-type": "icewright.table.changed"}),
    ],
)
def test_every_format_reaches_the_table(served: Served, document: Any, kind: str, headers: dict[str, str]) -> None:
    """It is looked at next."""
    if "bucket" in document:
        served.bench.table("orders", location="gs://lake/sales/orders")
        served.bench.store.tables.record_listing("lake", served.bench.catalog.pointers(), served.bench.clock.now())
        served.bench.store.tables.schedule_evaluation([served.ref], None)
    assert not served.looked_at()
    response = push(served.client(), document, kind, **headers)
    assert (response.status_code, response.json()) == (
        202,
        {"received": 1, "duplicates": 0, "tables": ["lake.sales.orders"], "unknown": [], "ignored": []},
    )
    assert served.looked_at()


def test_scans_become_heat(served: Served) -> None:
    """Of Iceberg's reports and Trino's queries; what is not ours is said."""
    client = served.client()
    assert push(client, SCAN_REPORT).json()["tables"] == ["lake.sales.orders"]
    assert push(client, TRINO).json() == {
        "received": 1,
        "duplicates": 0,
        "tables": ["lake.sales.orders"],
        "unknown": ["lake.sales.customers", "lake.sales.daily"],
        "ignored": ["there is no catalog tpch"],
    }
    assert not served.looked_at()
    assert served.bench.store.planning.candidates(["lake"]) == []


def test_an_event_sent_again_is_taken_and_changes_nothing(served: Served) -> None:
    """202 both times, so that the sender is content."""
    client = served.client()
    push(client)
    served.bench.store.tables.schedule_evaluation([served.ref], None)
    response = push(client, [cloudevent(), cloudevent(id="2", data={"table": "lake.sales.other"})], BATCH)
    assert response.status_code == 202
    found = response.json()
    assert (found["received"], found["duplicates"], found["unknown"]) == (1, 1, ["lake.sales.other"])
    assert not served.looked_at()


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/xml", "json"])
def test_other_media_types(served: Served, kind: str) -> None:
    """Are refused with those that are taken; what a page of another site may send unasked is among them."""
    response = push(served.client(), None, kind)
    assert "send application/json or" in problem(response, 415)["detail"]
    assert BATCH in response.headers["accept-post"]


def test_compressed_bodies(served: Served) -> None:
    """Are refused: a small one may be large inside."""
    body = gzip.compress(json.dumps(cloudevent()).encode())
    assert "compressed" in problem(push(served.client(), body, content_encoding="gzip"), 415)["detail"]


def test_binary_mode_takes_json_alone(served: Served) -> None:
    """In binary mode a body of another type is refused, whatever the attributes say."""
    problem(push(served.client(), GCS, EVENT, **GCS_HEADERS), 415)


@pytest.mark.parametrize(
    ("subject", "named"),
    [
        ("lake.sales.gr%C3%BCn%20%E2%98%83", "lake.sales.grün ☃"),
        ("lake.sales.a%2525", "lake.sales.a%25"),
        ('"lake.sales.a\\\\b%22\\c"', 'lake.sales.a\\b"c'),
        ("lake.sales.a%zz", "lake.sales.a%zz"),
        ("lake.sales.a%C0%A0", "lake.sales.a%C0%A0"),
    ],
)
def test_attributes_in_headers_are_decoded(served: Served, subject: str, named: str) -> None:
    """Once, as CloudEvents encodes them: quotes, then percent signs; what is not valid stays as it is."""
    headers = GCS_HEADERS | {"ce-type": "icewright.table.changed", "ce-subject": subject}
    response = push(served.client(), {}, **headers)
    assert (response.status_code, response.json()["unknown"]) == (202, [named])


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b"Infinity"])
def test_no_json(served: Served, body: bytes) -> None:
    """Is told from JSON that is no event."""
    assert "the body is" in problem(push(served.client(), body), 400)["detail"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "the body is no event that is known"),
        ([cloudevent(id=""), cloudevent(), 7], "[2]: a number given"),
        (cloudevent(data={"table": "tpch.tiny.nation"}), "there is no catalog tpch; known are lake"),
        ({**COMMIT_REPORT, "table-name": "spark.sales.orders"}, "add it to catalogs.*.aliases"),
    ],
)
def test_no_event(served: Served, document: Any, said: str) -> None:
    """It is said what would be right, and nothing of the request is done."""
    kind = BATCH if isinstance(document, list) else "application/json"
    assert any(said in fault for fault in problem(push(served.client(), document, kind), 422)["errors"])
    assert not served.looked_at()


CREDENTIALS: dict[str, dict[str, Any]] = {
    "none": {},
    "token": {"authorization": f"Bearer {TOKEN}"},
    "other token": {"authorization": f"bearer  {OTHER_TOKEN} "},
    "wrong token": {"authorization": "Bearer wrong"},
    "part of a token": {"authorization": f"Bearer {TOKEN[:-1]}"},
    "empty token": {"authorization": "Bearer "},
    "no scheme": {"authorization": TOKEN},
    "basic": {"authorization": f"Basic {TOKEN}"},
    "not ASCII": {"authorization": b"Bearer \xff\xfe"},
    "signature": {"x-icewright-signature": "sha256={good}"},
    "upper case": {"x-icewright-signature": "sha256={GOOD}"},
    "wrong signature": {"x-icewright-signature": "sha256=" + "0" * 64},
    "bare signature": {"x-icewright-signature": "{good}"},
    "empty signature": {"x-icewright-signature": "sha256="},
    "both": {"authorization": f"Bearer {TOKEN}", "x-icewright-signature": "sha256=0"},
    "wrong token, right signature": {"authorization": "Bearer wrong", "x-icewright-signature": "sha256={good}"},
}


@pytest.mark.parametrize(
    ("configured", "let_in"),
    [
        ({"tokens": (OTHER_TOKEN, TOKEN)}, {"token", "other token", "both"}),
        ({"secrets": ("another-secret-of-sixteen", SECRET)}, {"signature", "upper case"}),
        ({"tokens": (TOKEN,), "secrets": (SECRET,)}, {"token", "both", "signature", "upper case"}),
    ],
)
def test_who_is_let_in(served: Served, configured: dict[str, Any], let_in: set[str]) -> None:
    """Whoever brings a token or signs with a secret, from anywhere; a wrong token is not made good by anything."""
    client = served.client(served.app(**configured), host=ELSEWHERE, at="http://icewright.example")
    body = json.dumps(cloudevent()).encode()
    good = hmac.new(SECRET.encode(), body, sha256).hexdigest()
    passed = set()
    for name, headers in CREDENTIALS.items():
        filled = {
            key: value.replace("{good}", good).replace("{GOOD}", good.upper()) if isinstance(value, str) else value
            for key, value in headers.items()
        }
        response = client.post(URL, content=body, headers={"content-type": EVENT, **filled})
        if response.status_code == 202:
            passed.add(name)
        else:
            problem(response, 401)
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert "hush" not in response.text
    assert passed == let_in


def test_a_signature_covers_the_body_alone(served: Served) -> None:
    """So an event whose attributes stand in headers needs a token; a body that was changed is not signed."""
    client = served.client(served.app(secrets=[SECRET]))
    body = json.dumps(GCS).encode()
    signature = f"sha256={hmac.new(SECRET.encode(), body, sha256).hexdigest()}"
    headers = {"x_icewright_signature": signature}
    assert "structured mode" in problem(push(client, body, **headers, **GCS_HEADERS), 403)["detail"]
    assert "HMAC-SHA256" in problem(push(client, body + b" ", **headers), 401)["detail"]


@pytest.mark.parametrize(
    ("host", "at", "status"),
    [
        (HERE, "http://127.0.0.1:8765", 202),
        (HERE, "http://localhost", 202),
        ("::1", "http://[::1]:8765", 202),
        ("::ffff:127.0.0.1", "http://127.0.0.1", 202),
        (ELSEWHERE, "http://127.0.0.1:8765", 403),
        ("2001:db8::1", "http://[::1]:8765", 403),
        (HERE, "http://rebound.example", 403),
        (HERE, "http://127.0.0.1.example:8765", 403),
    ],
)
def test_without_tokens_this_machine_alone(served: Served, host: str, at: str, status: int) -> None:
    """By its own name: a page of another site, whose name was made to lead here, cannot push."""
    response = push(served.client(host=host, at=at))
    assert response.status_code == status
    if status == 403:
        assert "set events.tokens or events.secrets" in problem(response, 403)["detail"]


@pytest.mark.parametrize("name", ["[::1", "127.0.0.1:x", "", "a b", "[127.0.0.1]:80]"])
def test_odd_names_of_this_machine(served: Served, name: str) -> None:
    """Are refused, and break nothing."""
    problem(push(served.client(), host=name), 403)


@pytest.mark.parametrize(("size", "status"), [(1024, 202), (1025, 413)])
def test_how_large_a_body_may_be(served: Served, size: int, status: int) -> None:
    """To the byte, whether it says its length or comes in chunks."""
    client = served.client(served.app(max_body=1024))
    body = json.dumps(cloudevent()).encode().ljust(size)
    whole = push(client, body)
    in_chunks = client.post(URL, content=iter([body[:500], body[500:]]), headers={"content-type": EVENT})
    for response in (whole, in_chunks):
        assert response.status_code == status
        if status == 413:
            assert "server.max_body_mb" in problem(response, 413)["detail"]
            assert response.headers["connection"] == "close"


def test_a_body_without_end_is_not_read_to_its_end(served: Served) -> None:
    """A body without end is refused at the limit of bytes, and not held in memory."""
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while taken < 1000:
            taken += 1
            yield b" " * 1024

    response = served.client(served.app(tokens=[TOKEN], max_body=10 * 1024)).post(
        URL, content=endless(), headers={"content-type": EVENT, "authorization": f"Bearer {TOKEN}"}
    )
    problem(response, 413)


def test_a_store_that_does_not_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no fault of the sender, who may send again; where the store is, it does not learn."""

    def fail(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("the state store postgresql+psycopg://me:***@db.internal/icewright failed")

    monkeypatch.setattr(served.bench.store.inbox, "receive", fail)
    response = push(served.client())
    assert "try again" in problem(response, 503)["detail"]
    assert response.headers["retry-after"] == "5"
    assert "internal" not in response.text


@settings(examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_sent_is_answered(served: Served, data: st.DataObject) -> None:
    """Taken, or refused with the reason: nothing that is sent breaks anything inside."""
    document = data.draw(almost() | JSON_VALUES | st.lists(almost(), max_size=3))
    kind = data.draw(st.sampled_from(MEDIA_TYPES))
    headers = data.draw(st.sampled_from([{}, GCS_HEADERS]))
    served.bench.clock.advance(seconds=10)
    response = push(served.client(served.app(requests_per_second=10**6)), document, kind, **headers)
    assert response.status_code in {202, 400, 415, 422}, response.text


def test_a_reader_that_nobody_pinned_is_told_of(served: Served) -> None:
    """A report of an old snapshot's read warns in verdict, page and alert before the snapshot goes; a pin ends it."""
    client = served.client()
    snapshots = served.bench.catalog.load(served.ref).snapshots
    old = snapshots[0].snapshot_id

    def warnings() -> list[str]:
        served.evaluate()
        changes = judge(served.runtime, default_terms(), served.bench.clock.now())
        begun = [change.condition for change in changes if isinstance(change, Begin)]
        return [condition.message for condition in begun if condition.rule is AlertRule.READER_UNPINNED]

    for id_ in (old, snapshots[-1].snapshot_id):
        assert push(client, SCAN_REPORT | {"snapshot-id": id_}).status_code == 202
    (warning,) = warnings()
    assert warning.startswith(f"snapshot {old} goes: a query read it on ")
    verdicts = client.get(TABLE).json()["verdicts"]
    assert warning in next(v["reason"] for v in verdicts if v["operation"] == "expire_snapshots")
    shown = client.get(f"{TABLE}/snapshots").json()
    assert [read["snapshot_id"] for read in shown["unpinned_reads"]] == [str(old)]
    assert "unpinned reader" in client.get(f"{PAGE}?show=snapshots").text

    pinned = client.put(f"{TABLE}/pins/audit", json={"snapshot_id": str(old)})
    assert pinned.status_code == 200, pinned.text
    assert warnings() == []
    assert client.get(f"{TABLE}/snapshots").json()["unpinned_reads"] == []
