"""Erasures, copies and registrations by the API, on the pages and by `--server`: planned first, then confirmed."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from icewright.adapters.files.local import LocalStorage
from icewright.app.web.api import recovery
from icewright.core.copying import MARKER
from icewright.core.layout import MEASURED_ON, LayoutReport, LayoutTrial, Measurement, RowLayout
from icewright.flow import lease
from icewright.flow.erase import signature
from icewright.flow.layout import LAYOUTS
from icewright.flow.lease import Lease
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.requested import run_dequeued
from icewright.flow.table_job import table_job
from icewright.ports import LeaseStatus, SnapshotPin
from tests.cases.conftest import ground, workspace
from tests.cases.test_layout_measuring import Measured
from tests.cases.test_layouts import spread
from tests.cases.test_repair import grown
from tests.cases.workspace import NAME, Workspace, ref
from tests.faults.interceptors import Call, tapped
from tests.web.test_events import problem
from tests.web.test_pages import BROWSER, token_of
from tests.web.test_recovery import PAGE, URL, form_of, known, told, worked
from tests.web.test_undo import API, TABLE, serve

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "serve", "workspace"]
GONE = "part in ('p0', 'p1')"


@pytest.fixture
def client(workspace: Workspace, serve: Callable[[], TestClient]) -> TestClient:
    """Somebody on this machine, where a table has four snapshots of a file each."""
    workspace.table()
    workspace.detect()
    known(workspace)
    return serve()


def ended(workspace: Workspace, client: TestClient, queued: Any) -> Any:
    """The job that an answer says is queued, after a worker ran it."""
    assert queued.status_code == 202, queued.text
    worked(workspace)
    return client.get(f"{API}/jobs/{queued.json()['job_id']}").json()


def test_an_erasure_is_searched_confirmed_and_certified(
    workspace: Workspace, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search changes nothing; the erasure's job runs what removes the rows, searches again, and has the proof."""
    monkeypatch.delenv("ICEWRIGHT_ERASURE_KEY", raising=False)
    files = workspace.files()
    found = ended(workspace, client, client.post(f"{URL}/erase", json={"where": GONE, "dry_run": True}))
    assert (found["state"], found["work"], found["runs"], found["has_result"]) == ("succeeded", "erase", [], True)
    said = client.get(f"{API}/jobs/{found['job_id']}/result").json()
    assert [step["operation"] for step in said["document"]["steps"]] == ["expire_snapshots"]
    assert (said["work"], said["certified"], workspace.files()) == ("erase", False, files)
    assert "has no certificate" in problem(client.get(f"{API}/jobs/{found['job_id']}/certificate"), 409)["detail"]
    done = ended(workspace, client, client.post(f"{URL}/erase", json={"where": GONE}))
    assert [run["operation"] for run in done["runs"]] == ["expire_snapshots"]
    assert done["state"] == "succeeded"
    assert done["summary"].endswith("no matching row in any of 1 file")
    assert client.get(f"{API}/jobs/{done['job_id']}/result").json()["certified"]
    proof = f"{API}/jobs/{done['job_id']}/certificate"
    assert "ICEWRIGHT_ERASURE_KEY" in problem(client.get(proof), 409)["detail"]
    monkeypatch.setenv("ICEWRIGHT_ERASURE_KEY", "key")
    certificate = client.get(proof).json()
    signed = certificate.pop("signature")
    assert (certificate["predicate"], certificate["job_id"]) == (GONE, done["job_id"])
    assert signature(certificate, b"key") == signed
    entry = workspace.app.runtime.store.audit.entries(None, None, 10)[0]
    assert (entry.action, entry.details["erase"], entry.details["job_id"]) == ("tables.erase", GONE, done["job_id"])


def test_an_erasure_that_cannot_be(workspace: Workspace, client: TestClient) -> None:
    """Of rows that main shows nothing runs; a wrong predicate fails its job, and a paused table is left alone."""
    files = workspace.files()
    shown = ended(workspace, client, client.post(f"{URL}/erase", json={"where": "part = 'p3' or part = 'p0'"}))
    assert (shown["state"], shown["runs"], workspace.files()) == ("succeeded", [], files)
    for where, words in (("email = 'ann'", "has no column email"), ("part ~ 'ann'", "cannot be read")):
        wrong = ended(workspace, client, client.post(f"{URL}/erase", json={"where": where}))
        assert (wrong["state"], words in wrong["summary"], "'ann'" in wrong["summary"]) == ("failed", True, False)
        assert problem(client.get(f"{API}/jobs/{wrong['job_id']}/result"), 404)
    workspace.app.runtime.store.tables.pause(ref(NAME), "we look into it")
    assert "we look into it" in problem(client.post(f"{URL}/erase", json={"where": GONE}), 409)["detail"]
    assert client.post(f"{URL}/erase", json={"where": GONE, "dry_run": True}).status_code == 202


