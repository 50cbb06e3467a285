"""What people do on the pages, in Chromium: log in and out, run, cancel, pause, and be refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from icewright.app.web.pages.urls import table_url
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports import CatalogSettings, ProcessRow
from tests.web.pages.conftest import CLICKS, EVENTS, Opener, Site
from tests.web.pages.test_every_page import faults

pytestmark = [pytest.mark.web, pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SESSIONS = TableRef.parse("lake.web.sessions")


def log_in(page: Page, token: str, path: str = "/") -> None:
    """By a token, on the way to a page."""
    page.goto(path)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in by token").click()


def test_a_job_from_its_start_to_its_end(site: Site, desk: Opener) -> None:
    """It is started by a form; its page follows it, without being loaded again, until it ends."""
    window = desk(site.local)
    page = window.page
    page.goto(table_url(SESSIONS))
    page.get_by_label("Remove orphans").check()
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_have_text("Run now?")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_contain_text("Started")
    assert "/jobs/" in page.url
    (job,) = site.store.jobs.list(SESSIONS, 1)
    holder, now = site.app.runtime.trigger.holder, site.app.runtime.clock.now()
    taken = site.store.jobs.dequeue(holder, ["lake"], now, 10)
    assert job.job_id in [one.job_id for one in taken]
    expect(page.locator("h1 + .pill")).to_have_text("running")
    said = {"job_id": job.job_id, "operation": "remove_orphans"}
    site.tell("operation_started", SESSIONS, **said)
    for done in (1, 3):
        site.tell("progress", SESSIONS, **said, groups=4, groups_done=done)
        bar = page.get_by_role("progressbar")
        expect(bar).to_have_attribute("aria-valuenow", str(done))
    page.get_by_role("button", name="Cancel").focus()
    site.tell("operation_finished", SESSIONS, **said, state="committed", summary="2 of 3 <i>orphans</i> removed")
    expect(page.locator(".stages")).to_contain_text("2 of 3 <i>orphans</i> removed")
    assert page.evaluate("document.activeElement.innerText") == "Cancel"
    site.finish(job.job_id)
    expect(page.locator("h1 + .pill")).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    for other in taken:
        if other.job_id != job.job_id:
            site.finish(other.job_id, JobState.SKIPPED, "not by this test")


def test_a_job_is_cancelled(site: Site, desk: Opener) -> None:
    """Also where scripts do not run."""
    window = desk(site.local, scripts=False)
    page = window.page
    job = site.running(SESSIONS)
    page.goto(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status")).to_contain_text("Cancellation is requested")
    assert site.store.jobs.get(job).cancel_requested
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    site.finish(job, JobState.CANCELLED, "cancelled")


def test_a_dry_run(site: Site, desk: Opener) -> None:
    """Says what would be done, and does nothing."""
    before = len(site.store.jobs.list(limit=1000))
    window = desk(site.local)
    page = window.page
    page.goto(table_url(EVENTS))
    page.get_by_label("Compact").uncheck()
    page.get_by_label("Remove orphans").check()
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("h1")).to_have_text("Dry run")
    expect(page.locator("main")).to_contain_text("remove orphans")
    assert len(site.store.jobs.list(limit=1000)) == before
    page.get_by_role("link", name="Back to the table").click()
    expect(page.locator("h1")).to_have_text("events")
    for box in page.locator("input[name=operation]").all():
        box.uncheck()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_contain_text("at least one")


def open_recovery(site: Site, page: Page) -> None:
    """Open the tab of recovery of a table that no job holds."""
    if (planned := site.store.tables.get(CLICKS).job_id) is not None:
        site.store.jobs.request_cancel(planned, site.app.runtime.clock.now())
    page.goto(table_url(CLICKS, show="recovery"))


def test_a_restore_and_a_repair(site: Site, desk: Opener) -> None:
    """The tab leads to what would go, and from there to the job; a whole table needs no repair."""
    window = desk(site.local)
    page = window.page
    open_recovery(site, page)
    page.get_by_label("time (UTC)").fill("month-end")
    page.get_by_role("button", name="Restore…").click()
    expect(page.locator("h1")).to_have_text("Restore?")
    expect(page.get_by_label("Commits that leave main")).to_be_visible()
    assert not faults(window)
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_role("status")).to_contain_text("The restore waits for a worker")
    expect(page.get_by_label("Facts")).to_contain_text("Returns to")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1 + .pill")).to_have_text("cancelled")
    page.goto(table_url(CLICKS, show="recovery"))
    page.get_by_role("button", name="Check, and show repairs…").click()
    expect(page.locator("main")).to_contain_text("no fault")
    assert not faults(window)
    page.reload()
    expect(page.locator("h1")).to_have_text("clicks")


def test_an_erasure_and_a_copy(site: Site, desk: Opener, tmp_path: Path) -> None:
    """The search's page shows what was found as soon as the job ends, and asks before anything is erased or copied."""
    window = desk(site.local)
    page = window.page
    open_recovery(site, page)
    page.get_by_label("Rows where").fill("id = 1")
    page.get_by_role("button", name="Search…").click()
    expect(page.get_by_role("status")).to_contain_text("The search waits for a worker")
    expect(page.get_by_label("Facts")).to_contain_text("rows where id = 1")
    (job,) = site.store.jobs.list(CLICKS, 1)
    site.store.jobs.dequeue(site.app.runtime.trigger.holder, ["lake"], site.app.runtime.clock.now(), 1)
    step = {"place": "snapshot", "files": 2, "rows": 3, "operation": "expire_snapshots", "until": None}
    found: dict[str, Any] = {"predicate": "id = 1", "unread": {}, "summary": "rows in 2 files", "certificate": None}
    site.store.jobs.record_result(job.job_id, {**found, "steps": [{**step, "remedy": "run expire_snapshots"}]})
    site.finish(job.job_id)
    expect(page.get_by_role("region", name="Where rows are kept")).to_contain_text("run expire_snapshots")
    expect(page.get_by_role("link", name="Certificate")).to_have_count(0)
    page.get_by_role("button", name="Erase").click()
    expect(page.get_by_role("status")).to_contain_text("The erasure waits for a worker")
    page.get_by_role("button", name="Cancel").click()
    page.goto(table_url(CLICKS, show="recovery"))
    page.get_by_label("Folder").fill(f"file://{tmp_path}/copy")
    page.get_by_role("button", name="Copy…").click()
    expect(page.locator("h1")).to_have_text("Copy?")
    expect(page.get_by_label("What is copied")).to_contain_text("copy")
    page.goto("/settings")
    expect(page.get_by_role("button", name="Register…")).to_be_visible()
    assert not faults(window)
    page.go_back()
    expect(page.locator("h1")).to_have_text("clicks")
    assert not (tmp_path / "copy").exists()


