"""Policies, simulation, alerts, audit, settings and activity, in Chromium: what people do there, and who may."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from icewright.app.web.pages import policy_form
from icewright.core.alerts import AlertRule, Begin, Condition, Severity
from icewright.testing import NOW
from tests.web.pages.conftest import CLICKS, EVENTS, Opener, Site
from tests.web.pages.test_every_page import WIDER, faults
from tests.web.pages.test_flows import log_in

pytestmark = [pytest.mark.web, pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PATHS = (
    "/policies",
    "/policies/edit?scope=lake.aged",
    "/policies/simulate",
    "/alerts",
    "/settings",
    "/settings/limits",
    "/activity",
)
MORE = ("/vacuum?catalog=lake", "/audit", "/audit?actor=nobody", "/alerts?show=past", "/activity?kind=vacuumed")
KNOB = "compact.min_input_files"


def stored(site: Site, *scope: str, **settings: object) -> int:
    """Store a rule and return its version."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    version = site.store.rules.put(scope, named, "eve <i>", site.app.runtime.clock.now(), None)
    assert version is not None
    return int(version)


def fill(page: Page, scope: str, value: str) -> None:
    """Fill in the form of a new rule."""
    page.goto("/policies/edit")
    page.get_by_label("Tables that match").fill(scope)
    page.locator("summary", has_text="Compact").click()
    page.get_by_label(KNOB).fill(value)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_is_accessible_and_fits_its_window(site: Site, desk: Opener, look: str) -> None:
    """Each page has one heading, is no wider than the window, and axe-core finds no fault."""
    stored(site, "lake", "aged", windows="mon-fri 22:00-06:00")
    site.token("viewer")
    window = desk(site.local, dark=look == "dark", phone=look == "phone")
    seen = {}
    for path in (*PATHS, *(MORE if look == "light" else ())):
        answer = window.page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert window.page.locator("h1").count() == 1, path
        assert window.page.evaluate(WIDER) <= 0, path
        if found := faults(window):
            seen[path] = found
    assert not seen, seen


def test_a_rule_from_its_draft_to_its_end(site: Site, desk: Opener) -> None:
    """What is wrong is said at its field; what would change is seen before it is saved; then it is removed."""
    page = (window := desk(site.local)).page
    fill(page, "lake.web.clicks", "many")
    page.get_by_role("button", name="Preview").click()
    field = page.get_by_label(KNOB)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".fault")).to_contain_text("'many' is not a whole number")
    assert not faults(window)
    field.fill("17")
    page.get_by_role("button", name="Preview").click()
    preview = page.locator("#preview")
    expect(preview).to_contain_text("1 table match, 1 table would change")
    expect(preview.locator("tbody")).to_contain_text("5 → 17")
    assert not faults(window)
    assert not site.store.rules.versions(CLICKS.parts)
    page.get_by_label(KNOB).fill("18")
    page.get_by_role("button", name="Save the rule").click()
    expect(page.get_by_role("alert")).to_contain_text("Not saved")
    page.get_by_role("button", name="Save the rule").click()
    expect(page.get_by_role("status")).to_contain_text("The rule lake.web.clicks is saved")
    (version,) = site.store.rules.versions(CLICKS.parts)
    assert version.settings == {KNOB: 18}
    page.get_by_role("link", name="Change lake.web.clicks").click()
    page.get_by_role("button", name="Remove the rule").click()
    expect(page.locator("#preview tbody")).to_contain_text("18 → 5")
    page.locator("#preview").get_by_role("button", name="Remove the rule").click()
    expect(page.get_by_role("status")).to_contain_text("is removed")
    assert not site.store.rules.versions(CLICKS.parts)[0].settings
    assert [e.action for e in site.store.audit.entries(None, None, 2)] == ["policies.change"] * 2


