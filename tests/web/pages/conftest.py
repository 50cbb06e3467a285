"""What tests of the pages share: a lakehouse with a past, real servers over it, and Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import Application, application, pyiceberg_catalog_properties, read_config
from icewright.app.demo import tables
from icewright.app.demo.lake import Lake
from icewright.app.sections import AuthSection
from icewright.app.tokens import new_token
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.identity import access_of
from icewright.app.web.running import serving
from icewright.core.permissions import grant
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate, thresholds
from icewright.flow.alert import alert_due
from icewright.flow.cycle import detect_and_evaluate
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.queue import Planning
from icewright.ports import Pointer, SnapshotPin, Trigger
from icewright.testing import facts, knobs, manifests, metadata, partition, spec
from tests.cli.workspace import no_spark
from tests.configuration import CONFIG
from tests.web.test_api import HOSTILE

FLEET = 120
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
ELSEWHERE = re.compile(r"^https?://(?!(127\.0\.0\.1|localhost):)")
PATIENCE = 20_000  # milliseconds: other tests run at the same time
CLICKS, EVENTS = TableRef.parse("lake.web.clicks"), TableRef.parse("lake.web.events")
_POLICY = """
policy:
  - {match: lake.web, set: {importance: high, expire_snapshots.min_snapshots_to_keep: 3}}
  - {match: fleet, set: {compact.enabled: false}}
