"""What pushed bodies come to: each format as it is on the wire, and what is no event."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.errors import BadEvent
from icewright.core.events.model import (
    CommitReported,
    Event,
    Message,
    MetadataChanged,
    ScanReported,
    TableTouched,
    decoded,
)
from icewright.core.events.parse import BATCH, CLOUDEVENT, JSON, MEDIA_TYPES, messages
from tests.pushed import COMMIT_REPORT, GCS, GCS_HEADERS, OLD_TRINO, SCAN_REPORT, TRINO, TRINO_SPLIT, cloudevent, minio

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ORDERS = ("lake", "sales", "orders")
ICEBERG_ORDERS = ("iceberg", "sales", "orders")
LOCATION = "s3://lake/warehouse/sales/orders/metadata/00003-a.metadata.json"
CHANGED, METADATA = "icewright.table.changed", "icewright.metadata.changed"
ATTRIBUTES = {name.removeprefix("ce-"): value for name, value in GCS_HEADERS.items()}


def read(document: object, kind: str = JSON, attributes: dict[str, str] | None = None) -> tuple[Message, ...]:
    """The messages of a body, which has gone over the wire."""
    return messages(decoded(json.dumps(document).encode()), kind, attributes or {}, NOW)


def events(document: object, kind: str = JSON, attributes: dict[str, str] | None = None) -> list[Event]:
    """Everything that a body says."""
    return [event for message in read(document, kind, attributes) for event in message.events]


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy in which another value stands at a path such as `metrics.dvs.value`."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *folders, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    inner: Any = copy
    for part in folders:
        inner = inner[part]
    inner[last] = value
    return copy


UNDERSTOOD: dict[str, tuple[object, str, list[Event]]] = {
    "a scan by Iceberg": (
        SCAN_REPORT,
        JSON,
        [ScanReported(ORDERS, NOW, 64.0, 0.0, 12, 1_279_000, 6656377125404557408, '{"term":"region","type":"eq"}')],
    ),
    "a scan without metrics": (
        {"report-type": "scan-report", "table-name": "a.b.c.d"},
        JSON,
        [ScanReported(("a", "b", "c", "d"), NOW, 0, 0, 0, 0)],
    ),
    "a commit by Iceberg": (COMMIT_REPORT, JSON, [CommitReported(ORDERS, 6656377125404557408, "append")]),
    "a query of Trino": (
        TRINO,
        JSON,
        [
            ScanReported(ICEBERG_ORDERS, datetime(2026, 11, 21, 11, 59, 0, 123456, UTC), 321, 112444, 17, 3_000_000),
            ScanReported(
                ("iceberg", "sales", "customers"),
                datetime(2026, 11, 21, 11, 59, 0, 123456, UTC),
                1733,
                112444,
                0,
                1_000_000,
            ),
            ScanReported(
                ("tpch", "tiny", "nation"), datetime(2026, 11, 21, 11, 59, 0, 123456, UTC), 1733, 112444, 0, 0
            ),
            TableTouched((("iceberg", "sales", "daily"),)),
        ],
    ),
    "a query of an older Trino": (
        OLD_TRINO,
        JSON,
        [ScanReported(ICEBERG_ORDERS, datetime(2026, 11, 21, 11, 58, 54, 444000, UTC), 1733, 112444, 0, 0)],
    ),
    "a query of Trino that failed": (changed(TRINO, "metadata.queryState", "FAILED"), JSON, []),
    "a query of Trino that began": ({"metadata": TRINO["metadata"], "context": TRINO["context"]}, JSON, []),
    "a split of Trino": (TRINO_SPLIT, JSON, []),
    "a namespace within another": (
        changed(OLD_TRINO, "ioMetadata.inputs.0.schema", "sales.eu"),
        JSON,
        [
            ScanReported(
                ("iceberg", "sales", "eu", "orders"),
                datetime(2026, 11, 21, 11, 58, 54, 444000, UTC),
                1733,
                112444,
                0,
                0,
            )
        ],
    ),
    "an object of MinIO": (minio(), JSON, [MetadataChanged(LOCATION)]),
    "an object that is no metadata": (minio("warehouse/sales/orders/data/a.parquet"), JSON, []),
    "an object that was removed": (minio(eventName="s3:ObjectRemoved:Delete"), JSON, []),
    "a table": (cloudevent(), CLOUDEVENT, [TableTouched((ORDERS,))]),
    "a table as plain JSON": (cloudevent(), JSON, [TableTouched((ORDERS,))]),
    "a table as subject": (
        {k: v for k, v in cloudevent(subject="lake.sales.orders").items() if k != "data"},
        CLOUDEVENT,
        [TableTouched((ORDERS,))],
    ),
    "tables": (
        cloudevent(data={"tables": ["lake.sales.orders", "lake.`a.b`.c"]}),
        CLOUDEVENT,
        [TableTouched((ORDERS, ("lake", "a.b", "c")))],
    ),
    "data in base64": (
        {k: v for k, v in cloudevent().items() if k != "data"}
        | {"data_base64": base64.b64encode(b'{"table": "lake.sales.orders"}').decode()},
        CLOUDEVENT,
        [TableTouched((ORDERS,))],
    ),
    "a metadata file": (cloudevent(METADATA, {"metadata_location": LOCATION}), CLOUDEVENT, [MetadataChanged(LOCATION)]),
    "a batch": ([cloudevent(), cloudevent(id="2")], BATCH, [TableTouched((ORDERS,))] * 2),
    "an empty batch": ([], BATCH, []),
    "a report in a CloudEvent": (
        cloudevent("org.apache.iceberg.commit", COMMIT_REPORT),
        CLOUDEVENT,
        [CommitReported(ORDERS, 6656377125404557408, "append")],
    ),
    "a notification in a CloudEvent": (cloudevent("com.minio", minio()), CLOUDEVENT, [MetadataChanged(LOCATION)]),
    "a record in a CloudEvent": (
        cloudevent("com.amazonaws.s3.ObjectCreated:Put", minio()["Records"][0]),
        CLOUDEVENT,
        [MetadataChanged(LOCATION)],
    ),
    "a detail of EventBridge": (
        cloudevent("aws.s3", {"bucket": {"name": "lake"}, "object": {"key": "a%20b+c/v1.metadata.json"}}),
        CLOUDEVENT,
        [MetadataChanged("s3://lake/a%20b+c/v1.metadata.json")],
    ),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_is_understood(case: str) -> None:
    """Each body says what it says."""
    document, kind, wanted = UNDERSTOOD[case]
    assert events(document, kind) == wanted


def test_binary_mode() -> None:
    """Attributes in headers, data as the body; an event whose subject is the table needs no data."""
    assert events(GCS, JSON, ATTRIBUTES) == [MetadataChanged(LOCATION.replace("s3:", "gs:"))]
    attributes = {"specversion": "1.0", "id": "1", "source": "me", "type": CHANGED, "subject": "lake.sales.orders"}
    (message,) = messages(None, JSON, attributes, NOW)
    assert message.events == (TableTouched((ORDERS,)),)


def test_what_a_key_of_s3_stands_for() -> None:
    """Notifications encode keys as forms are encoded."""
    (event,) = events(minio("a+b%2F%C3%A4%25/v1.gz.metadata.json"))
    assert event == MetadataChanged("s3://lake/a b/ä%/v1.gz.metadata.json")


@pytest.mark.parametrize("schema", ["a..b", ".", " ", "a." * 40 + "b"])
def test_what_no_table_is_called_spoils_no_query(schema: str) -> None:
    """Other connectors have names that Iceberg has not: such inputs and outputs are passed by, the others count."""
    odd = changed(TRINO, "ioMetadata.inputs.3.schema", schema)
    scans = [event for event in events(TRINO) if isinstance(event, ScanReported) and event.table[0] == "iceberg"]
    assert len(scans) == 2
    assert events(changed(odd, "ioMetadata.output.schema", schema)) == scans


def test_a_table_that_one_query_reads_twice() -> None:
    """Counts as one query that read both."""
    twice = changed(TRINO, "ioMetadata.inputs", [TRINO["ioMetadata"]["inputs"][0]] * 2)
    assert [e for e in events(twice) if isinstance(e, ScanReported)] == [
        ScanReported(ICEBERG_ORDERS, datetime(2026, 11, 21, 11, 59, 0, 123456, UTC), 642, 112444, 34, 6_000_000)
    ]


@pytest.mark.parametrize(
    ("said", "milliseconds"),
    [(1.733, 1733), (0, 0), (None, 0), ("PT0S", 0), ("PT1H2M3.5S", 3_723_500), ("2.50m", 150_000), ("9.00us", 0.009)],
)
def test_durations_of_trino(said: object, milliseconds: float) -> None:
    """Seconds, ISO 8601, and a number with its unit."""
    (scan,) = events(changed(OLD_TRINO, "statistics.wallTime", said))
    assert isinstance(scan, ScanReported)
    assert scan.duration_ms == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("2026-11-21T13:00:00+02:00", NOW - timedelta(hours=1)),
        ("2026-11-21T11:00:00", NOW - timedelta(hours=1)),
        ("2026-11-22T00:00:00Z", NOW),
        ("2001-01-01T00:00:00Z", NOW - timedelta(days=30)),
        (None, NOW),
    ],
)
def test_times(said: object, at: datetime) -> None:
    """In any zone, UTC where none is said; a clock that is ahead is taken for ours."""
    (scan,) = events(changed(OLD_TRINO, "endTime", said))
    assert isinstance(scan, ScanReported)
    assert scan.at == at


def test_ids() -> None:
    """One event has one id, however often and in whichever batch it comes; another has another."""
    ids = [
        read(document, kind)[0].id
        for document, kind in (
            (cloudevent(), CLOUDEVENT),
            (cloudevent(id="2"), CLOUDEVENT),
            (cloudevent(source="/other"), CLOUDEVENT),
            (SCAN_REPORT, JSON),
            (changed(SCAN_REPORT, "metrics.total-planning-duration.total-duration", 64_000_001), JSON),
            (TRINO, JSON),
            (changed(TRINO, "metadata.queryId", "2"), JSON),
            (changed(TRINO, "metadata.queryState", "QUEUED"), JSON),
            (minio(), JSON),
            (minio(eventTime="later"), JSON),
        )
    ]
    assert len(set(ids)) == len(ids)
    assert read([cloudevent(id="2"), cloudevent()], BATCH)[1].id == read(cloudevent(data={"table": "a.b.c"}))[0].id
    shuffled = dict(reversed(SCAN_REPORT.items()))
    assert read(shuffled)[0].id == read(SCAN_REPORT)[0].id


NOT_UNDERSTOOD: dict[str, tuple[object, str, str]] = {
    "a number": (7, JSON, "the body: a number given; write a mapping"),
    "a list": ([cloudevent()], JSON, f"send a batch of CloudEvents as {BATCH}"),
    "nothing known": ({"table": "lake.sales.orders"}, JSON, "send a CloudEvent (specversion)"),
    "a batch that is none": (cloudevent(), BATCH, "the batch: a mapping given; write a list"),
    "a number in a batch": ([7], BATCH, "[0]: a number given; write a CloudEvent"),
    "an old CloudEvent": (cloudevent(specversion="0.3"), CLOUDEVENT, "specversion: not 1.0"),
    "no id": (cloudevent(id=""), CLOUDEVENT, "id: nothing given; write text"),
    "no source": (cloudevent(source=None), CLOUDEVENT, "source: nothing given"),
    "a type misspelt": (cloudevent("icewright.table.change"), CLOUDEVENT, "type: no event that is known; did you mean"),
    "a type of others": (cloudevent("com.example.order.placed"), CLOUDEVENT, "may have any type"),
    "data that is text": (cloudevent(data="lake.sales.orders"), CLOUDEVENT, "data: text given; write a mapping"),
    "bad base64": (cloudevent(data_base64="%%%"), CLOUDEVENT, "data_base64: no base64"),
    "base64 of no JSON": (cloudevent(data_base64="aGk="), CLOUDEVENT, "not JSON"),
    "no table": (cloudevent(data={"other": 1}), CLOUDEVENT, "data.table: nothing given; write text"),
    "no tables": (cloudevent(data={"tables": []}), CLOUDEVENT, "data.tables: an empty list"),
    "a short name": (cloudevent(data={"table": "sales.orders"}), CLOUDEVENT, "write catalog.namespace.table"),
    "an unclosed name": (cloudevent(data={"table": "lake.`a.b"}), CLOUDEVENT, "write catalog.namespace.table"),
    "a deep name": (cloudevent(data={"table": "a." * 40 + "b"}), CLOUDEVENT, "write catalog.namespace.table"),
    "a long name": (cloudevent(data={"table": "a" * 5000}), CLOUDEVENT, "5000 characters given; write at most 4096"),
    "a NUL": (cloudevent(data={"table": "lake.sales.a\0"}), CLOUDEVENT, "a character given that no name can hold"),
    "half a surrogate": (cloudevent(data={"table": "lake.sales.\ud800"}), CLOUDEVENT, "no name can hold"),
    "too many tables": (cloudevent(data={"tables": ["a.b.c"] * 1001}), CLOUDEVENT, "1001 entries given"),
    "too many in all": (
        [cloudevent(id=str(n), data={"tables": ["a.b.c"] * 600}) for n in range(2)],
        BATCH,
        "names 1200 tables; send at most 1000",
    ),
    "an empty location": (cloudevent(METADATA, {"metadata_location": " "}), CLOUDEVENT, "metadata_location: nothing"),
    "another report": (changed(SCAN_REPORT, "report-type", "x"), JSON, "report-type: no report that is known"),
    "a report of no table": (changed(SCAN_REPORT, "table-name", None), JSON, "table-name: nothing given"),
    "a report without catalog": (changed(SCAN_REPORT, "table-name", "sales.orders"), JSON, "catalog.namespace.table"),
    "a name with gaps": (changed(SCAN_REPORT, "table-name", "lake..orders"), JSON, "catalog.namespace.table"),
    "metrics as a list": (changed(SCAN_REPORT, "metrics", []), JSON, "metrics: a list given; write a mapping"),
    "a counter as a number": (
        changed(SCAN_REPORT, "metrics.result-data-files", 12),
        JSON,
        "result-data-files: a number",
    ),
    "a negative counter": (
        changed(SCAN_REPORT, "metrics.result-data-files.value", -1),
        JSON,
        "metrics.result-data-files.value: the number is out of range",
    ),
    "a huge counter": (changed(SCAN_REPORT, "metrics.result-data-files.value", 10**400), JSON, "out of range"),
    "a flag as a counter": (changed(SCAN_REPORT, "metrics.result-data-files.value", True), JSON, "a truth value given"),
    "another unit of time": (
        changed(SCAN_REPORT, "metrics.total-planning-duration.time-unit", "fortnights"),
        JSON,
        "write one of nanoseconds",
    ),
    "a snapshot id as text": (changed(COMMIT_REPORT, "snapshot-id", "4"), JSON, "snapshot-id: text given"),
    "a snapshot id too large": (changed(COMMIT_REPORT, "snapshot-id", 2**63), JSON, "a whole number of 64 bits"),
    "a query of no id": (changed(TRINO, "metadata.queryId", 4), JSON, "metadata.queryId: a number given; write text"),
    "no duration": (changed(TRINO, "statistics.wallTime", "soon"), JSON, "write seconds as a number, PT1.73S or 1.73s"),
    "a negative duration": (changed(OLD_TRINO, "statistics.wallTime", -1), JSON, "out of range"),
    "no time": (changed(TRINO, "endTime", "soon"), JSON, "endTime: no time; write a time such as"),
    "a time beyond the calendar": (changed(TRINO, "endTime", 1e18), JSON, "endTime: no time"),
    "a time as a list": (changed(TRINO, "endTime", []), JSON, "endTime: a list given"),
    "inputs as a mapping": (changed(TRINO, "ioMetadata.inputs", {"a": 1}), JSON, "ioMetadata.inputs: a mapping"),
    "an input as text": (changed(TRINO, "ioMetadata.inputs", ["a"]), JSON, "ioMetadata.inputs[0]: text given"),
    "an input's table": (changed(TRINO, "ioMetadata.inputs.1.table", 7), JSON, "inputs[1].table: a number given"),
    "files as text": (
        changed(TRINO, "ioMetadata.inputs.0.connectorMetrics.dataFiles.total", "17"),
        JSON,
        "inputs[0].connectorMetrics.dataFiles.total: text given; write a number",
    ),
    "records as text": ({"Records": "x"}, JSON, "Records: text given; write a list"),
    "a record of nothing": ({"Records": [{"eventName": "ObjectCreated:Put"}]}, JSON, "Records[0].s3: nothing given"),
    "a bucket of no name": (changed(minio(), "Records.0.s3.bucket", {}), JSON, "Records[0].s3.bucket.name: nothing"),
}


@pytest.mark.parametrize("case", NOT_UNDERSTOOD)
def test_is_not_understood(case: str) -> None:
    """It is said where the fault is and what would be right."""
    document, kind, said = NOT_UNDERSTOOD[case]
    with pytest.raises(BadEvent) as caught:
        read(document, kind)
    assert said in str(caught.value)


def test_every_fault_of_a_batch_is_said() -> None:
    """With the place of the event in it."""
    with pytest.raises(BadEvent) as caught:
        read([cloudevent(id=""), cloudevent(), cloudevent(type="x", id="3")], BATCH)
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["[0].id", "[2].type"]


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"{'a': 1}", b"NaN", b"[" * 100_000, b"1" * 5000, b"\x00"])
def test_what_is_no_json(body: bytes) -> None:
    """Is refused as such, whatever the parser makes of it."""
    with pytest.raises(BadEvent, match="the body is"):
        decoded(body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
BODIES = [
    SCAN_REPORT,
    COMMIT_REPORT,
    TRINO,
    OLD_TRINO,
    minio(),
    GCS,
    cloudevent(),
    cloudevent(METADATA, {}),
    TRINO_SPLIT,
]


def paths(document: object, before: str = "") -> list[str]:
    """Where something stands in a document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    found = [(f"{before}{key}", value) for key, value in inner]
    return [path for at, value in found for path in (at, *paths(value, f"{at}."))]


