"""Policies, simulation, alerts, audit, settings and activity as a server answers them: who gets what, and limits."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.app.simulating import BEGIN, GeneratedFleet
from icewright.app.web.identity import COOKIE, Access
from icewright.app.web.pages import alerts as alerts_page
from icewright.app.web.pages import policy_form
from icewright.app.web.pages.simulate import Simulated, SimulationRequest, Simulations
from icewright.app.web.problems import Problem
from icewright.core.alerts import AlertRule, Begin, Condition, Severity
from icewright.core.guardrails import parse_guardrail
from icewright.core.permissions import Action, Grant, Principal, Role, Via
from icewright.core.policy import KNOBS
from icewright.core.simulation.run import Slots, Span
from icewright.ports.access import AuditRow
from icewright.testing import NOW
from tests.web.conftest import ELSEWHERE, Served
from tests.web.test_access import API, bearer
from tests.web.test_api import TABLE
from tests.web.test_events import problem
from tests.web.test_pages import BROWSER, token_of

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

PAGES = {
    "/policies": Action.POLICIES_READ,
    "/policies/edit": Action.POLICIES_READ,
    "/policies/edit?scope=lake": Action.POLICIES_READ,
    "/policies/simulate": Action.POLICIES_PREVIEW,
    "/alerts": Action.ALERTS_READ,
    "/audit": Action.AUDIT_READ,
    "/settings": Action.SYSTEM_READ,
    "/settings/limits": Action.SYSTEM_READ,
    "/vacuum?catalog=lake": Action.CATALOGS_VACUUM,
    "/activity": Action.JOBS_READ,
}
FORMS = {
    "/do/policy/preview": Action.POLICIES_PREVIEW,
    "/do/policy/save": Action.POLICIES_CHANGE,
    "/do/policy/simulate": Action.POLICIES_PREVIEW,
    "/do/simulate": Action.POLICIES_PREVIEW,
    "/do/alerts/test": Action.ALERTS_TEST,
    "/do/alerts/acknowledge": Action.ALERTS_ACKNOWLEDGE,
    "/do/limits/preview": Action.LIMITS_CHANGE,
    "/do/limits/save": Action.LIMITS_CHANGE,
    "/do/catalog": Action.CATALOGS_CHANGE,
    "/do/vacuum": Action.CATALOGS_VACUUM,
    "/do/token/create": Action.TOKENS_MANAGE,
    "/do/token/revoke": Action.TOKENS_MANAGE,
}
RULE = {"scope": "lake", "knob.compact.min_input_files": "17"}


@pytest.mark.parametrize("role", Role)
def test_who_gets_which_page(served: Served, role: Role) -> None:
    """As the table of permissions says; a form of somebody who may not is refused, and written down."""
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    headers = BROWSER | bearer(served, role, *(["lake"] if role is Role.OWNER else []))
    who = Principal("x", Via.TOKEN, (Grant(role, (("lake",),) if role is Role.OWNER else ()),))
    for path, action in PAGES.items():
        assert client.get(path, headers=headers).status_code == (200 if who.may_somewhere(action) else 403), path
    csrf = token_of(client, "/policies/edit", headers)
    for path, action in FORMS.items():
        if not who.may_somewhere(action):
            assert client.post(path, data={"csrf": csrf}, headers=headers).status_code == 403, path
            assert served.bench.store.audit.entries(None, None, 1, refused=True)[0].action == str(action)


def test_who_acknowledges_which_alert(served: Served) -> None:
    """Whoever works on the table, nobody who does not see it; what is everybody's, only who may everywhere."""
    store, now = served.bench.store, served.bench.clock.now()
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    about = Condition(AlertRule.JOB_FAILED, str(served.ref), "no space", served.ref)
    ours = Condition(AlertRule.NO_DETECTION, "lake", "nothing")
    store.alerts.record_changes([Begin(one, Severity.WARNING, raised=True) for one in (about, ours)], (), now)
    table_alert, catalog_alert = sorted(alert.id for alert in store.alerts.list())
    inside, outside = bearer(served, "operator", "lake.sales"), bearer(served, "operator", "lake.hr")
    body = {"note": "mine", "silent_hours": 2}
    for headers, alert_id, status in (
        (outside, table_alert, 404),
        (inside, catalog_alert, 404),
        (inside, 4711, 404),
        (bearer(served, "viewer"), table_alert, 403),
        (inside, table_alert, 200),
        (bearer(served, "operator"), catalog_alert, 200),
    ):
        url = f"/api/v1/alerts/{alert_id}/acknowledgement"
        assert client.put(url, json=body, headers=headers).status_code == status, (alert_id, status)
    alerts = client.get("/api/v1/alerts", headers=inside).json()
    assert [(one["id"], one["acknowledgement"]["note"]) for one in alerts] == [(table_alert, "mine")]
    assert client.put(url, json={"silent_hours": 721}, headers=inside).status_code == 422
    url = f"/api/v1/alerts/{table_alert}/acknowledgement"
    assert client.delete(url, headers=inside).json()["acknowledgement"] is None
    done = [entry for entry in store.audit.entries(None, None, 10) if not entry.refused]
    assert [entry.target for entry in done] == [f"alert {about.key}", f"alert {ours.key}", f"alert {about.key}"]
    assert done[2].details["silent_until"] == (now + timedelta(hours=2)).isoformat()


