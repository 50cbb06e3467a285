"""Restores and repairs by the API and on the table's page: planned first, confirmed, and carried out by a worker."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from icewright.app.cli import main
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.pages.urls import table_url
from icewright.app.web.running import serving
from icewright.app.worker import Worker
from icewright.client import Client
from icewright.core.policy import Operation
from icewright.flow.limits import CurrentLimits
from icewright.ports import FleetPause, RemoveSnapshots
from tests.cases.conftest import ground, workspace
from tests.cases.test_repair import grown
from tests.cases.test_restore import commit, iceberg
from tests.cases.test_undo import history
from tests.cases.workspace import NAME, Workspace
from tests.web.conftest import HERE
from tests.web.test_events import problem
from tests.web.test_pages import BROWSER, token_of
from tests.web.test_undo import API, TABLE, client, serve

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["client", "ground", "serve", "workspace"]
URL = f"{API}/tables/{TABLE}"
PAGE = table_url(TABLE)


def worked(workspace: Workspace) -> None:
    """Let a worker of the service run what is queued."""
    worker = Worker(workspace.app.runtime, 1, lambda: None)
    assert worker.start_queued() == 1
    assert worker.wait(timedelta(seconds=60))


def known(workspace: Workspace) -> None:
    """Let the service know the table."""
    workspace.job(Operation.EXPIRE_SNAPSHOTS, expire_snapshots__retention_hours=10_000)


def form_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form that leads to an action."""
    (form,) = re.findall(rf'<form[^>]*action="{action}".*?</form>', page, re.DOTALL)
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_a_restore_is_planned_queued_and_carried_out(workspace: Workspace, client: TestClient) -> None:
    """The dry run says what goes; the job does that and names it; who asked is in the audit log."""
    known(workspace)
    before, rows = workspace.metadata(), workspace.read()
    first, head = before.snapshots[0].snapshot_id, before.current_snapshot_id
    response = client.post(f"{URL}/restore", json={"to": str(first), "dry_run": True})
    assert response.status_code == 200
    plan = response.json()
    assert (plan["from_snapshot_id"], plan["to_snapshot_id"], plan["job_id"]) == (str(head), str(first), None)
    assert workspace.app.runtime.store.audit.entries(None, None, 10) == []
    body = {"to": str(first), "expected_snapshot_id": plan["from_snapshot_id"]}
    queued = client.post(f"{URL}/restore", json=body)
    assert queued.status_code == 202
    assert queued.json()["leaving"] == plan["leaving"]
    assert workspace.metadata() == before
    assert "has a job already" in problem(client.post(f"{URL}/restore", json=body), 409)["detail"]
    worked(workspace)
    job = client.get(f"{API}/jobs/{queued.json()['job_id']}").json()
    assert (job["state"], job["work"], job["options"]["restore"]) == ("succeeded", "restore", str(first))
    assert job["summary"].startswith(f"returned to snapshot {first}")
    assert workspace.read()["main"] == rows[str(first)]
    (entry,) = workspace.app.runtime.store.audit.entries(None, None, 10)
    assert (entry.action, entry.details["what"], entry.details["job_id"]) == (
        "tables.restore",
        "restore",
        job["job_id"],
    )
    again = client.post(f"{URL}/restore", json={"to": str(first)})
    assert (again.status_code, again.json()["already"], again.json()["job_id"]) == (200, True, None)


def test_a_writer_that_comes_between_keeps_its_commit(workspace: Workspace, client: TestClient) -> None:
    """Between dry run and request the answer is 409; between request and job the job fails, and says so."""
    known(workspace)
    first, head = workspace.metadata().snapshots[0].snapshot_id, workspace.metadata().current_snapshot_id
    body = {"to": str(first), "expected_snapshot_id": str(head)}
    queued = client.post(f"{URL}/restore", json=body).json()
    commit(workspace, workspace.metadata(), 1)
    before = workspace.metadata()
    worked(workspace)
    job = client.get(f"{API}/jobs/{queued['job_id']}").json()
    assert (job["state"], "a writer has committed snapshot" in job["summary"]) == ("failed", True)
    assert "a writer has committed" in problem(client.post(f"{URL}/restore", json=body), 409)["detail"]
    assert workspace.metadata() == before


