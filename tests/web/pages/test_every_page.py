"""Every page in Chromium: it opens without a complaint, fits the window, and keeps nobody from using it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import axe_playwright_python
import pytest
from playwright.sync_api import expect

from icewright.app.web.pages.urls import table_url
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.words import one_line
from tests.web.pages.conftest import CLICKS, EVENTS, Desk, Opener, Site

pytestmark = [pytest.mark.web, pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# rows of a table are alike: the first ones stand for all
RUN = "asked => axe.run({exclude: ['tbody tr:nth-child(n + 4)']}, asked).then(r => r.violations)"
COLOURS = ["color-contrast", "link-in-text-block"]  # what another theme changes
WIDER = "document.documentElement.scrollWidth - innerWidth"
COVERED = """() => {
  const facts = [...document.querySelector(".facts").children], boxes = facts.map(fact => fact.getBoundingClientRect());
  return facts.filter((_, n) => boxes.slice(0, n).some(one =>
    one.right > boxes[n].left && one.left < boxes[n].right && one.bottom > boxes[n].top)).map(fact => fact.innerText);
}"""
# fields whose bottoms are on a line and whose labels are not
CROOKED = """() => {
  const fields = [...document.querySelectorAll(".filters > label:not(.check), .filters > fieldset")];
  const boxes = fields.map(field => field.getBoundingClientRect());
  return fields.filter((_, n) => boxes.some(one =>
    Math.abs(one.bottom - boxes[n].bottom) < 5 && Math.abs(one.top - boxes[n].top) > 1)).map(field => field.innerText);
}"""
# fields of text beside their labels, not below them
BESIDE = """() => [...document.querySelectorAll("main label input:is([type=text], [type=search], [type=number])")]
  .filter(field => field.getBoundingClientRect().top - field.closest("label").getBoundingClientRect().top < 10)
  .map(field => field.closest("label").innerText)"""
CUT_OFF = """figure => {
  const width = figure.getBoundingClientRect().right;
  return [...figure.querySelectorAll("svg text")].filter(text => text.getBoundingClientRect().right > width).length;
}"""


def paths(site: Site, *, states: bool) -> list[str]:
    """Every page; sides and states of it too."""
    jobs = {job.state: job.job_id for job in site.store.jobs.list()}
    every = [
        "/",
        "/tables",
        *(table_url(CLICKS, show=show) for show in ("", "runs", "snapshots", "recovery", "knobs")),
        "/queue",
        "/jobs",
        f"/jobs/{jobs['succeeded']}",
    ]
    more = [
        "/tables?sort=health&order=desc&state=due&state=paused&search=t0",
        "/tables?search=nothing-is-called-so",
        table_url(TableRef("fleet", ("n3",), "t0003")),
        table_url(TableRef("fleet", ("n5",), "t0005"), show="snapshots"),
        "/queue?show=next",
        "/queue?search=nothing-is-called-so",
        "/jobs?state=cancelled",
        *(f"/jobs/{job_id}" for state, job_id in jobs.items() if state != "succeeded"),
    ]
    return [*every, *more] if states else every


def faults(desk: Desk, *rules: str) -> list[str]:
    """What axe-core says of the page: by some rules, or by all."""
    desk.page.wait_for_load_state()  # with the style sheet, which sizes depend on
    desk.page.evaluate(AXE)
    asked = {"runOnly": list(rules) or TAGS, "resultTypes": ["violations"]}
    found: list[Any] = desk.page.evaluate(RUN, asked)
    return [f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found]


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page(site: Site, desk: Opener, look: str) -> None:
    """Opens with its title and one heading, is no wider than the window, and axe-core finds nothing."""
    window = desk(site.local, dark=look == "dark", phone=look == "phone")
    seen = {}
    for path in paths(site, states=look == "light"):
        answer = window.page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert window.page.title().endswith("· Icewright")
        assert window.page.locator("h1").count() == 1, path
        assert window.page.evaluate(WIDER) <= 0, path
        assert window.page.evaluate(CROOKED) == [], path
        assert window.page.evaluate(BESIDE) == [], path
        if found := faults(window, *(COLOURS if look == "dark" else ())):
            seen[path] = found
    assert not seen, seen


@pytest.mark.parametrize("width", [390, 768])
def test_narrow_windows_show_the_whole_navigation(site: Site, desk: Opener, width: int) -> None:
    """Links to all pages and tabs are in sight, none is cut; a long name in a refusal does not widen the page."""
    page = desk(site.local, phone=True).page
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(table_url(CLICKS))
    for link in page.locator(":is(.nav, .tabs) a").all():
        box = link.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= width, link.inner_text()
    page.goto(f"/tables/lake/web/{'long_' * 40}")
    assert page.evaluate(WIDER) <= 0


def test_a_phone_shows_where_one_is_and_breaks_long_words(site: Site, desk: Opener) -> None:
    """The page's link, vacuum and the end of a token are in sight; a path in a reason does not widen the page."""
    window = desk(site.local, phone=True)
    site.token("viewer")
    window.page.goto("/settings")
    expect(window.page.locator(".nav [aria-current]")).to_be_in_viewport(ratio=1)
    expect(window.page.get_by_role("link", name="Vacuum of lake")).to_be_visible()
    window.page.locator("summary", has_text="Revoke").first.click()
    place = window.page.locator("form[action='/do/token/revoke'] button").first.bounding_box()
    assert place is not None
    assert place["x"] + place["width"] <= 390
    job_id = site.running(EVENTS)
    reason = f"refused: s3://lake/{'0123456789abcdef' * 8}.metadata.json is metadata of another table"
    told = {"job_id": job_id, "operation": "compact"}
    site.tell("operation_started", EVENTS, **told)
    site.tell("operation_finished", EVENTS, **told, state="skipped", summary=reason)
    site.finish(job_id, JobState.SKIPPED, reason)
    for path in (f"/jobs/{job_id}", "/activity", "/jobs"):
        window.page.goto(path)
        assert window.page.evaluate(WIDER) <= 0, path
    row = window.page.locator("tr", has_text=job_id[-8:])
    expect(row.get_by_text("compact, rewrite manifests").first).to_be_visible()