@pytest.mark.parametrize("path", FORMS)
def test_forms_come_from_our_pages(served: Served, path: str) -> None:
    """Without their token, or from another site, none does anything."""
    served.log_in("secret")
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    client.cookies.set(COOKIE, "secret")
    right = token_of(client, "/policies/edit")
    for wrong in ({}, {"csrf": "x"}):
        assert client.post(path, data=RULE | wrong, headers=BROWSER).status_code == 403
    foreign = {"origin": "https://evil.example", **BROWSER}
    assert client.post(path, data=RULE | {"csrf": right}, headers=foreign).status_code == 403
    assert not served.bench.store.rules.versions()
    assert not served.bench.store.access.tokens()


def test_what_is_saved_was_looked_at(served: Served) -> None:
    """A rule without the mark of its preview is shown again, and not saved; what is wrong is said at its field."""
    served.evaluate()
    client = served.client()
    sent = RULE | {"csrf": token_of(client, "/policies/edit")}
    page = client.post("/do/policy/save", data=sent, headers=BROWSER)
    assert "Not saved" in page.text
    assert not served.bench.store.rules.versions()
    mark = policy_form.mark("lake", {"compact.min_input_files": "17"}, taken_back=False)
    saved = client.post("/do/policy/save", data=sent | {"previewed": mark}, headers=BROWSER)
    assert "The rule lake is saved" in saved.text
    assert served.bench.store.rules.versions()[0].settings == {"compact.min_input_files": 17}
    served.client().put(f"{API}/policies/lake", json={"set": {"importance": "high"}})
    mark = policy_form.mark("lake", {}, taken_back=True)
    stale = {"csrf": sent["csrf"], "scope": "lake", "known": "lake", "version": "1", "take_back": "yes"}
    answer = client.post("/do/policy/save", data=stale | {"previewed": mark}, headers=BROWSER)
    assert (answer.status_code, "changed meanwhile" in answer.text) == (409, True)
    for wrong, said in (
        ({"scope": ""}, "names no catalog"),
        ({"scope": "lake..x"}, "names no catalog"),
        ({"knob.nothing": "1"}, "there is no such knob"),
        ({"knob.compact.min_input_files": "1"}, "is not a whole number"),
        ({"knob.compact.min_input_files": ""}, "fill in a field"),
        ({"known": "lake", "version": "x"}, "cannot be read"),
    ):
        answer = client.post("/do/policy/preview", data=sent | wrong, headers=BROWSER)
        assert answer.status_code == 422, wrong
        assert said in answer.text, wrong
    unknown = client.post("/do/policy/save", data=sent | {"scope": "nowhere"}, headers=BROWSER)
    assert "No visible table matches" in unknown.text


def test_fields_of_knobs() -> None:
    """Every knob has one; settings come back from their fields as they were."""
    settings = {
        "windows": None,
        "compact.enabled": False,
        "compact.target_file_size_mb": 256.5,
        "remove_orphans.equal_schemes": {"s3a": "s3", "s3n": "s3"},
    }
    texts = policy_form.texts_of(settings)
    assert {name: KNOBS[name].parse(one) for name, one in policy_form.settings_in(texts).items()} == settings
    fields = [field for group in policy_form.groups(texts, {}) for field in group.fields]
    assert [field.knob.name for field in fields if field.text] == sorted(settings, key=list(KNOBS).index)
    assert {field.knob.name for field in fields} == KNOBS.keys()