def test_a_state_that_expires_in_between_is_not_returned_to(workspace: Workspace, client: TestClient) -> None:
    """Between request and job the job fails, and says so; after that nobody can ask for the state."""
    known(workspace)
    first = workspace.metadata().snapshots[1].snapshot_id
    queued = client.post(f"{URL}/restore", json={"to": str(first)}).json()
    lake = workspace.app.runtime.catalogs["lake"]
    before = lake.commit(workspace.metadata(), RemoveSnapshots(frozenset({first}), frozenset()))
    worked(workspace)
    job = client.get(f"{API}/jobs/{queued['job_id']}").json()
    assert (job["state"], f"snapshot {first} has expired meanwhile" in job["summary"]) == ("failed", True), job
    assert "any more" in problem(client.post(f"{URL}/restore", json={"to": str(first)}), 422)["detail"]
    assert workspace.metadata() == before


def test_a_restore_that_is_cancelled_changes_nothing(workspace: Workspace, client: TestClient) -> None:
    """A queued one ends at once; of a replaced table none begins."""
    known(workspace)
    before = workspace.metadata()
    queued = client.post(f"{URL}/restore", json={"to": str(before.snapshots[0].snapshot_id)}).json()
    assert client.post(f"{API}/jobs/{queued['job_id']}/cancel").json()["state"] == "cancelled"
    queued = client.post(f"{URL}/restore", json={"to": str(before.snapshots[0].snapshot_id)}).json()
    workspace.unregister(NAME)
    workspace.table(salt="another")
    replaced = workspace.metadata()
    worked(workspace)
    assert "was replaced" in client.get(f"{API}/jobs/{queued['job_id']}").json()["summary"]
    assert workspace.metadata() == replaced


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"to": "nothing"}, 422, "has no snapshot, tag or branch"),
        ({"to": "2001-01-01"}, 422, "is not known any more"),
        ({"to": ""}, 422, "not as it must be"),
    ],
)
def test_states_that_are_not_there(
    workspace: Workspace, client: TestClient, body: dict[str, str], status: int, words: str
) -> None:
    """The answer says what there is; nothing is queued."""
    known(workspace)
    jobs = len(workspace.app.runtime.store.jobs.list())
    assert words in problem(client.post(f"{URL}/restore", json=body), status)["detail"]
    workspace.app.runtime.store.fleet.begin(FleetPause("an incident", "ada", workspace.clock.now()))
    assert "an incident" in problem(client.post(f"{URL}/restore", json={"to": "main"}), 409)["detail"]
    assert len(workspace.app.runtime.store.jobs.list()) == jobs


def test_a_repair_drops_no_more_than_was_approved(workspace: Workspace, serve: Callable[[], TestClient]) -> None:
    """The dry run counts the rows that main loses; a run that would lose more fails, and one that was approved goes."""
    folder, client = grown(workspace), serve()
    known(workspace)
    next(iter(sorted(folder.glob("data/**/*.parquet")))).unlink()
    before = workspace.metadata()
    plan = client.post(f"{URL}/repair", json={"drop_lost": True, "dry_run": True}).json()
    assert (plan["lost_rows"], [action["kind"] for action in plan["actions"]]) == (1, ["drop"])
    assert [fault["kind"] for fault in client.post(f"{URL}/repair", json={"dry_run": True}).json()["unrepaired"]]
    for approved, state in ((0, "failed"), (plan["lost_rows"], "succeeded")):
        body = {"drop_lost": True, "approved_rows": approved}
        queued = client.post(f"{URL}/repair", json=body)
        assert (queued.status_code, queued.json()["state"]) == (202, "queued")
        assert workspace.metadata() == before
        worked(workspace)
        job = client.get(f"{API}/jobs/{queued.json()['job_id']}").json()
        assert (job["state"], job["work"]) == (state, "repair"), job["summary"]
    assert "main lost 1 row; the state before has tag icewright-before-repair-" in job["summary"]
    assert iceberg(workspace).scan().to_arrow().num_rows == 3
    (entry, _) = workspace.app.runtime.store.audit.entries(None, None, 10)
    assert (entry.action, entry.details["what"], entry.details["approved_rows"]) == ("tables.restore", "repair", 1)