def test_tables_follow_what_happens(site: Site, desk: Opener) -> None:
    """Their list and the page of one, without being loaded again; what is selected meanwhile stays selected."""
    page = desk(site.local).page
    for path, box, says in (
        (f"/tables?search={EVENTS.name}", page.get_by_label(f"Select {EVENTS}"), "waiting for ann"),
        (table_url(EVENTS), page.get_by_label("Remove orphans"), "Paused: waiting for ann"),
    ):
        page.goto(path)
        expect(page.locator("[data-live-state]")).to_have_text("live")
        box.check()
        site.store.tables.pause(EVENTS, "waiting for ann")
        expect(page.locator("main")).to_contain_text(says)
        expect(box).to_be_checked()
        site.store.tables.pause(EVENTS, None)


def test_a_form_that_came_later_is_sent_once(site: Site, desk: Opener) -> None:
    """A part that follows has brought it; its button rests while the service is slow to answer."""
    page = desk(site.local).page
    page.goto(table_url(EVENTS))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    page.evaluate("addEventListener('submit', (event) => event.preventDefault())")  # the answer takes for ever
    site.store.tables.pause(EVENTS, "waiting for bob")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Resume")).to_be_disabled()
    site.store.tables.pause(EVENTS, None)


def test_all_tables_of_a_page_are_selected_at_once(site: Site, desk: Opener) -> None:
    """By the box at the head of the list; what can be done with them comes in sight."""
    page = desk(site.local).page
    page.goto("/tables?catalog=fleet")
    count, every = page.get_by_role("button", name="Count"), page.get_by_label("Select all on this page")
    expect(count).not_to_be_in_viewport()
    every.check()
    assert all(box.is_checked() for box in page.locator("[name=pick]").all())
    expect(count).to_be_in_viewport(ratio=1)
    page.locator("[name=pick]").first.uncheck()
    expect(every).not_to_be_checked()


