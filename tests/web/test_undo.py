"""Undo by the API, by its client and on the job's page, over an application with tables on disk."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi.testclient import TestClient

from icewright.app.cli import main
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.pages.urls import table_url
from icewright.app.web.running import serving
from icewright.client import Client
from icewright.core.errors import CommitStateUnknown, UsageError
from icewright.core.events.model import Message, ScanReported
from icewright.core.table import TableRef
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.undoable import removed_snapshots
from icewright.ports import LedgerState
from tests.cases.conftest import ground, workspace
from tests.cases.test_undo import expired, history, settled, states
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, Workspace
from tests.faults.interceptors import Call, tapped
from tests.web.conftest import HERE
from tests.web.test_events import problem
from tests.web.test_pages import BROWSER, token_of

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]
API = "/api/v1"
TABLE = f"lake.{NAME}"


@pytest.fixture
def serve(workspace: Workspace) -> Iterator[Callable[[], TestClient]]:
    """What lets somebody on this machine in."""
    with ExitStack() as stack:

        def served() -> TestClient:
            app = create_app(workspace.app, Settings(), ServiceStatus(list, lambda: b""))
            made = TestClient(app, "http://127.0.0.1:8765", client=(HERE, 50000), raise_server_exceptions=False)
            return stack.enter_context(made)

        yield served


@pytest.fixture
def client(workspace: Workspace, serve: Callable[[], TestClient]) -> TestClient:
    """Somebody on this machine, where a table has a long history."""
    history(workspace)
    return serve()


def test_a_job_says_what_expired_and_what_waits(workspace: Workspace, client: TestClient) -> None:
    """With ids, times, summaries and last reads; files say until when they wait; lists are cut into pages."""
    before = {s.snapshot_id: s for s in workspace.metadata().snapshots}
    job_id = expired(workspace)
    at = workspace.clock.now()
    read = min(before.keys() - workspace.metadata().by_id.keys())
    scan = ScanReported(tuple(TABLE.split(".")), at, planning_ms=1, duration_ms=1, files=1, bytes=1, snapshot_id=read)
    workspace.app.runtime.store.inbox.receive([Message("1", (scan,))], at)
    job = client.get(f"{API}/jobs/{job_id}").json()
    (removed,), (waiting,) = job["removed"], job["waiting"]
    assert [s["snapshot_id"] for s in removed["snapshots"] if s["read_at"]] == [read]
    page = client.get(f"/jobs/{job_id}", headers=BROWSER).text
    assert "1 of them read by queries lately" in page
    assert {s["snapshot_id"] for s in removed["snapshots"]} == before.keys() - workspace.metadata().by_id.keys()
    for said in removed["snapshots"]:
        snapshot = before[said["snapshot_id"]]
        assert (said["operation"], said["parent_id"]) == (snapshot.operation, snapshot.parent_id)
        assert said["at"].replace("Z", "+00:00") == snapshot.timestamp.isoformat()
        assert said["summary"]["total-records"] == snapshot.summary["total-records"]
    assert {r["name"] for r in removed["refs"]} == {"outlived", "old branch"}
    assert (removed["undone_at"], waiting["operations"], waiting["table"]) == (None, [EXPIRE], TABLE)
    files = client.get(f"{API}/jobs/{job_id}/files").json()["items"]
    assert {f["delete_after"] for f in files} == {waiting["delete_after"]}
    workspace.table("sales.other")
    later = expired(workspace, "sales.other")
    first = client.get(f"{API}/deletions", params={"limit": 1}).json()
    second = client.get(f"{API}/deletions", params={"limit": 1, "cursor": first["next"]}).json()
    assert [i["job_id"] for page in (first, second) for i in page["items"]] == [job_id, later]
    assert second["next"] is None
    assert [i["job_id"] for i in client.get(f"{API}/deletions", params={"table": TABLE}).json()["items"]] == [job_id]
    assert client.get(f"{API}/deletions", params={"catalog": "pond"}).json()["items"] == []


def test_undo_by_the_api(workspace: Workspace, client: TestClient) -> None:
    """A dry run says what the undo does; it is in the audit log with who asked; a second one finds it done."""
    before = workspace.read()
    job_id = expired(workspace)
    url = f"{API}/jobs/{job_id}/undo"
    said = client.post(url, json={"dry_run": True}).json()
    assert (said["dry_run"], said["undone_by"], len(said["snapshots"])) == (True, None, 3)
    assert workspace.app.runtime.store.audit.entries(None, None, 10) == []
    done = client.post(url, json={}).json()
    same = ("snapshots", "refs", "files", "bytes", "not_restored")
    assert {name: done[name] for name in same} == {name: said[name] for name in same}
    assert workspace.read() == before
    (entry,) = workspace.app.runtime.store.audit.entries(None, None, 10)
    assert (entry.action, entry.details["undone_by"], entry.details["what"]) == ("jobs.undo", done["undone_by"], "undo")
    assert client.get(f"{API}/jobs/{done['undone_by']}").json()["options"] == {"undo": job_id}
    assert client.get(f"{API}/jobs/{job_id}").json()["removed"][0]["undone_at"]
    again = client.post(url, json={}).json()
    assert (again["already"], again["undone_by"]) == (True, None)


def test_what_cannot_be_undone_is_said(workspace: Workspace, client: TestClient) -> None:
    """Unknown jobs, deleted files, and a catalog of which nobody knows whether it took the commit."""
    job_id = expired(workspace)
    url = f"{API}/jobs/{job_id}/undo"
    problem(client.post(f"{API}/jobs/nobody/undo", json={}), 404)

    def unknown(call: Call) -> Any:
        if str(call) == "catalog.commit":
            raise CommitStateUnknown("no answer")
        return call.go()

    tapped(workspace.app, unknown)
    problem(client.post(url, json={}), 503)
    settled(workspace, hours=48)
    settled(workspace)
    assert "deleted already" in problem(client.post(url, json={}), 409)["detail"]


def test_deletions_are_given_up(workspace: Workspace, client: TestClient) -> None:
    """By whom is written down; nothing waits any more."""
    job_id = expired(workspace)
    files = len(workspace.app.runtime.store.ledger.files(job_id))
    assert client.post(f"{API}/jobs/{job_id}/give-up").json() == {"job_id": job_id, "table": TABLE, "files": files}
    assert client.get(f"{API}/deletions").json()["items"] == []
    assert states(workspace, job_id) == {LedgerState.GIVEN_UP}
    (entry,) = workspace.app.runtime.store.audit.entries(None, None, 10)
    assert (entry.action, entry.details["files"]) == ("jobs.undo", files)


def test_the_page_asks_before_it_undoes(workspace: Workspace, client: TestClient) -> None:
    """It shows what waits and what expired; the button leads to what would come back, and from there to the undo."""
    job_id = expired(workspace)
    gone = [
        s.snapshot_id
        for removal in workspace.app.runtime.store.ledger.removals(job_id)
        for s in removed_snapshots(removal)
    ]
    path = f"/jobs/{job_id}"
    page = client.get(path, headers=BROWSER).text
    assert "Planned deletions" in page
    assert "Expired snapshots" in page
    assert all(str(snapshot_id) in page for snapshot_id in gone)
    assert page.count('<td class="num wide">+1 &minus;1</td><td class="num mid">+1 &minus;1</td>') == len(gone)
    form = {"csrf": token_of(client, path), "job": job_id}
    asks = client.post("/do/undo", data=form, headers=BROWSER)
    assert asks.status_code == 200
    assert "nothing is changed yet" in asks.text
    assert all(str(snapshot_id) in asks.text for snapshot_id in gone)
    assert "outlived" in asks.text
    assert states(workspace, job_id) == {LedgerState.PLANNED}
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asks.text.rpartition("<form")[2]))
    assert fields["how"] == "undo"
    done = client.post("/do/undo", data=fields, headers=BROWSER)
    assert f"Undo of job {job_id}: restored 3 snapshots and 2 refs" in done.text
    assert states(workspace, job_id) == {LedgerState.UNDONE}
    assert client.get(f"{API}/overview").json()["saved"]["snapshots"] == 0
    (run,) = client.get(f"{API}/runs", params={"operation": "expire_snapshots"}).json()["items"]
    assert run["undone"]
    assert run["metrics"]["snapshots_expired"] == 3
    assert client.get(f"{API}/jobs/{job_id}").json()["runs"][0]["undone"]
    assert "Planned deletions" not in done.text
    assert 'action="/do/undo"' not in done.text
    newest = workspace.app.runtime.store.jobs.list()[0]
    theirs = client.get(f"/jobs/{newest.job_id}", headers=BROWSER).text
    assert f'href="{path}"' in theirs
    assert "Operations" not in theirs
    again = client.post("/do/undo", data=form, headers=BROWSER)
    assert "is undone already" in again.text


def test_the_page_asks_before_it_deletes(workspace: Workspace, client: TestClient) -> None:
    """It shows the files and their size first; only the button of that page starts the run, of all that was chosen."""
    ref, runtime = TableRef.parse(TABLE), workspace.app.runtime
    workspace.detect()
    evaluate_and_record(runtime, ref, runtime.clock.now())
    csrf = token_of(client, table_url(ref))
    form = {"csrf": csrf, "table": TABLE, "operation": ["expire_rows"], "how": "run", "key": "k"}
    nothing = client.post("/do/run", data=form, headers=BROWSER).text
    assert ("Nothing to run" in nothing, "deletes from" in nothing, "/do/run" in nothing) == (True, False, False)
    rule = {"set": {**KNOBS_OF[EXPIRE], "deletion.delay_hours": 24}}
    assert client.put(f"{API}/policies/{TABLE}", json=rule).status_code in (200, 201)
    evaluate_and_record(runtime, ref, runtime.clock.now())
    form |= {"operation": ["compact", EXPIRE]}
    asks = client.post("/do/run", data=form, headers=BROWSER)
    assert asks.status_code == 200
    assert "Run now?" in asks.text
    assert re.search(r"bytes deleted</dt><dd>[1-9]", asks.text)
    assert "avro</td>" in asks.text
    assert "Compact starts too" in asks.text
    for how in ("", "anything"):
        client.post("/do/run", data=form | {"how": how}, headers=BROWSER)
    jobs = runtime.store.jobs
    assert jobs.list() == []
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asks.text.rpartition("<form")[2])
    operations = [text for name, text in fields if name == "operation"]
    done = client.post("/do/run", data=dict(fields) | {"operation": operations}, headers=BROWSER)
    assert "it waits for a worker" in done.text
    (job,) = jobs.list()
    assert job.operations == ("compact", EXPIRE)


def test_the_page_says_why_not(workspace: Workspace, client: TestClient) -> None:
    """What stands against an undo is said on the job's page."""
    job_id = expired(workspace)
    form = {"csrf": token_of(client, f"/jobs/{job_id}"), "job": job_id}
    settled(workspace, hours=48)
    assert "deleted already" in client.post("/do/undo", data=form, headers=BROWSER).text