limits: {global: 1}
"""


@dataclass
class Site:
    """Servers over one lakehouse: one for this machine alone, one where people log in."""

    app: Application
    home: Path
    stack: ExitStack
    hostile: list[TableRef] = field(default_factory=list)
    local: str = ""
    closed: str = ""

    @property
    def store(self) -> Any:
        """The state store."""
        return self.app.runtime.store

    def token(self, role: str, *scopes: str) -> str:
        """Somebody's new token."""
        text, row = new_token([grant(role, scopes)], f"{role} of tests", "tests", self.app.runtime.clock.now(), 1)
        self.store.access.add_token(row)
        return text

    def running(self, ref: TableRef) -> str:
        """A job that runs, of this process, which says how far it is by `tell`."""
        row = self.store.tables.get(ref)
        now = self.app.runtime.clock.now()
        trigger = Trigger("manual", "ann@example.com", self.app.runtime.trigger.holder)
        job_id = self.store.jobs.claim(
            ref, row.table_uuid, (Operation.COMPACT, Operation.REWRITE_MANIFESTS), trigger, now
        )
        assert job_id is not None
        return str(job_id)

    def tell(self, kind: str, ref: TableRef, **details: Any) -> None:
        """Let an activity be written down."""
        self.app.runtime.record_event(kind, ref, details)

    def finish(self, job_id: str, state: JobState = JobState.SUCCEEDED, summary: str = "done") -> None:
        """Let a job end."""
        self.store.jobs.finish(job_id, state, summary, self.app.runtime.clock.now())

    def serve(self, **settings: Any) -> str:
        """A server; its address."""
        made = create_app(self.app, Settings(requests_per_second=10**6, **settings), ServiceStatus(list, bytes))
        port = self.stack.enter_context(serving(made, "127.0.0.1", 0))
        return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A small real lakehouse that was maintained, a fleet that the store knows, tables of hostile names."""
    home = tmp_path_factory.mktemp("pages")
    (home / "warehouse").mkdir()
    path = home / "icewright.yaml"
    fleet = CONFIG.format(home=home).replace("  lake:", "  fleet:").partition("catalogs:\n")[2].partition("cache:")[0]
    path.write_text(CONFIG.format(home=home).replace("cache:", f"{fleet}cache:") + _POLICY, encoding="utf-8")
    config = read_config(path)
    with ExitStack() as stack:
        app = stack.enter_context(application(config, kind="service"))
        made = Site(app, home, stack)
        _lake(made)
        _fleet(made)
        _past(made)
        made.local = made.serve()
        issuer = stack.enter_context(_provider())
        groups = {"staff": {"role": "viewer"}, "sales": {"role": "owner", "scope": ["lake.web"]}}
        oidc = {"issuer": issuer, "client_id": "icewright", "client_secret": "hush", "groups": groups}
        made.closed = made.serve(access=access_of(AuthSection.model_validate({"oidc": oidc})))
        yield made


@contextmanager
def _provider() -> Iterator[str]:
    """A real OpenID provider that knows one person."""
    import oidc_provider_mock as mock

    people = [mock.User(sub="ann", claims={"email": "ann@example.com", "groups": ["staff", "sales"]})]
    with mock.run_server_in_thread(user_claims=people, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


def _lake(site: Site) -> None:
    """Three tables in files, looked at."""
    catalog = SqlCatalog("lake", **pyiceberg_catalog_properties(site.app.config.catalogs["lake"]))
    lake = Lake(catalog, no_spark, site.home / "warehouse", site.app.runtime.clock.now())
    tables.clicks(lake, commits=40, rows_per_file=20)
    tables.events(lake, manifests=24, rows_per_file=20)
    tables.sessions(lake, rows_per_file=50)
    table = catalog.load_table(("web", "clicks"))
    history = table.metadata.snapshots
    table.manage_snapshots().create_tag(history[10].snapshot_id, "month-end").create_branch(
        history[30].snapshot_id, "audit"
    ).commit()
    catalog.close()
    detect_and_evaluate(site.app.runtime, ["lake"])


def _fleet(site: Site) -> None:
    """Tables of another catalog, of every state, and some of hostile names: no server needs their files."""
    runtime, store, now = site.app.runtime, site.store, site.app.runtime.clock.now()
    site.hostile = [TableRef("fleet", (name,), name) for name in (*HOSTILE, "..", ".")]
    refs = [TableRef("fleet", (f"n{i % 7}",), f"t{i:04}") for i in range(FLEET)] + site.hostile
    pointers = [Pointer(ref, f"s3://w/{i}/1.json") for i, ref in enumerate(refs)]
    store.tables.record_listing("fleet", pointers, now)
    set_knobs = knobs()
    for i, (ref, pointer) in enumerate(zip(refs, pointers, strict=True)):
        if i % 9 == 8 and ref not in site.hostile:
            continue  # new
        of = metadata(
            (50, 2, 1),
            ref=ref,
            metadata_location=pointer.metadata_location,
            table_uuid=f"u{i}",
            specs=(spec(region="identity"),),
        )
        parts = tuple(partition(f"p{n}", files=3 + i % 90, mb=1 + 40 * (i % 5)) for n in range(2))
        found = facts(*parts, of=of, thresholds=thresholds(set_knobs), manifests_of=(manifests(1 + i % 20),))
        store.tables.record_evaluation(evaluate(found, set_knobs, {}, now), now - timedelta(minutes=i))
    for ref in refs[3:5]:
        store.tables.pause(ref, "three jobs failed in a row")
    store.tables.record_unreadable(refs[5], "the manifest list is not there: s3://w/5/snap.avro", now)
    assert runtime.scopes


def _past(site: Site) -> None:
    """What was done: two operations in the service, a job that failed, alerts, a pin."""
    runtime, store, now = site.app.runtime, site.store, site.app.runtime.clock.now()
    for ref, operation in ((EVENTS, Operation.REWRITE_MANIFESTS), (CLICKS, Operation.EXPIRE_SNAPSHOTS)):
        done = execute(runtime, Request(ref, (operation,), manual=True))
        assert done.state is JobState.SUCCEEDED, done
    row = store.tables.get(CLICKS)
    snapshot = runtime.catalog(CLICKS).load(CLICKS).snapshots[-3]
    pin = SnapshotPin("reader nightly", snapshot.snapshot_id, now, now + timedelta(days=2), "ann")
    store.pins.add(CLICKS, row.table_uuid, pin)
    failed = site.running(site.hostile[0])
    site.finish(failed, JobState.FAILED, "compact: failed: <b>no space</b> left on device")
    detect_and_evaluate(runtime, ["lake"])
    Planning(runtime).due()
    alert_due(runtime, site.app.alerting)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, which the machine must have."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("the pages are tested in Chromium, which is not there: apt-get install chromium, or deselect `web`")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@dataclass
class Desk:
    """A browser window; what its pages complain about fails the test."""

    base: str
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self._heard(said.type, said.text, str(said.location["url"])))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, kind: str, text: str, where: str) -> None:
        ours = where.startswith(self.base) and "the server responded with a status of" not in text
        if kind in ("error", "warning") and ours:
            self.complaints.append(f"{text} at {where}")


Opener = Callable[..., Desk]


@pytest.fixture
def desk(browser: Browser) -> Iterator[Opener]:
    """Opens windows: `desk(base, dark=True, phone=True)`."""
    opened: list[Desk] = []

    def open_one(base: str, *, dark: bool = False, phone: bool = False, scripts: bool = True) -> Desk:
        context = browser.new_context(
            base_url=base,
            viewport=PHONE if phone else DESK,  # type: ignore[arg-type] # a mapping of two numbers
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        context.set_default_timeout(PATIENCE)
        context.route(ELSEWHERE, lambda route: route.abort())  # the pages need nothing that is not here
        made = Desk(base, context, context.new_page())
        opened.append(made)
        return made

    yield open_one
    for one in opened:
        one.context.close()
    complaints = [text for one in opened for text in one.complaints]
    assert not complaints, complaints