def test_many_tables_by_keyboard(site: Site, desk: Opener) -> None:
    """Two tables are selected with the space bar, then paused, resumed and run, each after a page that counts them."""
    window = desk(site.local)
    page, chosen = window.page, (CLICKS, EVENTS)
    if site.store.tables.get(CLICKS).job_id is None:
        site.running(CLICKS)
    for action, done in (("pause", "Paused"), ("resume", "Resumed"), ("run", "Started")):
        page.goto("/tables?catalog=lake")
        for ref in chosen:
            box = page.get_by_label(f"Select {ref}")
            while not box.is_checked():  # a part that comes between the key's down and up takes the press with it
                box.press("Space")
        page.get_by_label("Action").focus()
        page.keyboard.type(action)
        assert page.get_by_label("Action").input_value() == action
        page.get_by_role("button", name="Count").press("Enter")
        expect(page.locator("h1")).to_have_text(f"{action.capitalize()} 2 tables")
        assert not faults(window)
        page.get_by_role("button", name=f"{action.capitalize()} 2 tables").press("Enter")
        expect(page.get_by_role("status")).to_contain_text(done)
        paused = [ref for ref in chosen if site.store.tables.get(ref).paused is not None]
        assert paused == (list(chosen) if action == "pause" else [])
    assert page.get_by_role("status").inner_text() == f"Started 1 job of 2 tables. {CLICKS}: it has a job already."


@pytest.mark.parametrize("number", [0, 8, 15])
def test_pause_and_resume(site: Site, desk: Opener, number: int) -> None:
    """A table of any name, with a reason that is shown as it was written."""
    ref = site.hostile[number]
    window = desk(site.local)
    page = window.page
    page.goto(table_url(ref))
    page.locator("summary", has_text="Pause").click()
    page.get_by_label("Reason for the pause").fill("<em>migrating</em> & waiting")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".next")).to_contain_text("Paused: <em>migrating</em> & waiting")
    row = site.store.tables.get(ref)
    assert row.paused == "<em>migrating</em> & waiting"
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("Resumed")
    assert site.store.tables.get(ref).paused is None


def test_settings_follow_what_others_set(site: Site, desk: Opener) -> None:
    """A catalog that somebody else disables is shown as disabled; fields follow too, but for what was edited."""
    page, runtime = desk(site.local).page, site.app.runtime
    now = runtime.clock.now()
    page.goto("/settings")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    form = page.get_by_role("form", name="Set the catalog fleet")
    page.locator("tr", has=page.get_by_role("link", name="fleet", exact=True)).get_by_text("Change").click()
    form.get_by_label("Tables").fill("t*")
    try:
        runtime.store.catalogs.record_settings("fleet", CatalogSettings(enabled=False, tables="x*"), now)
        runtime.scopes.read_again()  # type: ignore[attr-defined] # as the form and the API do
        expect(page.locator("main")).to_contain_text("read-only: never maintained")
        expect(form.get_by_label("Maintained")).to_have_value("false")
        expect(form.get_by_label("Tables")).to_have_value("t*")
    finally:
        runtime.store.catalogs.record_settings("fleet", None, now)


def test_a_worker_is_drained(site: Site, desk: Opener) -> None:
    """Its row unfolds the form, which says what it does; afterwards the row says that the process drains."""
    now = site.app.runtime.clock.now()
    site.store.processes.record_heartbeat(ProcessRow("pod-7:1:2", "worker", now, now, 2, {}))
    try:
        page = desk(site.local).page
        page.goto("/settings")
        row = page.locator("tr", has=page.locator("summary[aria-label='Drain pod-7:1:2']"))
        row.locator("summary").click()
        expect(row).to_contain_text("takes no more jobs, and ends when its jobs have")
        row.get_by_role("button", name="Drain it").click()
        expect(page.get_by_role("status")).to_contain_text("pod-7:1:2 takes no more jobs")
        expect(page.locator("tr", has_text="draining")).to_have_count(1)
        assert [one.holder for one in site.store.processes.list() if one.drain_since] == ["pod-7:1:2"]
    finally:
        site.store.processes.deregister(["pod-7:1:2"])