@st.composite
def almost(draw: st.DrawFn) -> object:
    """A real body in which something else stands somewhere."""
    document: Any = draw(st.sampled_from(BODIES))
    places = paths(document)
    for place in draw(st.lists(st.sampled_from(places), max_size=2)):
        try:
            document = changed(document, place, draw(JSON_VALUES))
        except (KeyError, IndexError, TypeError):
            continue  # the first change took away where the second was to be
    return document


@given(JSON_VALUES | almost() | st.lists(almost(), max_size=3), st.sampled_from(MEDIA_TYPES), st.booleans())
def test_any_json_is_events_or_a_fault(document: object, kind: str, binary: bool) -> None:
    """Nothing else is ever raised, and what is understood can be stored."""
    attributes = ATTRIBUTES if binary else {}
    try:
        found = messages(document, kind, attributes, NOW)
    except BadEvent:
        return
    for event in (event for message in found for event in message.events):
        str(event).encode()
        match event:
            case ScanReported():
                assert NOW - timedelta(days=30) <= event.at <= NOW
                assert all(0 <= n < 2**62 for n in (event.planning_ms, event.duration_ms, event.files, event.bytes))
                assert event.snapshot_id is None or -(2**63) <= event.snapshot_id < 2**63
            case TableTouched(names):
                assert all(3 <= len(name) <= 32 and all(name) for name in names)