def test_a_limit_from_its_preview_to_its_end(site: Site, desk: Opener) -> None:
    """What would change is shown before it is set, a fault at its field; a viewer sees the limits and no form."""
    page = desk(site.local).page
    page.goto("/settings")
    page.get_by_role("link", name="Change", exact=True).click()
    page.get_by_label("limits.global").fill("0")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".fault")).to_have_text("'0' is not a whole number of at least 1")
    page.get_by_label("limits.global").fill("7")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("limits.global")
    page.get_by_role("button", name="Set the limits").click()
    expect(page.locator(".flash")).to_have_text("The limits are set.")
    assert site.app.runtime.limits().total == 7
    stored_limits = site.store.limits.get()
    assert stored_limits is not None
    site.store.limits.put({}, "eve", site.app.runtime.clock.now(), stored_limits.version)
    other = desk(site.closed).page
    log_in(other, site.token("viewer"), "/settings/limits")
    expect(other.get_by_role("button", name="Preview")).to_have_count(0)
    expect(other.locator("main")).to_contain_text("limits.global")


def test_two_who_change_the_same_rule(site: Site, desk: Opener) -> None:
    """Who saw an older version is told, and overwrites nothing."""
    stored(site, "lake", "shared", importance="high")
    page = desk(site.local).page
    page.goto("/policies/edit?scope=lake.shared")
    page.get_by_label("importance", exact=True).select_option("low")
    page.get_by_role("button", name="Preview").click()
    stored(site, "lake", "shared", importance="critical")
    page.get_by_role("button", name="Save the rule").click()
    expect(page.get_by_role("alert")).to_contain_text("changed meanwhile")
    assert site.store.rules.versions(("lake", "shared"))[0].settings == {"importance": "critical"}
    page.get_by_role("link", name="Read it again").click()
    expect(page.get_by_label("importance", exact=True)).to_have_value("critical")


def test_who_may_change_what(site: Site, desk: Opener) -> None:
    """A viewer tries rules out and saves none; an owner those that reach nothing of others; refusals are written."""
    page = desk(site.closed).page
    log_in(page, site.token("viewer"), "/policies/edit")
    fill(page, "lake", "9")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("can save this rule")
    expect(page.get_by_role("button", name="Save the rule")).to_have_count(0)
    answer = page.goto("/audit")
    assert answer is not None
    assert answer.status == 403
    page.goto("/settings")
    expect(page.locator("#tokens")).to_have_count(0)
    expect(page.get_by_role("link", name="Audit")).to_have_count(0)
    page = desk(site.closed).page
    log_in(page, site.token("owner", "lake.web"), "/policies/edit")
    fill(page, "lake", "9")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("button", name="Save the rule")).to_have_count(0)
    page.locator("#rule").evaluate("form => { form.action = '/do/policy/save'; form.submit(); }")
    expect(page.locator("h1")).to_have_text("Forbidden")
    assert site.store.audit.entries(None, None, 1, refused=True)[0].action == "policies.change"
    page.goto("/activity")
    expect(page.locator("main")).not_to_contain_text("fleet")


def test_hostile_rules_and_tokens(site: Site, desk: Opener) -> None:
    """Whatever a pattern, an author or a token is called, it is text."""
    page = desk(site.local).page
    name = "<script>alert(1)</script>\"'%2F..?#"
    stored(site, "lake", name, importance="low")
    page.goto("/policies")
    page.get_by_role("link", name=f"Change lake.`{name}`").click()
    expect(page.locator("h1")).to_contain_text(name)
    expect(page.locator("main")).to_contain_text("eve <i>")
    assert page.locator("main i").count() == 0
    page.goto("/settings")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create a token").click()
    expect(page.get_by_role("status")).to_contain_text(name)
    page.goto("/audit?action=tokens.manage")
    expect(page.locator("tbody tr").first).to_contain_text(name)