def test_a_long_name_covers_no_other_fact(site: Site, desk: Opener) -> None:
    """The facts of a job stand beside or below each other, on a phone too."""
    job_id = site.running(CLICKS)
    site.finish(job_id)
    for phone in (False, True):
        page = desk(site.local, phone=phone).page
        page.goto(f"/jobs/{job_id}")
        page.locator(".facts a").first.evaluate(f"link => link.textContent = 'lake.{'customer_session_' * 5}'")
        assert page.evaluate(COVERED) == []
        assert page.evaluate(WIDER) <= 0


def test_pages_for_strangers(site: Site, desk: Opener) -> None:
    """The login, also after a wrong token, and what is not there: as usable as all others."""
    window = desk(site.closed)
    for path in ("/login", "/tables?sort=health"):
        window.page.goto(path)
        assert window.page.locator("h1").inner_text() == "Log in"
        assert not faults(window)
    window.page.get_by_label("Token").fill("iw_000000000000_wrong")
    window.page.get_by_role("button", name="Log in by token").click()
    assert "not known" in window.page.get_by_role("alert").inner_text()
    assert not faults(window)
    window = desk(site.local)
    for path in ("/nowhere", "/tables/lake/web/nowhere", "/jobs/nowhere", "/tables?state=nowhere"):
        answer = window.page.goto(path)
        assert answer is not None
        assert answer.status in (404, 422)
        assert not faults(window)


def test_hostile_names(site: Site, desk: Opener) -> None:
    """Tables of any name are listed, found by their names, opened, run and paused; their names are text everywhere."""
    window = desk(site.local)
    page = window.page
    for ref in site.hostile[::3]:  # every name is asked for in tests without a browser
        page.goto(f"/tables?search={quote(ref.name)}&catalog=fleet")
        page.locator(f'tbody a[href="{table_url(ref)}"]').first.click()
        shown = " ".join(one_line(ref.name).split())
        assert page.locator("h1").inner_text() == shown, ref
        page.get_by_role("link", name="Runs", exact=True).click()
        assert page.locator("h1").inner_text() == shown, ref
    bold = page.goto(table_url(site.hostile[0], show="runs"))
    assert bold is not None
    page.goto("/jobs?state=failed")
    assert page.locator("main b").count() == 0
    assert "<b>no space</b>" in page.locator("tbody").inner_text()


def test_charts_are_drawn(site: Site, desk: Opener) -> None:
    """By Vega-Lite under a policy that lets no code be made of text; whole on a phone; tables without scripts."""
    window = desk(site.local)
    window.page.goto("/")
    figure = window.page.locator("figure.drawn").first
    figure.wait_for(timeout=40_000)  # the bundle is put together for the first who asks
    assert figure.locator("svg").count() == 1
    phone = desk(site.local, phone=True).page
    phone.goto("/")
    for chart in phone.locator("figure.chart").all():
        expect(chart).to_have_class("box chart drawn", timeout=40_000)
        assert chart.evaluate(CUT_OFF) == 0
    plain = desk(site.local, scripts=False)
    plain.page.goto("/")
    assert plain.page.locator("figure table tbody tr").count() >= 1


def test_by_keyboard(site: Site, desk: Opener) -> None:
    """Past the navigation with one key, and from there to everything that can be used."""
    window = desk(site.local)
    page = window.page
    page.goto(table_url(EVENTS))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.innerText || document.activeElement.value || ''"))
    assert {"Run now", "Dry run", "Runs", "Snapshots", "Settings", "compact"} <= reached
    page.goto("/tables")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("click")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_the_search_of_tables(site: Site, desk: Opener) -> None:
    """The key "/" leads to it from everywhere but a field; it offers tables, and Enter leads to the table."""
    window = desk(site.local)
    page = window.page
    page.goto("/queue")
    find = page.locator("[data-find]")
    page.keyboard.press("/")
    page.keyboard.type("web.click")
    assert find.input_value() == "web.click"
    page.keyboard.press("/")
    assert find.input_value() == "web.click/"
    page.keyboard.press("Backspace")
    find.fill("click")
    expect(page.locator(f"#found option[value='{CLICKS}']")).to_be_attached()
    find.fill("clicks")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.local}{table_url(CLICKS)}")


def test_themes(site: Site, desk: Opener) -> None:
    """As the system has it, until somebody chooses; the choice stays, and the page comes in it at once."""
    window = desk(site.local)
    page = window.page
    page.goto("/queue")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.goto("/jobs")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