def test_an_erasure_goes_by_the_guards_of_its_operations(workspace: Workspace, client: TestClient) -> None:
    """A snapshot that somebody pinned stays, with its rows, and there is no certificate."""
    runtime, first = workspace.app.runtime, workspace.metadata().snapshots[0]
    now = workspace.clock.now()
    pin = SnapshotPin("ann", first.snapshot_id, now, now + timedelta(days=1), "ann")
    runtime.store.pins.add(ref(NAME), workspace.metadata().table_uuid, pin)
    done = ended(workspace, client, client.post(f"{URL}/erase", json={"where": GONE}))
    assert first.snapshot_id in workspace.metadata().by_id
    said = client.get(f"{API}/jobs/{done['job_id']}/result").json()
    assert (said["certified"], [step["place"] for step in said["document"]["steps"]]) == (False, ["snapshot"])


def test_an_erasure_that_was_replaced_or_cancelled_does_nothing(workspace: Workspace, client: TestClient) -> None:
    """A queued one ends at once; of another table under the name nothing is erased, and nothing copied."""
    queued = client.post(f"{URL}/erase", json={"where": GONE}).json()
    assert "has a job already" in problem(client.post(f"{URL}/erase", json={"where": GONE}), 409)["detail"]
    assert client.post(f"{API}/jobs/{queued['job_id']}/cancel").json()["state"] == "cancelled"
    for path, body in (("erase", {"where": GONE}), ("copy", {"to": f"file://{workspace.home}/copy"})):
        queued = client.post(f"{URL}/{path}", json=body)
        workspace.unregister(NAME)
        workspace.table(salt=path)
        files = workspace.files()
        assert "is another table now" in ended(workspace, client, queued)["summary"]
        assert workspace.files() == files
        known(workspace)


@pytest.mark.parametrize("moment", ["catalog.commit", "files.delete", "store.jobs.record_result"])
def test_an_erasure_whose_process_dies_is_taken_up(workspace: Workspace, client: TestClient, moment: str) -> None:
    """After its commit, before its deletions, or with its result unsaid: main reads as before, and the next ends."""
    rows, runtime = workspace.read()["main"], workspace.app.runtime
    assert client.post(f"{URL}/erase", json={"where": GONE}).status_code == 202
    crashed: list[str] = []

    class Crash(BaseException):
        pass

    def crash(call: Call) -> Any:
        if str(call) != moment or crashed:
            return call.go()
        crashed.append(moment)
        if moment == "catalog.commit":
            call.go()
        raise Crash

    tapped(workspace.app, crash)
    (job,) = runtime.store.jobs.dequeue(runtime.trigger.holder, ["lake"], workspace.clock.now(), 1)
    with pytest.raises(Crash):
        run_dequeued(runtime, job, Lease(runtime, job.job_id, timedelta(hours=1)))
    assert client.get(f"{API}/jobs/{job.job_id}").json()["state"] == "interrupted"
    assert workspace.read()["main"] == rows
    reconcile_interrupted(runtime)
    done = ended(workspace, client, client.post(f"{URL}/erase", json={"where": GONE}))
    assert client.get(f"{API}/jobs/{done['job_id']}/result").json()["certified"], done["summary"]
    assert workspace.read()["main"] == rows


def test_an_erasure_that_is_cancelled_at_its_commit_ends_there(workspace: Workspace, client: TestClient) -> None:
    """It searches no more, and says that it was cancelled; what it committed is verified as ever."""
    queued, jobs = client.post(f"{URL}/erase", json={"where": GONE}), workspace.app.runtime.store.jobs

    def cancel(call: Call) -> Any:
        answer = call.go()
        if str(call) == "catalog.commit":
            jobs.request_cancel(queued.json()["job_id"], workspace.clock.now())
        return answer

    tapped(workspace.app, cancel)
    job = ended(workspace, client, queued)
    assert (job["state"], job["has_result"]) == ("cancelled", False)
    assert len(workspace.metadata().snapshots) == 1