def test_a_viewer_is_shown_and_given_nothing_to_change(site: Site, desk: Opener) -> None:
    """And is refused, in words, when a form comes all the same; the refusal is written down."""
    window = desk(site.closed)
    page = window.page
    log_in(page, site.token("viewer"), table_url(CLICKS))
    expect(page.locator("h1")).to_have_text("clicks")
    for name in ("Run now", "Dry run", "Pause"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    csrf = page.locator("form[action='/logout'] input[name=csrf]").get_attribute("value")
    page.evaluate(
        """([csrf, table]) => {
        const form = Object.assign(document.createElement("form"), {method: "post", action: "/do/pause"});
        for (const [name, value] of [["csrf", csrf], ["table", table]])
          form.append(Object.assign(document.createElement("input"), {name, value}));
        document.body.append(form);
        form.submit();
        }""",
        [csrf, str(CLICKS)],
    )
    expect(page.locator("h1")).to_have_text("Forbidden")
    expect(page.locator("main")).to_contain_text("tables.pause on")
    assert site.store.audit.entries(None, None, 1, refused=True)[0].action == "tables.pause"
    assert site.store.tables.get(CLICKS).paused is None


def test_an_operator_may_not_delete(site: Site, desk: Opener) -> None:
    """What rewrites they may start, what deletes is for owners."""
    window = desk(site.closed)
    page = window.page
    log_in(page, site.token("operator"), table_url(SESSIONS))
    expect(page.locator("main")).to_contain_text("Only owners can run")
    page.get_by_label("Expire snapshots").check()
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_have_text("Forbidden")
    expect(page.locator("main")).to_contain_text("jobs.delete")


def test_an_owner_sees_what_is_theirs(site: Site, desk: Opener) -> None:
    """And nothing of anybody else's."""
    window = desk(site.closed)
    page = window.page
    log_in(page, site.token("owner", "lake"), "/tables")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.goto("/")
    expect(page.locator("main")).not_to_contain_text("fleet")
    answer = page.goto(table_url(site.hostile[0]))
    assert answer is not None
    assert answer.status == 404


def test_in_and_out_by_a_token(site: Site, desk: Opener) -> None:
    """The page that was asked for comes after the login; the session ends with the token, or by logging out."""
    window = desk(site.closed)
    page = window.page
    log_in(page, site.token("admin"), "/queue?from=3")
    expect(page.locator("h1")).to_have_text("Queue")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Log in")
    token = site.token("admin")
    log_in(page, token)
    page.goto("/jobs")
    expect(page.locator("h1")).to_have_text("Jobs")
    site.store.access.revoke_token(token.split("_")[1], site.app.runtime.clock.now())
    page.goto("/jobs")
    expect(page.locator("h1")).to_have_text("Log in")


def test_in_by_the_provider(site: Site, desk: Opener) -> None:
    """With what the groups of the OpenID provider grant."""
    window = desk(site.closed)
    page = window.page
    page.goto(table_url(CLICKS))
    page.get_by_role("link", name="Log in with your account").click()
    page.locator("input[name=sub]").fill("ann")
    page.locator("input[name=sub]").press("Enter")
    expect(page.locator("h1")).to_have_text("clicks")
    expect(page.locator(".who")).to_contain_text("ann@example.com")
    page.locator("summary", has_text="Pause").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".next")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("Resumed")
    assert site.store.audit.entries(None, None, 1)[0].actor == "ann@example.com"


def test_the_queue_follows(site: Site, desk: Opener) -> None:
    """A job that begins shows up by itself."""
    window = desk(site.local)
    page = window.page
    page.goto("/queue")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    job = site.running(EVENTS)
    expect(page.get_by_role("link", name=job[-8:])).to_be_visible()
    site.finish(job, JobState.SKIPPED, "nothing")
    expect(page.get_by_role("link", name=job[-8:])).to_have_count(0)


def test_a_page_follows_again_after_a_restart(site: Site, desk: Opener) -> None:
    """Behind a proxy too, whose 502 ends a browser's stream; until then it says since when it is not live."""
    page = desk(site.local).page
    page.clock.install()
    page.route("**/live/**", lambda route: route.fulfill(status=502))
    page.goto("/queue")
    expect(page.locator("[data-live-state]")).to_have_text(re.compile(r"^not live since \d\d:\d\d:\d\d: reconnecting$"))
    page.unroute("**/live/**")
    page.clock.run_for(5_000)
    expect(page.locator("[data-live-state]")).to_have_text("live")


def test_a_page_says_that_its_login_has_ended(site: Site, desk: Opener) -> None:
    """At its foot, in place of asking again for ever."""
    page = desk(site.closed).page
    page.clock.install()
    page.route("**/live/**", lambda route: route.fulfill(status=401))
    log_in(page, site.token("viewer"), "/queue")
    expect(page.locator("[data-live-state]")).to_contain_text("reconnecting")
    page.context.clear_cookies()
    page.clock.run_for(5_000)
    expect(page.locator("[data-live-state]")).to_contain_text("your login has ended, load the page again")


def test_ages_go_by_the_clock_of_the_service(site: Site, desk: Opener) -> None:
    """A browser whose clock is wrong would take what has ended for what is to come."""
    page = desk(site.local).page
    page.clock.install(time=datetime.now(UTC) - timedelta(days=1))
    page.goto("/jobs")
    page.clock.run_for(11_000)
    ages = page.locator("main time:not([data-fixed])").all_text_contents()
    assert ages
    assert not [age for age in ages if age.startswith("in ")]