def test_simulations_are_bounded(served: Served) -> None:
    """One that takes too long is ended, with the service too; of the others one runs at a time."""
    span = Span(BEGIN, BEGIN + timedelta(days=7))
    asked = SimulationRequest(GeneratedFleet("mixed", 500, 0), {"cron": None, "again": None}, span, Slots())
    simulations, closing = Simulations(), threading.Event()
    for seconds, status in ((0.1, 422), (60.0, 503)):
        with pytest.raises(Problem) as refused:
            simulations.run(asked, closing, seconds)
        assert refused.value.status == status
        closing.set()
    with simulations._busy, pytest.raises(Problem, match="another simulation runs"):
        simulations.run(asked, closing)
    client = served.client()
    sent = {"csrf": token_of(client, "/policies/simulate"), "of": "daily", "tables": "3", "days": "1", "set": ""}
    for wrong in ({"tables": "501"}, {"days": "8"}, {"of": "x"}, {"set": "x"}, {"preset": "x"}):
        assert client.post("/do/simulate", data=sent | wrong, headers=BROWSER).status_code == 422, wrong
    page = client.post("/do/simulate", data=sent | {"preset": "streaming"}, headers=BROWSER)
    assert "made-up fleet daily: 3 tables, 1 day<" in page.text
    assert "proposed: preset streaming" in page.text


def test_simulations_are_of_who_asked() -> None:
    """Nobody else is shown one; the last few are kept."""
    simulations = Simulations()
    first = simulations.keep(Simulated("ann", "t", "", {}, None, {}))
    assert simulations.get(first, "ann").title == "t"
    with pytest.raises(Problem):
        simulations.get(first, "eve")
    for _ in range(20):
        simulations.keep(Simulated("ann", "t", "", {}, None, {}))
    with pytest.raises(Problem, match="the last few"):
        simulations.get(first, "ann")


def test_settings_show_no_secret(served: Served) -> None:
    """Of a token its name, never its digest; of who may do what, all of it."""
    served.log_in("secret")
    bearer(served, Role.VIEWER)
    page = served.client().get("/settings", headers=BROWSER).text
    (token,) = served.bench.store.access.tokens()
    assert token.digest not in page
    assert token.id in page
    assert all(str(action) in page.replace("<wbr>", "") for action in Action)


def test_activity_goes_on(served: Served) -> None:
    """Page by page; what nobody can mean is refused."""
    for n in range(60):
        served.bench.store.activity.record("paused", NOW, served.ref, state=f"<b>{n}</b>")
    served.bench.store.activity.record("copied", NOW, served.ref, summary="3 files of 5 KB copied")
    client = served.client()
    page = client.get("/activity", headers=BROWSER).text
    assert "Copied" not in page.partition("<tbody>")[2]  # its summary has the verb
    assert '<span class="cap">copy</span>' in page
    assert "&lt;b&gt;59&lt;/b&gt;" in page
    following = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "&lt;b&gt;0&lt;/b&gt;" in client.get(following, headers=BROWSER).text
    for path in ("/activity?cursor=x", "/audit?outcome=x", "/alerts?severity=x", "/audit?range=x", "/alerts?range=x"):
        assert client.get(path, headers=BROWSER).status_code == 422
    assert client.get("/alerts?show=x", headers=BROWSER).status_code == 404


def test_alerts_and_audit_have_a_time_range(served: Served) -> None:
    """What began or happened before it is not listed."""
    store, now = served.bench.store, served.bench.clock.now()
    about = Condition(AlertRule.JOB_FAILED, str(served.ref), "no space", served.ref)
    for hours, name in ((3, "ann"), (0, "eve")):
        at = now - timedelta(hours=hours)
        store.audit.append(AuditRow(at, name, "token", "jobs.run", "x", None, False, "here", {}))
    store.alerts.record_changes([Begin(about, Severity.WARNING, raised=True)], (), now - timedelta(hours=3))
    client = served.client()

    def shown(path: str, text: str) -> bool:
        return text in client.get(path, headers=BROWSER).text

    assert [shown(f"/audit?range={of}", "ann") for of in ("", "6h", "1h")] == [True, True, False]
    assert shown("/audit?range=1h", "eve")
    assert [shown(f"/alerts?range={of}", "no space") for of in ("", "6h", "1h")] == [True, True, False]


def test_alerts_are_found_by_name_and_come_in_pages(served: Served) -> None:
    """Fifty to a page; the search takes a part of what an alert is about."""
    store, now = served.bench.store, served.bench.clock.now()
    about = [Condition(AlertRule.CATALOG_UNREACHABLE, f"lake{n}", f"down: {n}.") for n in range(60)]
    store.alerts.record_changes([Begin(one, Severity.WARNING, raised=True) for one in about], (), now)
    client = served.client()
    first = client.get("/alerts", headers=BROWSER).text
    following = first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    pages = [first, client.get(following, headers=BROWSER).text]
    assert [page.count("down: ") for page in pages] == [50, 10]
    assert ["data-live=" in page for page in pages] == [True, False]
    assert ["51\u201360 of 60" in page for page in pages] == [False, True]
    found = client.get("/alerts?search=LAKE59", headers=BROWSER).text
    assert (found.count("down: "), "down: 59." in found) == (1, True)
    assert client.get("/api/v1/alerts?search=lake59").json()[0]["message"] == "down: 59."