def test_a_writer_during_an_erasure_keeps_its_commit(workspace: Workspace, client: TestClient) -> None:
    """It commits right before the erasure does: the erasure plans again, and what was written stays."""
    table = workspace.icebergs["lake"].load_table(NAME)
    written = table.scan().to_arrow()

    def write(call: Call) -> Any:
        if str(call) == "catalog.commit" and len(workspace.metadata().snapshots) == 4:
            table.append(written)
        return call.go()

    tapped(workspace.app, write)
    done = ended(workspace, client, client.post(f"{URL}/erase", json={"where": GONE}))
    assert client.get(f"{API}/jobs/{done['job_id']}/result").json()["certified"], done["summary"]
    assert len(workspace.read()["main"]) == 2 * len(written)


def test_a_copy_is_planned_queued_and_registered(workspace: Workspace, client: TestClient) -> None:
    """The dry run counts what the job copies; any catalog takes the copy, by the API too."""
    place = f"file://{workspace.home}/copy"
    plan = client.post(f"{URL}/copy", json={"to": place, "dry_run": True})
    assert (plan.status_code, (workspace.home / "copy").exists()) == (200, False)
    done = ended(workspace, client, client.post(f"{URL}/copy", json={"to": place}))
    said = client.get(f"{API}/jobs/{done['job_id']}/result").json()["document"]
    assert (done["work"], said["files"], said["bytes"]) == ("copy", plan.json()["files"], plan.json()["bytes"])
    workspace.icebergs["pond"].create_namespace_if_not_exists("sales")
    body = {"name": "sales.copied", "place": place}
    planned = client.post(f"{API}/catalogs/pond/register", json=body | {"dry_run": True}).json()
    assert (planned["metadata_location"], planned["dry_run"]) == (said["metadata_location"], True)
    assert not list(workspace.app.runtime.catalogs["pond"].pointers())
    assert client.post(f"{API}/catalogs/pond/register", json=body).status_code == 200
    assert workspace.read("sales.copied", "pond") == workspace.read()
    assert "exists already" in problem(client.post(f"{API}/catalogs/pond/register", json=body), 409)["detail"]
    assert "no catalog sea" in problem(client.post(f"{API}/catalogs/sea/register", json=body), 404)["detail"]
    registered, copied = workspace.app.runtime.store.audit.entries(None, None, 10)[:2]
    assert (registered.target, registered.details["what"]) == ("pond.sales.copied", "register")
    assert (copied.action, copied.details["copy"]) == ("tables.copy", place)