def test_a_token_is_shown_once(site: Site, desk: Opener) -> None:
    """The token gives access to its scope until it is revoked; faults of the form are shown at their field."""
    window = desk(site.local)
    page = window.page
    page.goto("/settings")
    page.get_by_label("Name", exact=True).fill("nightly reports")
    page.get_by_label("Role").select_option("owner")
    page.get_by_role("button", name="Create a token").click()
    expect(page.locator(".fault")).to_contain_text("an owner owns catalogs or namespaces")
    assert not faults(window)
    page.get_by_label("Scope").fill("lake.web")
    page.get_by_role("button", name="Create a token").click()
    text = page.get_by_label("The token", exact=True).inner_text()
    assert re.fullmatch(r"iw_[0-9a-f]{12}_\S+", text)
    page.goto("/settings")
    assert text not in page.content()
    other = desk(site.closed).page
    log_in(other, text, "/tables")
    expect(other.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Revoke the token nightly reports").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    other.goto("/tables")
    expect(other.locator("h1")).to_have_text("Log in")


def test_alerts_and_their_channels(site: Site, desk: Opener) -> None:
    """Open alerts are listed with their table; the test message reports that no channel is configured."""
    page = desk(site.local).page
    page.goto("/alerts")
    expect(page.locator("tbody")).to_contain_text("<b>no space</b>")
    assert page.locator("main b").count() == 0
    page.get_by_role("button", name="Send a test message").click()
    expect(page.get_by_role("status")).to_contain_text("No channel is configured")


def test_a_knob_is_found(site: Site, desk: Opener) -> None:
    """Common knobs come first; a search of names and meanings hides the others, and groups without any."""
    page = desk(site.local).page
    page.goto("/policies/edit")
    expect(page.locator(".knob:visible label").first).to_have_text("preset")
    page.get_by_label("Find a knob").fill("manifests threshold")
    expect(page.locator(".knob:visible")).to_have_count(0)
    page.get_by_label("Find a knob").fill("recovery daily")
    expect(page.locator(".knob:visible label")).to_have_text(["recovery_points.daily"])
    page.get_by_label("Find a knob").fill("")
    expect(page.locator("details.knobs:visible")).to_have_count(len(policy_form.groups({}, {})))


def test_an_alert_is_acknowledged(site: Site, desk: Opener) -> None:
    """A note and a silence are recorded; a live update of the page keeps what is being typed."""
    page = desk(site.local).page
    page.goto("/alerts")
    row = page.locator("tbody tr", has_text="no space")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    row.locator("summary").click()
    row.get_by_label("Note").fill("<i>ann</i> looks")
    changed = Condition(AlertRule.NO_DETECTION, "elsewhere", "nothing for long")
    site.store.alerts.record_changes([Begin(changed, Severity.CRITICAL, raised=True)], (), NOW)
    expect(page.locator("tbody")).to_contain_text("nothing for long")
    row.get_by_label("Silence").select_option("8")
    row.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("status")).to_contain_text("Acknowledged and silenced for 8 h")
    expect(row).to_contain_text("“<i>ann</i> looks”; silent, ends in")
    row.locator("summary").click()
    row.get_by_role("button", name="Withdraw").click()
    expect(page.get_by_role("status")).to_contain_text("Withdrawn")
    expect(row).not_to_contain_text("Acknowledged by")


def test_activity_follows(site: Site, desk: Opener) -> None:
    """New events appear without a reload, and the filter by kind hides others."""
    page = desk(site.local).page
    page.goto("/activity")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    site.tell("paused", EVENTS, state="<b>three</b> failed")
    expect(page.locator("tbody tr").first).to_contain_text("<b>three</b> failed")
    page.get_by_label("Kind").select_option("job_finished")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody")).not_to_contain_text("three")


def test_a_policy_is_simulated(site: Site, desk: Opener) -> None:
    """The simulation of recorded snapshots is shown beside cron and the current policy, or the faults of the form."""
    window = desk(site.local)
    page = window.page
    fill(page, "lake", "9")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_label("which sets")).to_have_value(f"{KNOB}=9")
    page.get_by_label("which sets").fill("compact.min_files=9")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_contain_text("there is no such knob")
    page.get_by_label("which sets").fill(f"{KNOB}=9")
    page.get_by_label("Days").fill("3")
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator("h2").first).to_have_text("3 tables as their snapshots record them, 3 days")
    assert page.locator("thead th").all_inner_texts() == ["Measure", "cron", "now", "proposed"]
    assert page.locator(".plot img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert not faults(window)
