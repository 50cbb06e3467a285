"""Changes to many tables and to the whole fleet: API, command line by a service, and pages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.app.cli import main
from icewright.app.web.identity import Access
from icewright.app.web.pages.render import NAVIGATION
from icewright.app.web.pages.urls import table_url
from icewright.app.web.running import serving
from icewright.core.errors import UsageError
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.flow.bulk import drain_process
from icewright.flow.evaluate import evaluate_and_record
from icewright.ports import ProcessRow
from icewright.ports.views import WaitingQuery
from icewright.testing import NOW
from tests.web.conftest import HERE, Served
from tests.web.test_access import bearer
from tests.web.test_pages import BROWSER, FORM, token_of

pytestmark = pytest.mark.external  # makes a store for each test

NAMES = ["lake.hr.pay", "lake.sales.orders", "lake.sales.returns"]
API = "/api/v1"


@pytest.fixture
def fleet(served: Served) -> Served:
    """A service over three tables of two namespaces, all evaluated."""
    bench = served.bench
    bench.table("returns")
    pay = TableRef("lake", ("hr",), "pay")
    bench.catalog.put(bench.catalog.load(served.ref).__class__(**_fields(bench.catalog.load(served.ref), pay)))
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    for name in NAMES:
        bench.rot(TableRef.parse(name))
        evaluate_and_record(served.runtime, TableRef.parse(name), bench.clock.now())
    return served


def _fields(metadata: Any, ref: TableRef) -> dict[str, Any]:
    fields = {name: getattr(metadata, name) for name in metadata.__dataclass_fields__ if name[0] != "_"}
    location = "s3://lake/hr/pay"
    return fields | {"ref": ref, "location": location, "metadata_location": f"{location}/metadata/00000-a.json"}


def paused(served: Served) -> list[str]:
    """The tables that are paused."""
    return sorted(str(row.ref) for row in served.bench.store.tables.list() if row.paused)


def test_many_tables_are_changed_only_by_their_count(fleet: Served) -> None:
    """The first request counts, the second repeats the count; another count by then is a conflict."""
    client, body = fleet.client(), {"tables": ["lake.sales.*"], "reason": "migration"}
    counted = client.post(f"{API}/tables/pause", json=body).json()
    assert (counted["count"], counted["changed"], counted["tables"]) == (2, False, NAMES[1:])
    assert paused(fleet) == []
    assert client.post(f"{API}/tables/pause", json={**body, "expected": 3}).status_code == 409
    assert client.post(f"{API}/tables/pause", json={**body, "expected": 2}).json()["changed"]
    assert paused(fleet) == NAMES[1:]
    started = client.post(f"{API}/tables/run", json={"all": True, "operations": ["compact"], "expected": 3}).json()
    assert len(started["jobs"]) == 1
    assert started["refused"] == dict.fromkeys(NAMES[1:], "it is paused: migration")
    cancelled = client.post(f"{API}/tables/cancel", json={"catalog": "lake", "expected": 1}).json()
    assert cancelled["jobs"] == started["jobs"]
    assert client.post(f"{API}/tables/resume", json={"catalog": "lake", "expected": 3}).json()["changed"]
    assert paused(fleet) == []
    assert client.post(f"{API}/tables/pause", json={"tables": ["lake.none.*"]}).status_code == 422
    assert client.post(f"{API}/tables/pause", json={}).status_code == 422


def test_each_table_of_a_change_has_its_entry_in_the_audit_log(fleet: Served) -> None:
    """So the owner of one place sees who paused, started or cancelled something in it, and nothing of others."""
    client = fleet.client(fleet.app(access=Access(required=True)))
    admin, owner = bearer(fleet, "admin"), bearer(fleet, "owner", "lake.hr")
    bodies: dict[str, dict[str, Any]] = {
        "pause": {"reason": "migration"},
        "resume": {},
        "run": {"operations": ["compact"]},
        "cancel": {},
    }
    for path, body in bodies.items():
        body |= {"all": True, "expected": 3}
        assert client.post(f"{API}/tables/{path}", json=body, headers=admin).json()["changed"]
    entries = client.get(f"{API}/audit", headers=admin).json()["items"]
    assert sorted((entry["target"], entry["action"]) for entry in entries) == sorted(
        (name, action) for name in NAMES for action in ("jobs.cancel", "jobs.run", "tables.pause", "tables.pause")
    )
    own = client.get(f"{API}/audit", headers=owner).json()["items"]
    assert {entry["target"] for entry in own} == {NAMES[0]}
    assert [entry["details"].get("reason") for entry in own] == [None, None, None, "migration"]
    assert {entry["details"]["selection"] for entry in own} == {"all tables"}


def test_a_selection_holds_only_what_the_caller_may_change(fleet: Served) -> None:
    """All means all of one's own; the whole fleet and its processes are for those whose role holds everywhere."""
    client = fleet.client(fleet.app(access=Access(required=True)))
    own = bearer(fleet, "operator", "lake.sales")
    assert client.post(f"{API}/tables/pause", json={"all": True}, headers=own).json()["tables"] == NAMES[1:]
    deleting = {"all": True, "operations": ["expire_snapshots"]}
    assert client.post(f"{API}/tables/run", json=deleting, headers=own).json()["count"] == 0
    assert client.post(f"{API}/fleet/pause", json={}, headers=own).status_code == 403
    assert client.post(f"{API}/processes/x/drain", headers=own).status_code == 403
    assert fleet.bench.store.fleet.get() is None