def test_a_copy_that_is_cancelled_stops_before_its_next_file(
    workspace: Workspace, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has copied stays, without a metadata file, and the next copy goes on from there."""
    place, write, renew = workspace.home / "copy", LocalStorage.write, Lease.renew
    queued, seen = client.post(f"{URL}/copy", json={"to": f"file://{place}"}), threading.Event()

    def renewed(of: Lease) -> LeaseStatus:
        if (status := renew(of)) is LeaseStatus.CANCELLED:
            seen.set()
        return status

    def cancelled(storage: LocalStorage, path: str, content: bytes | Iterator[bytes]) -> None:
        write(storage, path, content)
        if path.endswith(MARKER):
            client.post(f"{API}/jobs/{queued.json()['job_id']}/cancel")
            assert seen.wait(60), "a heartbeat tells the job"

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "write", cancelled)
        patched.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
        patched.setattr(Lease, "renew", renewed)
        assert ended(workspace, client, queued)["state"] == "cancelled"
    assert [path.name for path in place.rglob("*.*")] == [MARKER]
    assert ended(workspace, client, client.post(f"{URL}/copy", json={"to": f"file://{place}"}))["state"] == "succeeded"


def test_a_large_repair_is_planned_by_a_worker(
    workspace: Workspace, serve: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Footers of many files outlast a request: a job reads them, and its page asks before it repairs."""
    folder, client = grown(workspace), serve()
    known(workspace)
    next(iter(sorted(folder.glob("data/**/*.parquet")))).unlink()
    monkeypatch.setattr(recovery, "_FOOTERS_IN_A_REQUEST", 1)
    before = workspace.metadata()
    csrf = {"csrf": token_of(client, PAGE), "table": TABLE, "drop_lost": "yes"}
    queued = client.post("/do/repair", data=csrf, headers=BROWSER)
    assert "this page will show it" in queued.text
    worked(workspace)
    asks = client.get(queued.url, headers=BROWSER).text
    assert "What the repair does" in asks
    assert workspace.metadata() == before
    done = client.post("/do/repair", data=form_of(asks, "/do/repair"), headers=BROWSER)
    worked(workspace)
    shown = client.get(done.url, headers=BROWSER).text
    assert "main lost 1 row" in shown
    assert "/do/repair" not in shown


def test_layouts_are_predicted_and_then_measured(
    workspace: Workspace, serve: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction makes nothing; its page leads to the measuring, whose cost is the job's, and whose branch goes."""
    spread(workspace)
    workspace.detect()
    known(workspace)
    client, runtime = serve(), workspace.app.runtime

    without_spark = Measured(workspace, 0.2, iter(())).measure_layouts
    monkeypatch.setattr(runtime.engine, "measure_layouts", without_spark, raising=False)
    before = workspace.metadata()
    csrf = {"csrf": token_of(client, PAGE), "table": TABLE}
    queued = client.post("/do/layouts", data={**csrf, "filters": "customer = 'c017'\r\n\r\n"}, headers=BROWSER)
    assert "The prediction waits for a worker" in queued.text
    worked(workspace)
    page = client.get(queued.url, headers=BROWSER).text
    assert "predicted for 1 filter" in page
    assert workspace.metadata() == before
    (form,) = re.findall(r'<form[^>]*action="/do/layouts".*?</form>', page, re.DOTALL)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html.unescape(form)))
    done = client.post("/do/layouts", data=fields, headers=BROWSER)
    (waiting,) = runtime.store.jobs.queued(["lake"])
    assert client.get(f"{API}/jobs/{waiting.job_id}").json()["on_pool"], "it waits for a place in Spark's pool"
    worked(workspace)
    job = client.get(f"{API}/jobs/{waiting.job_id}").json()
    assert (job["state"], job["work"], job["gb_hours"]) == ("succeeded", "layouts", 0.25)
    assert job["options"]["filters"] == ["customer = 'c017'"]
    assert "measured: all" in client.get(done.url, headers=BROWSER).text
    after = workspace.metadata()
    assert (len(after.snapshots), after.refs) == (len(before.snapshots) + 1, before.refs)
    found = client.get(f"{API}/jobs/{waiting.job_id}/result").json()["document"]
    assert found["settings"] == {"compact.strategy": "sort", "compact.sort_order": "customer"}