def test_a_page_of_alerts_says_what_it_leaves_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter and the sight of the caller choose among all alerts, not among the newest; past ones are apart."""
    monkeypatch.setattr(alerts_page, "_MOST", 1)
    store, now = served.bench.store, served.bench.clock.now()
    ours = Condition(AlertRule.JOB_FAILED, str(served.ref), "no space", served.ref)
    down = Condition(AlertRule.CATALOG_UNREACHABLE, "lake", "it is down")
    store.alerts.record_changes([Begin(ours, Severity.WARNING, raised=True)], (), now - timedelta(hours=1))
    store.alerts.record_changes([Begin(down, Severity.CRITICAL, raised=True)], (), now)
    client = served.client(served.app(access=Access(required=True)), host=ELSEWHERE)
    every, scoped = bearer(served, "viewer"), bearer(served, "viewer", "lake.sales")
    for path, headers, shown in (
        ("/alerts", every, (True, False, True)),
        ("/alerts?severity=warning", every, (False, True, False)),
        ("/alerts", scoped, (False, True, False)),
        ("/alerts?show=past", every, (False, False, False)),
    ):
        page = client.get(path, headers=headers | BROWSER).text
        found = tuple(text in page for text in ("it is down", "no space", "the newest 1 alerts"))
        assert found == shown, path
    for headers, counts in ((every, {"warning": 1, "critical": 1}), (scoped, {"warning": 1})):
        assert client.get("/api/v1/overview", headers=headers).json()["alerts"] == counts
    asked = client.get("/api/v1/alerts?severity=warning&limit=1", headers=every).json()
    assert [one["message"] for one in asked] == ["no space"]


MODE = "remove_orphans.mode in report, confirm"


@pytest.mark.cases(151)
def test_guardrails_of_choices(served: Served) -> None:
    """They are listed as they are written, and refuse rules and jobs that pass them, each fault under its knob."""
    served.evaluate()
    served.bench.guardrails = (parse_guardrail("guardrails[0]", MODE),)
    client, body = served.client(), {"set": {"remove_orphans.mode": "delete"}}
    (listed,) = client.get(f"{API}/policies").json()["guardrails"]
    assert str(parse_guardrail("guardrails[0]", listed)) == listed == MODE
    for call in (
        client.put(f"{API}/policies/lake.sales", json=body),
        client.post(f"{API}/policies/lake.sales/preview", json=body),
        client.post(f"{TABLE}/jobs", json=body | {"operations": ["remove_orphans"]}),
        client.post(f"{TABLE}/jobs", json=body | {"operations": ["remove_orphans"], "dry_run": True}),
    ):
        assert MODE in str(problem(call, 422)["errors"])
    page = client.post(
        "/do/policy/preview",
        data={"csrf": token_of(client, "/policies/edit"), "scope": "lake.sales", "knob.remove_orphans.mode": "delete"},
        headers=BROWSER,
    )
    fault = re.search(r'id="knob.remove_orphans.mode-fault">([^<]*)<', page.text)
    assert fault is not None
    assert f"passes the guardrail {MODE}" in fault[1]


@pytest.mark.cases(151)
def test_ignored_properties(served: Served) -> None:
    """A table, its knobs and both sides of its page name what its writer may not set; `/knobs` says what they may."""
    properties = {"icewright.importance": "critical"}
    served.bench.catalog.put(replace(served.bench.catalog.load(served.ref), properties=properties))
    served.evaluate()
    client = served.client()
    (ignored,) = client.get(TABLE).json()["ignored_properties"]
    assert client.get(f"{TABLE}/knobs").json()["ignored_properties"] == [ignored]
    assert (ignored["property"], ignored["knob"], ignored["value"]) == (
        *("icewright.importance", "importance", "critical"),
    )
    assert client.get(TABLE).json()["importance"] == "normal"
    for side in ("", "?show=knobs"):
        page = client.get(f"/tables/lake/sales/orders{side}", headers=BROWSER).text
        assert "Ignored properties" in page
        assert "properties.allow: importance" in page
    said = {knob["name"]: knob["by_property"] for knob in client.get(f"{API}/knobs").json()}
    assert (said["importance"], said["compact.strategy"], said["compact.enabled"]) == ("no", "yes", "false")
