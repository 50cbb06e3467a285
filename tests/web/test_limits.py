"""Limits set by the API and on their page: who may, what is previewed, what follows at once."""

from __future__ import annotations

import re

import pytest

from icewright.core.permissions import Role
from tests.web.conftest import ELSEWHERE, Served
from tests.web.test_access import API, REQUIRED, bearer
from tests.web.test_pages import BROWSER, FORM, token_of

pytestmark = pytest.mark.external
URL, PAGE = f"{API}/limits", "/settings/limits"


@pytest.mark.parametrize("role", Role)
def test_admins_alone_set_limits(served: Served, role: Role) -> None:
    """Others are refused, and it is written down; the audit log has what changed from what."""
    client = served.client(served.app(access=REQUIRED), host=ELSEWHERE)
    headers = bearer(served, role, *(["lake"] if role is Role.OWNER else []))
    answer = client.put(URL, json={"set": {"limits.global": 9}}, headers=headers)
    entry = served.bench.store.audit.entries(None, None, 1)[0]
    assert (answer.status_code, entry.refused) == ((200, False) if role is Role.ADMIN else (403, True))
    if role is Role.ADMIN:
        changed = {"limits.global": [served.bench.limits.total, 9]}
        assert (entry.action, entry.target, entry.details["changed"]) == ("limits.change", "the limits", changed)
    assert served.runtime.limits().total == (9 if role is Role.ADMIN else served.bench.limits.total)


def test_what_is_set_holds_at_once_until_it_is_taken_back(served: Served) -> None:
    """The preview changes nothing; another's newer version is a conflict; each fault names its limit."""
    client = served.client(served.app())
    body = {"set": {"limits.global": 1, "limits.gb_hour_price": 0.5, "limits.namespaces.lake.hr.gb_hours_per_day": "3"}}
    preview = client.post(f"{URL}/preview", json=body).json()
    assert [(one["name"], one["after"]) for one in preview["changed"]] == [
        ("limits.global", 1),
        ("limits.namespaces.lake.hr.gb_hours_per_day", 3),
        ("limits.gb_hour_price", 0.5),
    ]
    before = client.get(URL).json()
    assert (before["version"], before["total"]) == (0, served.bench.limits.total)
    after = client.put(URL, json={**body, "version": 0}).json()
    assert (after["version"], after["total"], served.runtime.limits().gb_hour_price) == (1, 1, 0.5)
    (item,) = [item for item in after["items"] if item["name"] == "limits.global"]
    assert (item["value"], item["configured"], item["stored"]) == (1, served.bench.limits.total, True)
    assert client.put(URL, json={**body, "version": 0}).status_code == 409
    wrong_names = ("limits.global: ", "limits.per_worker: ", "pools.x.max_concurrent: ")
    wrong = client.put(URL, json={"set": {name.rstrip(": "): 0 for name in wrong_names}})
    assert (wrong.status_code, [wrong.text.count(name) for name in wrong_names]) == (422, [1, 1, 1]), wrong.text
    assert client.put(URL, json={"set": {}}).json()["total"] == served.bench.limits.total


def test_the_page_previews_limits_before_it_sets_them(served: Served) -> None:
    """Nothing is set before its preview was seen; what is wrong is said at its field; blank fields are the file's."""
    client = served.client(served.app())
    fields = {"csrf": token_of(client, PAGE), "version": "0"}

    def send(action: str, **more: str) -> str:
        return client.post(f"/do/limits/{action}", data={**fields, **more}, headers={**BROWSER, **FORM}).text

    wanted = {"knob.limits.global": "3", "knob.limits.gb_month_price": "null"}
    assert "changed a limit after the preview" in send("save", **wanted)
    shown = send("preview", **wanted)
    assert "Effect of the change" in shown
    (mark,) = re.findall(r'name="previewed" value="(\w+)"', shown)
    assert "is not a whole number of at least 1" in send("preview", **{"knob.limits.global": "0"})
    assert served.runtime.limits().total == served.bench.limits.total
    assert "The limits are set." in send("save", previewed=mark, **wanted)
    assert served.runtime.limits().total == 3
    page = client.get(PAGE, headers=BROWSER).text
    assert ('value="3"' in page, "limits.per_worker" in page) == (True, True)
    assert "changed meanwhile" in send("save", previewed=mark, **wanted)