def test_commands_let_the_service_try_layouts(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--server` queues the trials and prints what the job found; settings are applied by the configuration alone."""
    spread(workspace)
    workspace.detect()
    known(workspace)
    filters = workspace.home / "filters.txt"
    filters.write_text("customer = 'c017'\n", encoding="utf-8")
    advise = ("advise", TABLE, "--filters", str(filters))
    with told(workspace, monkeypatch, capsys) as said:
        assert "set compact.strategy=sort, compact.sort_order=customer" in said(*advise)
        assert "leave out --apply" in said(*advise, "--apply", code=2)


def test_filters_that_cannot_be_tried_fail_their_job(workspace: Workspace, client: TestClient) -> None:
    """What they say stays with those who may ask by them; without any there have to be scan reports."""
    for filters, words in (
        (["email = 'ann'"], "names no column"),
        (["part ~ 'ann'"], "cannot be read"),
        ([], "scan report"),
    ):
        wrong = ended(workspace, client, client.post(f"{URL}/layouts", json={"filters": filters}))
        assert (wrong["state"], words in wrong["summary"], "'ann'" in wrong["summary"]) == ("failed", True, False)


def test_measured_layouts_are_on_the_page_of_their_job(workspace: Workspace, client: TestClient) -> None:
    """Each layout has what was predicted beside what Spark read, and the settings of the best are named."""
    runtime = workspace.app.runtime
    metadata = workspace.metadata()
    trials = (
        LayoutTrial(None, 100, Measurement(90, 2.5)),
        LayoutTrial(RowLayout(("day",)), 50, Measurement(30, 1.5)),
        LayoutTrial(RowLayout(("id",)), 60),
    )
    report = LayoutReport(metadata.ref, 3, 100, 7, trials, "3 filters on 2 files")
    with table_job(runtime, metadata.ref, metadata.table_uuid, {LAYOUTS: MEASURED_ON}, "measuring") as job:
        job.summary, job.result = "measured", report.document
    shown = client.get(f"/jobs/{job.job_id}", headers=BROWSER).text
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr><th scope=.row.*?</tr>", shown)]
    assert rows == [
        "sort by day 50 B 30 B 1.5 s",
        "sort by id 60 B \N{EN DASH} \N{EN DASH}",
        "as they are 100 B 90 B 2.5 s",
    ]
    assert "compact.sort_order: day" in shown


def test_the_pages_ask_before_they_erase_copy_and_register(
    workspace: Workspace, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form leads to what would happen, and from there to the job or the table."""
    monkeypatch.setenv("ICEWRIGHT_ERASURE_KEY", "key")
    csrf = {"csrf": token_of(client, PAGE), "table": TABLE}
    assert "Write which rows" in client.post("/do/erase", data=csrf, headers=BROWSER).text
    found = client.post("/do/erase", data={**csrf, "where": GONE}, headers=BROWSER)
    assert "The search waits for a worker" in found.text
    worked(workspace)
    asks = client.get(found.url, headers=BROWSER).text
    assert "run expire_snapshots" in asks
    assert "Certificate" not in asks
    confirmed = re.findall(r'<form[^>]*action="/do/erase".*?</form>', asks, re.DOTALL)[-1]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', html.unescape(confirmed)))
    done = client.post("/do/erase", data=fields, headers=BROWSER)
    worked(workspace)
    page = client.get(done.url, headers=BROWSER).text
    (link,) = re.findall(r'href="([^"]*/certificate)"', page)
    assert client.get(link, headers=BROWSER).json()["predicate"] == GONE
    place = f"file://{workspace.home}/copy"
    assert "Name the folder" in client.post("/do/copy", data=csrf, headers=BROWSER).text
    assert "meet" in client.post("/do/copy", data={**csrf, "to": workspace.metadata().location}, headers=BROWSER).text
    asks = client.post("/do/copy", data={**csrf, "to": place}, headers=BROWSER).text
    assert "nothing is copied yet" in asks
    done = client.post("/do/copy", data=form_of(asks, "/do/copy"), headers=BROWSER)
    worked(workspace)
    assert "metadata file is" in client.get(done.url, headers=BROWSER).text
    workspace.icebergs["pond"].create_namespace_if_not_exists("sales")
    form = {**csrf, "catalog": "pond", "name": "sales.copied", "place": place}
    assert "Register a table" in client.get("/settings", headers=BROWSER).text
    assert "Name the table" in client.post("/do/register", data=csrf, headers=BROWSER).text
    asks = client.post("/do/register", data=form, headers=BROWSER).text
    assert "nothing is registered yet" in asks
    assert "is registered" in client.post("/do/register", data=form_of(asks, "/do/register"), headers=BROWSER).text
    assert workspace.read("sales.copied", "pond")
    assert "exists already" in client.post("/do/register", data=form, headers=BROWSER).text


def test_commands_let_the_service_erase_copy_and_register(
    workspace: Workspace,
    client: TestClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--server` plans, queues, follows the job, and brings the certificate; exit codes are those of the commands."""
    monkeypatch.setenv("ICEWRIGHT_ERASURE_KEY", "key")
    with told(workspace, monkeypatch, capsys) as said:
        proof, place = tmp_path / "proof.json", f"file://{workspace.home}/copy"
        erase = ("erase", TABLE, "--where", GONE)
        assert "run expire_snapshots" in said(*erase, "--dry-run", code=1)
        found = said(*erase, "--dry-run", "--by", "2100-01-01", "--certificate", str(proof))
        assert ("run expire_snapshots" in found, f"{proof}: not written, as files have" in found) == (True, True)
        assert not proof.exists()
        assert "no matching row" in said(*erase, "--yes", "--certificate", str(proof))
        certificate = json.loads(proof.read_text())
        signed = certificate.pop("signature")
        assert (certificate["matching_rows"], signature(certificate, b"key")) == (0, signed)
        assert "has no column email" in said("erase", TABLE, "--where", "email = 'a'", code=1)
        assert "would be copied" in said("copy", TABLE, "--to", place, "--dry-run")
        assert "files of" in said("copy", TABLE, "--to", place)
        workspace.icebergs["pond"].create_namespace_if_not_exists("sales")
        register = ("register", place, "--as", "pond.sales.copied")
        assert "would be registered" in said(*register, "--dry-run")
        assert " registered: " in said(*register)
        assert workspace.read("sales.copied", "pond") == workspace.read()