def test_the_page_asks_before_it_restores(workspace: Workspace, client: TestClient) -> None:
    """It lists the points; the form leads to what would go, and from there to the job."""
    workspace.job(Operation.RECOVERY_POINTS, recovery_points__monthly=2)
    (point, *_) = client.get(f"{URL}/points").json()["items"]
    page = client.get(f"{PAGE}?show=recovery", headers=BROWSER)
    assert point["name"] in page.text.replace("<wbr>", "")
    csrf = {"csrf": token_of(client, PAGE), "table": TABLE}
    first = str(workspace.metadata().snapshots[0].snapshot_id)
    asks = client.post("/do/restore", data={**csrf, "to": first}, headers=BROWSER)
    assert "Commits that leave main" in asks.text
    done = client.post("/do/restore", data=form_of(asks.text, "/do/restore"), headers=BROWSER)
    assert "The restore waits for a worker" in done.text
    worked(workspace)
    assert "Returns to" in client.get(done.url, headers=BROWSER).text
    assert "restore" in client.get("/jobs", headers=BROWSER).text
    assert str(workspace.metadata().current_snapshot_id) == first
    for fields, words in (({"to": "nowhere"}, "has no snapshot"), ({}, "Choose a point"), ({"to": first}, "already")):
        assert words in client.post("/do/restore", data={**csrf, **fields}, headers=BROWSER).text


def test_the_page_asks_before_it_repairs(workspace: Workspace, serve: Callable[[], TestClient]) -> None:
    """Without faults it says so; with some it names each file, what is done, and the rows that main loses."""
    folder, client = grown(workspace), serve()
    known(workspace)
    csrf = {"csrf": token_of(client, PAGE), "table": TABLE}
    assert "no fault" in client.post("/do/repair", data=csrf, headers=BROWSER).text
    next(iter(sorted(folder.glob("data/**/*.parquet")))).unlink()
    stays = client.post("/do/repair", data=csrf, headers=BROWSER).text
    assert "Faults that stay" in stays
    assert 'value="confirmed"' not in stays
    asks = client.post("/do/repair", data={**csrf, "drop_lost": "yes"}, headers=BROWSER)
    assert "main loses 1 row" in asks.text
    done = client.post("/do/repair", data=form_of(asks.text, "/do/repair"), headers=BROWSER)
    worked(workspace)
    assert "main lost 1 row" in client.get(done.url, headers=BROWSER).text


@contextmanager
def told(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """What commands say to a service whose worker runs each job that they follow."""
    app = create_app(workspace.app, Settings(), ServiceStatus(list, lambda: b""))
    worker = Worker(workspace.app.runtime, 1, lambda: None)
    follow: Callable[..., Any] = Client.follow

    def after_work(*words: Any) -> Any:
        assert worker.start_queued() == 1
        assert worker.wait(timedelta(seconds=60))
        return follow(*words)

    monkeypatch.setattr(Client, "follow", after_work)
    with serving(app, HERE, 0) as port:

        def said(*words: str, code: int = 0) -> str:
            monkeypatch.setattr(sys, "argv", ["icewright", "--server", f"http://{HERE}:{port}", *words])
            with pytest.raises(SystemExit) as ended:
                main()
            out = capsys.readouterr()
            assert (ended.value.code or 0) == code, out
            return " ".join((out.out + out.err).split())

        yield said


def test_commands_let_the_service_restore(
    workspace: Workspace, client: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--server` plans, queues and follows the job; without `--to` it lists the points."""
    workspace.job(Operation.RECOVERY_POINTS, recovery_points__monthly=2)
    with told(workspace, monkeypatch, capsys) as said:
        assert "icewright-monthly-" in said("restore", TABLE)
        first = str(workspace.metadata().snapshots[0].snapshot_id)
        assert "would return to snapshot" in said("restore", TABLE, "--to", first, "--dry-run")
        assert f"returned to snapshot {first}" in said("restore", TABLE, "--to", first, "--yes")
        assert str(workspace.metadata().current_snapshot_id) == first
        assert "no fault" in said("repair", TABLE)
        assert "one table in its place" in said("restore", "--namespace", "lake.sales", "--to", first, code=2)


def test_points_are_priced(workspace: Workspace, serve: Callable[[], TestClient]) -> None:
    """API and page say what stays for the points alone, and what that costs a month; only where it is asked for."""
    history(workspace)
    workspace.job(Operation.RECOVERY_POINTS, recovery_points__daily=30)
    app, limits = workspace.app, workspace.app.runtime.limits()
    priced = replace(app.runtime, limits=CurrentLimits(replace(limits, gb_month_price=float(1 << 30))))
    workspace.app = replace(app, runtime=priced)
    client = serve()
    assert client.get(f"{URL}/points").json()["bytes"] is None
    said = client.get(f"{URL}/points", params={"costs": True}).json()
    assert said["money_per_month"] == said["bytes"]
    assert said["bytes"] >= sum(point["bytes"] for point in said["items"])
    assert "in money a month" in client.get(f"{PAGE}?show=recovery&costs=yes", headers=BROWSER).text
