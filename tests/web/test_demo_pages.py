"""What the demo ends on: its pages over a service that works."""

from __future__ import annotations

import re
import time
from functools import partial

import httpx2
import pytest

from icewright.app.bootstrap import application, read_config
from icewright.app.demo.show import pages
from icewright.app.demo.tables import events
from icewright.app.environment import has_display
from tests.cli.workspace import Workspace

PAGE = "/tables/lake/web/events"
BROWSER = {"accept": "text/html"}


@pytest.mark.external
def test_the_service_of_the_demo(workspace: Workspace) -> None:
    """It finds the table by itself, shows it, and does what a form asks for."""
    workspace.write(
        "detect: {interval_seconds: 1}\nserver: {port: 0}\npolicy:\n  - set: {rewrite_manifests.enabled: false, "
        "remove_orphans.enabled: false, expire_snapshots.enabled: false}\n"
    )
    workspace.make(partial(events, manifests=12, rows_per_file=5))
    with application(read_config(workspace.path), kind="demo") as app, pages(app) as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        with httpx2.Client(base_url=address, headers=BROWSER, follow_redirects=True, timeout=30) as browser:
            page = _until(browser, PAGE, "Run now", "rewrite_manifests.enabled is false")
            csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
            form = {"table": "lake.web.events", "operation": "rewrite_manifests", "how": "run", "csrf": csrf}
            started = browser.post("/do/run", data=form)
            assert "Started rewrite manifests" in started.text
            ended = _until(browser, started.url.path, "succeeded", "rewrote 12 manifests into 1")
            assert "committed" in ended
            assert "12</s> → 1" in browser.get(f"{PAGE}?show=runs").text


def test_a_browser_is_opened_where_somebody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux: where there is a display."""
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_display()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert has_display()


def _until(browser: httpx2.Client, path: str, *words: str) -> str:
    """The page, once it says all of the words."""
    until = time.monotonic() + 60
    while True:
        answer = browser.get(path)
        if answer.status_code == 200 and all(word in answer.text.replace("<wbr>", "") for word in words):
            return answer.text
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)
