"""The pictures of the pages: `make pictures` over a small lakehouse."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.web.pages.conftest import Site
from tools.pictures import LOOKS, pages, take

pytestmark = [pytest.mark.web, pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_every_page_has_a_picture(site: Site, browser: Browser, tmp_path: Path) -> None:
    """Each place of the navigation, tab and state of a job has a name, and a picture as wide as the window."""
    found = pages(site.app)
    tabs = {f"table-{name}" for name in ("health", "runs", "snapshots", "recovery", "settings")}
    assert {"overview", "tables", "queue", "jobs", "alerts", "settings", "simulate", "job-failed", *tabs} <= set(found)
    few = {name: found[name] for name in ("overview", "table-runs")}
    assert take(browser, site.local, few, tmp_path) == len(few) * len(LOOKS)
    for look in LOOKS:
        for name in few:
            picture = (tmp_path / look.name / f"{name}.png").read_bytes()
            width, height = struct.unpack(">II", picture[16:24])
            assert width == look.width
            assert height >= look.height