@pytest.fixture
def command(fleet: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """The command line against the service: `command("pause", "--all")` returns its output, or its JSON."""

    def run(*words: str, code: int = 0, answer: str = "") -> Any:
        monkeypatch.setattr(sys, "argv", ["icewright", "--server", address, *words])

        def ask(question: str, **_: object) -> bool:
            questions.append(question)
            return answer == "y"

        monkeypatch.setattr("typer.confirm", ask)
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        assert (ended.value.code or 0) == code, out
        return json.loads(out.out) if "--json" in words else out.out + out.err

    questions: list[str] = []
    run.questions = questions  # type: ignore[attr-defined]
    with serving(fleet.app(), HERE, 0) as port:
        address = f"http://{HERE}:{port}"
        yield run


def test_commands_ask_the_count_back(fleet: Served, command: Any) -> None:
    """Without --yes the number of tables is asked about; no is an end without a change."""
    command("pause", "lake.sales.*", code=1, answer="n")
    assert command.questions == ["Pause 2 tables (lake.sales.orders, lake.sales.returns)?"]
    assert paused(fleet) == []
    assert "paused 2 tables" in command("pause", "lake.sales.*", answer="y")
    command("resume", "lake.sales.orders", "lake.sales.returns", "--yes")
    assert paused(fleet) == []
    command("vacuum", "lake", code=1, answer="n")
    asked = f"Expire snapshots and delete files of all tables of lake ({len(NAMES)} are known)?"
    assert command.questions[2:] == [asked]
    assert command("pause", "--all", "--yes", "--json")["tables"] == NAMES
    assert "select tables in one way" in command("resume", "--all", "--catalog", "lake", code=2)
    command("resume", "--catalog", "lake", "--yes")
    dry = command("run", "lake.sales.*", "--op", "compact", "--dry-run", "--json")["jobs"]
    assert [job["table"] for job in dry] == NAMES[1:]
    fleet.bench.store.fleet.end()
    row = fleet.bench.store.tables.get(fleet.ref)
    assert row is not None
    assert "asked 0 jobs to stop" in command("cancel", "--all", "--yes")


def test_everything_is_paused_by_one_switch(fleet: Served, command: Any) -> None:
    """Command, API, status and every page show the pause; a manual run is refused until it ends."""
    client = fleet.client()
    command("pause", "--everything", "--reason", "an incident")
    assert "everything is paused" in command("status")
    assert client.get(f"{API}/fleet").json()["paused"]["reason"] == "an incident"
    refused = client.post(f"{API}/tables/{NAMES[1]}/jobs", json={"operations": ["compact"]})
    assert (refused.status_code, "an incident" in refused.json()["detail"]) == (409, True)
    for page in ("/", "/tables", "/jobs", "/settings", "/tables/lake/sales/orders"):
        assert "an incident. No job begins." in client.get(page, headers=BROWSER).text
    command("resume", "--everything")
    assert command("status", "--json")["paused"] is None
    assert client.post(f"{API}/tables/{NAMES[1]}/jobs", json={"operations": ["compact"]}).status_code == 202
    job = fleet.bench.store.jobs.dequeue("w:1:1", ["lake"], NOW, 1)[0].job_id
    command("pause", "--everything", "--cancel-running")
    running = fleet.bench.store.jobs.get(job)
    assert running is not None
    assert running.cancel_requested


def test_a_process_is_drained_by_its_id(fleet: Served, command: Any) -> None:
    """`status` lists the processes; a unique prefix names one, an unknown one is refused."""
    fleet.bench.store.processes.record_heartbeat(ProcessRow("host.1:7:9", "worker", NOW, NOW, 2, {"busy": 1}))
    assert "host.1:7:9" in command("status")
    with pytest.raises(UsageError, match="no process"):
        drain_process(fleet.runtime, "")  # as of a variable that is not set
    assert "takes no more jobs" in command("drain", "host.1:7")
    assert "draining" in command("status")
    assert "no process" in command("drain", "other", code=2)


def test_pages_drain_a_process(fleet: Served) -> None:
    """The row of each process that is alive has the form; afterwards the process is shown as draining, without one."""
    client, store, now = fleet.client(), fleet.bench.store, fleet.bench.clock.now()
    store.processes.record_heartbeat(ProcessRow("host.1:7:9", "worker", now, now, 2, {}))
    store.processes.record_heartbeat(ProcessRow("host.2:7:9", "worker", now, now - timedelta(hours=1), 2, {}))
    assert re.findall(r'name="process" value="(.*?)"', client.get("/settings", headers=BROWSER).text) == ["host.1:7:9"]
    fields = {"csrf": token_of(client, "/settings"), "process": "host.1:7:9"}
    drained = client.post("/do/drain", data=fields, headers={**BROWSER, **FORM}).text
    assert "host.1:7:9 takes no more jobs" in drained
    assert ">draining<" in drained
    assert 'name="process"' not in drained
    assert (
        "no process"
        in client.post("/do/drain", data={**fields, "process": "gone"}, headers={**BROWSER, **FORM}).text.casefold()
    )


def test_pages_run_an_operation_on_the_selected_tables(fleet: Served) -> None:
    """Nothing starts before the confirmation, which says that an operation deletes and carries the selection."""
    client, store = fleet.client(), fleet.bench.store
    page = client.get("/tables", headers=BROWSER).text
    assert f'form="change" name="pick" value="{NAMES[1]}"' in page
    fields = {"csrf": token_of(client, "/tables"), "pick": NAMES[1:], "action": "run", "operation": "expire_snapshots"}
    asked = client.post("/do/bulk", data=fields, headers={**BROWSER, **FORM}).text
    assert "Run 2 tables" in asked
    assert "deletes files or rows" in asked
    assert [f'name="pick" value="{name}"' in asked for name in NAMES] == [False, True, True]
    assert store.jobs.list() == []
    client.post("/do/bulk", data={**fields, "expected": "2"}, headers={**BROWSER, **FORM})
    assert {(str(job.ref), job.operations) for job in store.jobs.list()} == {
        (name, (Operation.EXPIRE_SNAPSHOTS,)) for name in NAMES[1:]
    }
    wrong = client.post("/do/bulk", data={**fields, "operation": "destroy"}, headers={**BROWSER, **FORM})
    assert "no operation is chosen" in wrong.text


def test_the_queue_says_what_waits_and_what_comes_next(fleet: Served) -> None:
    """Due operations are grouped by table, each with what it is worth; then the tables that are evaluated next."""
    client, store = fleet.client(), fleet.bench.store
    now = fleet.bench.clock.now()
    soon, paused_one = TableRef.parse(NAMES[1]), TableRef.parse(NAMES[2])
    store.tables.schedule_evaluation([soon, paused_one], now)
    store.tables.pause(paused_one, "migration")
    waiting, _, following = client.get("/queue", headers=BROWSER).text.partition("<h2>Next evaluations")
    waiting = waiting.partition(">Waiting<")[2]
    for name in NAMES:
        due = store.views.list_waiting(WaitingQuery(TableRef.parse(name)), None, None, 50).items
        assert waiting.count(f'href="{table_url(name)}"') == (1 if due else 0)
    assert re.search(r"saves each full read the equivalent of [\d.]+ .B, for [\d.<]+ GB-hours", waiting)
    assert re.search(r"frees storage worth [\d.]+ .B of reads, for [\d.<]+ GB-hours", waiting)
    assert re.search(r"saves the equivalent of [\d.]+ .B of reads, for [\d.<]+ GB-hours", waiting)
    assert re.search(rf'with the next pass</td><th[^>]*><a class="cell" href="{table_url(NAMES[1])}"', following)
    assert table_url(NAMES[2]) not in following
    assert f"the next {following.count('href=')} of" in following
    detail = client.get(f"/api/v1/tables/{NAMES[1]}").json()
    since, first_from = (datetime.fromisoformat(detail[name]) for name in ("due_since", "goes_first_from"))
    assert first_from - since == timedelta(days=1)
    page = client.get(table_url(NAMES[1]), headers=BROWSER).text
    assert f"before all others from {first_from:%Y-%m-%d %H:%M} UTC" in page


def test_the_queue_is_filtered_and_cancels_what_waits(fleet: Served) -> None:
    """Jobs and due operations are found by table and operation, all next evaluations listed; a job ends from there."""
    client = fleet.client()
    job = client.post(f"{API}/tables/{NAMES[1]}/jobs", json={"operations": ["compact"]}).json()["job_id"]
    for query, jobs, waits in (
        ("search=hr.pay", 0, 1),
        ("search=orders", 1, 0),
        ("operation=check", 0, 0),
        ("operation=compact", 1, 2),
        ("catalog=other", 0, 0),
    ):
        page = client.get(f"/queue?{query}", headers=BROWSER).text
        assert (page.count(f'value="{job}"'), page.count("<details data-key")) == (jobs, waits), query
    listed = client.get("/queue?show=next&search=sales", headers=BROWSER).text
    assert [f'href="{table_url(name)}"' in listed for name in NAMES] == [False, False, True]  # one is busy
    assert client.get("/queue?show=past", headers=BROWSER).status_code == 404
    fields = {"csrf": token_of(client, "/queue"), "job": job, "back": "queue"}
    said = client.post("/do/cancel", data=fields, headers={**BROWSER, **FORM})
    assert said.url.path == "/queue"
    assert f"The job on {NAMES[1]} is cancelled." in said.text
    assert client.get(f"{API}/jobs/{job}").json()["state"] == "cancelled"
    assert "cancel" not in client.get("/queue", headers=BROWSER).text.partition("<main")[2]


def test_pages_change_many_tables_after_a_count(fleet: Served) -> None:
    """The form on the tables page counts first; the confirmation carries the count."""
    client = fleet.client()
    fields = {"csrf": token_of(client, "/tables"), "tables": "lake.sales.*", "action": "pause", "reason": "migration"}
    counted = client.post("/do/bulk", data=fields, headers={**BROWSER, **FORM})
    assert "Pause 2 tables" in counted.text
    assert '<a href="/tables" aria-current="page">' in counted.text
    absurd = {"expected": "9" * 5000, "alert": "9" * 5000}  # more digits than Python makes a number of
    for path in ("/do/bulk", "/do/alerts/acknowledge"):
        assert client.post(path, data=fields | absurd, headers={**BROWSER, **FORM}).status_code == 200
    assert paused(fleet) == []
    client.post("/do/bulk", data={**fields, "expected": "2"}, headers={**BROWSER, **FORM})
    assert paused(fleet) == NAMES[1:]
    client.post("/do/fleet/pause", data={"csrf": fields["csrf"], "reason": "stop"}, headers={**BROWSER, **FORM})
    for place in NAVIGATION:
        assert "Everything is paused" in client.get(place.path, headers=BROWSER).text
    client.post("/do/fleet/resume", data={"csrf": fields["csrf"]}, headers={**BROWSER, **FORM})
    assert fleet.bench.store.fleet.get() is None