def test_the_page_offers_no_undo_of_what_is_deleted(workspace: Workspace, client: TestClient) -> None:
    """An expiry that deleted its files at once has nothing that could return."""
    page = client.get(f"/jobs/{expired(workspace, hours=0)}", headers=BROWSER).text
    assert "Expired snapshots" in page
    assert 'action="/do/undo"' not in page


def test_the_commands_ask_a_service(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words and documents, whether the command works by itself or asks a service."""
    history(workspace)
    job_id = expired(workspace)
    app = create_app(workspace.app, Settings(), ServiceStatus(list, lambda: b""))
    with serving(app, HERE, 0) as port:
        address = f"http://{HERE}:{port}"

        def said(*words: str, server: bool, code: int = 0) -> Any:
            to = ["--server", address] if server else ["--config", str(workspace.home / "icewright.yaml")]
            monkeypatch.setattr(sys, "argv", ["icewright", *to, *words])
            with pytest.raises(SystemExit) as ended:
                main()
            out = capsys.readouterr()
            assert (ended.value.code or 0) == code, out
            return json.loads(out.out) if "--json" in words else out.out + out.err

        here, there = (said("deletions", "--json", server=server) for server in (False, True))
        assert _times(here) == _times(there)
        (waiting,) = there["deletions"]
        assert there["bytes"] == waiting["bytes"] > 0
        plain = [said(*words, server=True) for words in (("deletions",), ("show", job_id))]
        assert all(job_id in text and "expire_snapshots" in text for text in plain)
        assert "outlived pointed to snapshot" in plain[1]
        shown = [said("show", job_id, "--json", server=server) for server in (False, True)]
        assert _times(shown[0]["removed"]) == _times(shown[1]["removed"])
        assert _times(shown[0]["waiting"]) == _times(shown[1]["waiting"])
        dry = [said("undo", job_id, "--dry-run", "--json", server=server) for server in (False, True)]
        assert _times(dry[0]) == _times(dry[1])
        assert "would restore 3 snapshots" in said("undo", job_id, "--dry-run", server=True)
        assert "restored 3 snapshots" in said("undo", job_id, server=True)
        assert "is undone already" in said("undo", job_id, server=False)
        assert "undone at" in said("show", job_id, server=True)
        assert f"no file of job {job_id} waits" in said("give-up", job_id, "--yes", server=True)
        with Client(address) as client, pytest.raises(UsageError, match="no such job"):
            client.undo("nobody")


def _times(document: Any) -> Any:
    """The document with every time in one spelling."""
    return json.loads(json.dumps(document).replace("+00:00", "Z"))
