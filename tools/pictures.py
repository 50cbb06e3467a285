"""Take a picture of every page, light, dark and on a phone, over a lakehouse: `make pictures`.

Without `--config` the pages are those of the demo's lakehouse, which the first run makes and later runs use again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ViewportSize, sync_playwright

from icewright.app.bootstrap import Application, application, read_config
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.pages import limits, policies, simulate
from icewright.app.web.pages.jobs import PATH as JOBS
from icewright.app.web.pages.render import NAVIGATION, VEGA, assets
from icewright.app.web.pages.table import TABS
from icewright.app.web.pages.urls import table_url
from icewright.app.web.running import serving
from icewright.core.runs import JobState
from icewright.ports.views import TableQuery

OUT = Path("build/pictures")
_JOBS = 200  # of which the newest of each state is shown
_DRAWN_MS = 30_000  # for all charts of a page
_CHARTS = "document.querySelectorAll('figure[data-spec]:not(.drawn)').length === 0"


@dataclass(frozen=True, slots=True)
class Look:
    """A window and theme in which pages are looked at."""

    name: str
    width: int
    height: int
    theme: Literal["light", "dark"] = "light"


LOOKS = (Look("light", 1280, 900), Look("dark", 1280, 900, "dark"), Look("phone", 390, 844))


def pages(app: Application) -> Mapping[str, str]:
    """Return the path of each page by the name of its picture: the busiest table, the newest job of each state."""
    found = {item.title.lower(): item.path for item in NAVIGATION}
    found |= {
        "policies-edit": f"{policies.PATH}/edit",
        "simulate": simulate.PATH,
        "limits": limits.PATH,
        "not-found": "/nowhere",
    }
    store = app.runtime.store
    jobs = store.jobs.list(limit=_JOBS)
    found |= {f"job-{job.state}": f"{JOBS}/{job.job_id}" for job in reversed(jobs)}
    blocked = store.views.list_tables(TableQuery(states=("blocked",)), None, None, 1).items
    if blocked:
        found["table-blocked"] = table_url(blocked[0].row.ref)
    names = [job.ref for job in jobs if job.state is JobState.SUCCEEDED]
    if names:
        busiest = max(names, key=names.count)
        found |= {f"table-{title.lower()}": table_url(busiest, show=show) for show, title in TABS}
    return found


def take(browser: Browser, address: str, paths: Mapping[str, str], out: Path, looks: Sequence[Look] = LOOKS) -> int:
    """Take a picture of each page in each look as `out/LOOK/NAME.png`; return how many there are."""
    assets()[VEGA].content()  # is built here, and not while a page waits for its charts
    for look in looks:
        size: ViewportSize = {"width": look.width, "height": look.height}
        context = browser.new_context(base_url=address, viewport=size, color_scheme=look.theme)
        page = context.new_page()
        for name, path in paths.items():
            page.goto(path)
            page.wait_for_function(_CHARTS, timeout=_DRAWN_MS)
            page.screenshot(path=out / look.name / f"{name}.png", full_page=True)
        context.close()
    return len(paths) * len(looks)


@contextmanager
def served(app: Application) -> Iterator[str]:
    """Serve the pages on a free port of this machine, without a service behind them; yield their address."""
    made = create_app(app, Settings(requests_per_second=10**6), ServiceStatus(list, bytes))
    with serving(made, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"


def demo(folder: Path) -> Path:
    """Return the configuration of the demo's lakehouse in a folder, making it where it is not there yet."""
    config = folder / "icewright.yaml"
    if not config.is_file():
        command = [sys.executable, "-m", "icewright", "demo", "--once", "--dir", str(folder)]
        subprocess.run(command, check=True)  # noqa: S603 - our own command
    return config


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, help="configuration of the lakehouse; without it the demo's")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", default="", help="part of the names of the pictures to take")
    asked = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("pictures need Chromium: apt-get install chromium")
    config = asked.config or demo(asked.out / "lakehouse")
    with application(read_config(config), kind="pictures") as app, served(app) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        paths = {name: path for name, path in pages(app).items() if asked.only in name}
        print(f"{take(browser, address, paths, asked.out)} pictures in {asked.out}")
        browser.close()


if __name__ == "__main__":
    main()
