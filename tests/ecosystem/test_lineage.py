"""OpenLineage events: what a receiver gets, and that nothing it does reaches a job."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import jsonschema
import pytest

from icewright.app.demo.tables import metrics
from icewright.app.lineage import LineageSender, open_transport
from icewright.app.sections import OpenLineageSection
from icewright.core.errors import TableNotFound
from icewright.core.table import TableMetadata, TableRef
from icewright.testing import NOW
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

FACET = {"type": "object", "required": ["_producer", "_schemaURL"], "additionalProperties": True}
FACETS = {"type": "object", "additionalProperties": FACET}
DATASETS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["namespace", "name"],
        "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": FACETS},
    },
}
RUN_EVENT = {  # what the specification (2-0-2) asks of a RunEvent
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job", "eventType"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"type": "string", "pattern": "^https://openlineage.io/spec/2-.*RunEvent$"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": FACETS},
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": FACETS},
        },
        "inputs": DATASETS,
        "outputs": DATASETS,
    },
}


class Receiver(BaseHTTPRequestHandler):
    """Takes posts as a server of events or traces does, or fails as one does."""

    got: ClassVar[list[tuple[str, str | None, Any]]] = []
    status: ClassVar[int] = 201

    def do_POST(self) -> None:
        """Keep the body."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_json = self.headers["Content-Type"].startswith("application/json")
        self.got.append((self.path, self.headers.get("Authorization"), json.loads(body) if is_json else body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A receiver's address; what it got is in `Receiver.got`."""
    monkeypatch.setattr(Receiver, "got", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def checked(event: Any) -> Any:
    """An event that keeps to the specification."""
    jsonschema.validate(event, RUN_EVENT, format_checker=jsonschema.FormatChecker())
    UUID(event["run"]["runId"])
    return event


def gone(ref: TableRef) -> TableMetadata:
    """The table cannot be read."""
    raise TableNotFound(f"{ref} is not there")


def test_a_job_is_told_as_a_run(workspace: Workspace, receiver: str) -> None:
    """START and COMPLETE of one run, with the table by location, name, columns and snapshot; the key is a bearer's."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    workspace.write(f"openlineage: {{url: '{receiver}', api_key: hush-4711-hush}}\n")
    result = workspace("run", "lake.ops.metrics", "--op", "expire_snapshots", "--json")
    assert result.json["state"] == "succeeded"
    assert {(path, key) for path, key, _ in Receiver.got} == {("/api/v1/lineage", "Bearer hush-4711-hush")}
    start, complete = (checked(event) for _, _, event in Receiver.got)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["name"] == "maintain.lake.ops.metrics"
    (table,) = complete["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(workspace.home / "warehouse" / "ops" / "metrics"))
    assert table["facets"]["symlinks"]["identifiers"] == [{"namespace": "lake", "name": "ops.metrics", "type": "TABLE"}]
    assert {field["name"] for field in table["facets"]["schema"]["fields"]}
    assert "hush" not in result.err + result.out


@pytest.mark.parametrize("status", [401, 500])
def test_a_receiver_that_fails_harms_nothing(
    status: int, workspace: Workspace, receiver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job succeeds, and the log says once that events do not arrive."""
    monkeypatch.setattr(Receiver, "status", status)
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    workspace.write(f"openlineage: {{url: '{receiver}', api_key: hush-4711-hush}}\n")
    result = workspace("run", "lake.ops.metrics", "--op", "expire_snapshots", "--json")
    assert (result.code, result.json["state"]) == (0, "succeeded")
    assert result.err.count("lineage_not_sent") == 1
    assert "hush" not in result.err


def test_events_in_a_file(tmp_path: Path) -> None:
    """One event a line, appended; a table that is gone is named all the same."""
    section = OpenLineageSection.model_validate({"file": "events.jsonl"})
    lineage = LineageSender("maintenance", open_transport(section, tmp_path), gone, lambda *_: None, lambda: NOW)
    about = {"job_id": "j1", "table": "lake.sales.orders"}
    lineage.listen("job_started", about)
    lineage.listen("operation_started", about)
    lineage.listen("job_finished", {**about, "state": "partial", "summary": "compact: failed: no room"})
    lineage.listen("job_started", {**about, "job_id": "j2"})
    lineage.listen("job_finished", {**about, "job_id": "j2", "state": "cancelled", "summary": "cancelled: by hand"})
    lineage.close()
    events = [checked(json.loads(line)) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert [e["eventType"] for e in events] == ["START", "FAIL", "START", "ABORT"]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] == "compact: failed: no room"
    assert events[0]["inputs"][0]["name"] == "sales.orders"
    assert len({e["run"]["runId"] for e in events}) == 2


def test_a_receiver_that_hangs_takes_no_memory() -> None:
    """A full queue drops what comes, says so once, and whoever tells never waits."""
    free, told = threading.Event(), []
    sent: list[Any] = []

    def hang(event: Any) -> None:
        free.wait(10)
        sent.append(event)

    lineage = LineageSender(
        "n", hang, gone, lambda kind, details: told.append((kind, details["error"])), lambda: NOW, 2
    )
    for number in range(10):
        lineage.listen("job_started", {"job_id": str(number), "table": "lake.a.b"})
    assert [kind for kind, _ in told] == ["lineage_not_sent"]
    assert "wait already" in told[0][1]
    free.set()
    lineage.close()
    assert 2 <= len(sent) <= 3
