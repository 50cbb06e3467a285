"""The command about alerts: what is wrong, who was told, and whether channels take messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from icewright.app.bootstrap import application, read_config
from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace
from tests.servers.loopback import free_port

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

NAME = "lake.ops.metrics"
TOKEN = "hush-4711-token"


@pytest.fixture
def taken() -> list[dict[str, Any]]:
    """What the service took."""
    return []


@pytest.fixture
def service(taken: list[dict[str, Any]]) -> Iterator[str]:
    """A service that takes messages; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = HTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"json://localhost:{server.server_port}/{TOKEN}"
    server.shutdown()
    server.server_close()


@pytest.mark.external
def test_from_a_pass_to_the_channel(workspace: Workspace, service: str, taken: list[dict[str, Any]]) -> None:
    """A pass tells what is wrong; the command lists it with who was told, and with --all what is over."""
    workspace.make(partial(metrics, commits=3, rows_per_file=2))
    workspace.write(f"alerts: {{channels: ['{service}']}}\n")
    assert workspace("alerts", "--json").json == {"alerts": []}
    assert workspace("alerts").out == "Alerts: none\n"
    workspace("pause", NAME, "--reason", "looking")
    workspace("cycle", "--dry-run")
    assert taken == []
    workspace("cycle")
    assert [message["title"] for message in taken] == [f"[warning] table_paused: {NAME}"]
    (alert,) = workspace("alerts", "--json").json["alerts"]
    assert (alert["rule"], alert["severity"], alert["table"]) == ("table_paused", "warning", NAME)
    assert (alert["message"], alert["resolved_at"]) == ("the table is paused: looking", None)
    assert [(t["channel"], t["resolved"], t["failures"]) for t in alert["tellings"]] == [("json", False, 0)]
    shown = workspace("alerts").out
    assert all(word in shown for word in ("table_paused", "json", "looking"))
    workspace("resume", NAME)
    result = workspace("cycle")
    assert [message["title"] for message in taken[1:]] == [f"[resolved] table_paused: {NAME}"]
    assert workspace("alerts", "--json").json == {"alerts": []}
    assert len(workspace("alerts", "--all", "--json").json["alerts"]) == 1
    assert "(over)" in workspace("alerts", "--all").out
    assert TOKEN not in result.out + result.err + shown
    events = [json.loads(line) for line in result.err.splitlines()]
    assert [e["rule"] for e in events if e["event"] == "alert_resolved"] == ["table_paused"]


@pytest.mark.external
def test_an_alert_is_silenced(workspace: Workspace, service: str, taken: list[dict[str, Any]]) -> None:
    """Who takes care of it, with which note and until when, is listed and audited; its channels hear nothing."""
    workspace.make(partial(metrics, commits=3, rows_per_file=2))
    workspace("pause", NAME)
    workspace("cycle")
    (alert,) = workspace("alerts", "--json").json["alerts"]
    result = workspace("acknowledge", str(alert["id"]), "--note", "a deploy", "--silence", "8")
    assert "table_paused of lake.ops.metrics is acknowledged, and silent until" in result.out
    assert "a deploy" in workspace("alerts").out
    workspace.write(f"alerts: {{channels: ['{service}']}}\n")
    workspace("cycle")
    assert taken == []
    withdrawn = workspace("acknowledge", str(alert["id"]), "--withdraw", "--json").json
    assert (withdrawn["id"], withdrawn["acknowledgement"]) == (alert["id"], None)
    workspace("cycle")
    assert [message["title"] for message in taken] == [f"[warning] table_paused: {NAME}"]
    missing = workspace("acknowledge", "4711")
    assert (missing.code, "there is no open alert 4711" in missing.err) == (2, True)
    with application(read_config(workspace.path), kind="test") as app:
        entries = app.runtime.store.audit.entries(None, None, 10, action="alerts.acknowledge")
    assert [entry.details for entry in entries] == [
        {"withdrawn": True},
        {"note": "a deploy", "silent_until": entries[1].details["silent_until"]},
    ]


@pytest.mark.external
def test_testing_channels(workspace: Workspace, service: str, taken: list[dict[str, Any]]) -> None:
    """Each channel is told; one that takes nothing is named with what mends it, never with its address."""
    dead = f"json://localhost:{free_port()}/{TOKEN}"
    workspace.write(f"alerts: {{channels: ['{service}', '{dead}']}}\n")
    result = workspace("alerts", "--test")
    assert (result.code, len(taken)) == (1, 1)
    assert "took the message" in result.out
    assert "json 2" in result.out
    assert "cannot be reached" in " ".join(result.out.split())
    document = workspace("alerts", "--test", "--json")
    assert [(c["channel"], c["ok"]) for c in document.json["channels"]] == [("json", True), ("json 2", False)]
    for text in (result.out, result.err, document.out, document.err):
        assert TOKEN not in text
        assert dead not in text
    workspace.write(f"alerts: {{channels: ['{service}']}}\n")
    assert workspace("alerts", "--test").code == 0


def test_without_channels(workspace: Workspace) -> None:
    """There is nothing to test: the call is wrong, and the message says what to write."""
    result = workspace("alerts", "--test")
    assert (result.code, "name Apprise URLs under alerts.channels" in result.err) == (2, True)
