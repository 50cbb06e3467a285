"""The demo: creates the lakehouse, maintains it, proves that every row is still there, and goes on live."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from icewright.app import logs, output
from icewright.app.bootstrap import Application, application
from icewright.app.demo.lake import CATALOG, DemoLocation, Lake, Rot, create_location
from icewright.app.demo.proof import Fingerprint, fingerprint, fingerprints, remember, show_undo
from icewright.app.demo.tables import METRICS_BRANCH, METRICS_TAG, TABLES, products, sessions
from icewright.app.documents import cycle_document
from icewright.app.environment import has_display
from icewright.app.interrupts import stop_requests
from icewright.app.output import Column, escape
from icewright.app.service import running
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.running import serving
from icewright.core.describe import facts_summary
from icewright.core.errors import ConfigError
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.alert import alert_due
from icewright.flow.cycle import CycleResult, run_cycle
from icewright.flow.evaluate import measure

HOST = "127.0.0.1"
_SLOTS = 2
_GRACE = timedelta(seconds=10)
_PAUSE_SECONDS = 6
_log = logging.getLogger(__name__)
_LIVE_TABLES = ("shop.products", "web.events")
MOST_CYCLES = 6
HEALTHY: tuple[Callable[[Lake], Rot], ...] = (sessions, products)  # created first: evaluated once and due for nothing
_REFS = ((f"{CATALOG}.ops.metrics", METRICS_TAG), (f"{CATALOG}.ops.metrics", METRICS_BRANCH))
_ORPHAN_AGE = timedelta(hours=72)


@contextmanager
def pages(app: Application) -> Iterator[str]:
    """Run a service with its pages for the duration of the block; yield their address."""
    with running(app, kind="service", slots=_SLOTS, grace=_GRACE) as service, ExitStack() as stack:
        web_app = create_app(
            app,
            Settings.of(app.config),
            ServiceStatus(service.probed_faults, service.telemetry.exposition, service.stuck_loops),
        )
        try:
            port = stack.enter_context(serving(web_app, HOST, app.config.server.port))
        except ConfigError:  # the usual port is taken
            port = stack.enter_context(serving(web_app, HOST, 0))
        yield f"http://{HOST}:{port}"


def live(app: Application, lake: Lake, console: Any) -> None:  # noqa: ANN401 - Rich's
    """Write and maintain until Ctrl-C."""
    ended = threading.Event()
    with stop_requests("web") as wait_for_stop, pages(app) as address:
        console.print(
            f"[bold]Look at {address}[/]: Spark keeps writing small files, and Icewright maintains the tables."
        )
        console.print("Start, cancel and pause jobs there. Ctrl-C ends the demo.")
        writer = threading.Thread(target=_write, args=(lake, ended), name="writer", daemon=True)
        writer.start()
        if has_display():
            webbrowser.open(address)
        wait_for_stop()
        console.print("ending")
        ended.set()
        writer.join(_GRACE.total_seconds())


def _write(lake: Lake, ended: threading.Event) -> None:
    """Insert small files into the fed tables every few seconds."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException

    spark = lake.spark()
    for name in itertools.cycle(_LIVE_TABLES):
        table = lake.quoted(name)
        try:
            for _ in range(3):
                spark.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 20")  # noqa: S608 - quoted
        except (PySparkException, Py4JError) as error:  # a failed write is tried again later
            if not ended.is_set():
                _log.warning("the demo's writer could not write %s: %s", name, type(error).__name__)
        if ended.wait(_PAUSE_SECONDS):
            return


@dataclass(frozen=True)
class State:
    """The counts, size and health of one table."""

    files: int
    delete_files: int
    manifests: int
    snapshots: int
    orphans: int
    bytes: int
    planning_ms: float
    health: int | None


def run_demo(directory: Path | None, *, once: bool, as_json: bool) -> int:
    """Run the demo; the exit code is 0 when every proof holds."""
    location = create_location(directory or Path("icewright-demo"))
    console = output.console(stderr=as_json)
    logs.configure_by(location.config)
    with output.progress() as listener, application(location.config, kind="demo", listener=listener) as app:
        lake = _lake(app, location)
        console.print(f"[bold]A lakehouse in {escape(str(location.home))}[/]: two healthy tables, then neglected ones")
        with ThreadPoolExecutor(1) as meanwhile:
            started = meanwhile.submit(lake.spark)  # while the first tables are written without it
            tables = _create_tables(app, lake, console)
            started.result()
        report = _maintain(app, list(tables.values()), console)
        if as_json:
            config = str(location.home / "icewright.yaml")
            output.print_json(report | {"directory": str(location.home), "config": config})
        else:
            _show(report, location.home)
        if not once and report["ok"]:
            live(app, lake, console)
    return 0 if report["ok"] else 1


def _create_tables(app: Application, lake: Lake, console: Any) -> dict[Callable[[Lake], Rot], Rot]:  # noqa: ANN401 - Rich's
    """Create the healthy tables, evaluate them once, and create the others."""
    tables = {make: make(lake) for make in HEALTHY}
    run_cycle(app.runtime, [CATALOG])
    for make in TABLES:
        if make not in tables:
            tables[make] = make(lake)
            console.print(f"  {escape(tables[make].name)}: {escape(tables[make].story)}")
    return tables


def _lake(app: Application, location: DemoLocation) -> Lake:
    spark, now = app.pools["default"].session, app.runtime.clock.now()
    return Lake(location.catalog(), spark, location.warehouse, now)


def _maintain(app: Application, rots: Sequence[Rot], console: Any) -> dict[str, Any]:  # noqa: ANN401 - Rich's
    """Run cycles until nothing is due; return the state and rows of every table before and after."""
    names = [r.name for r in rots]
    spark = app.pools["default"].session()
    console.print("Reading every row once, to compare later")
    rows_before, refs_before = fingerprints(spark, names), _refs(spark)
    before = {name: _state(app, name) for name in names}
    past = remember(app, spark)
    cycles, seconds = _cycles(app, console)
    undone = show_undo(app, spark, past, console)
    alert_due(app.runtime, app.alerting)
    rows_after, refs_after = fingerprints(spark, names), _refs(spark)
    after = {name: _state(app, name) for name in names}
    tables = [
        {
            "name": r.name,
            "story": r.story,
            "before": asdict(before[r.name]),
            "after": asdict(after[r.name]),
            "rows_before": rows_before[r.name].rows,
            "rows_after": rows_after[r.name].rows,
            "checksum_before": rows_before[r.name].checksum,
            "checksum_after": rows_after[r.name].checksum,
        }
        for r in rots
    ]
    failures = [f"{name}: rows changed" for name in names if rows_before[name] != rows_after[name]]
    failures += [f"{ref}: rows changed" for ref, rows in refs_before.items() if refs_after[ref] != rows]
    failures += _failures(cycles)
    if undone is not None and not (undone["same"] and undone["expired_again"]):
        failures.append(f"{undone['table']}: the undo of job {undone['job_id']} did not restore what was there")
    documents = [cycle_document(c) for c in cycles]
    return {
        "ok": not failures,
        "failures": failures,
        "funnel": documents[0]["funnel"],
        "cycles": [d["funnel"] | {"seconds": round(s, 2)} for d, s in zip(documents, seconds, strict=True)],
        "tables": tables,
        "refs": [
            {
                "ref": ref,
                "rows_before": rows.rows,
                "rows_after": refs_after[ref].rows,
                "checksum_before": rows.checksum,
                "checksum_after": refs_after[ref].checksum,
            }
            for ref, rows in refs_before.items()
        ],
        "jobs": [job for document in documents for job in document["jobs"]],
        "left_alone": [f"{name}: {why}" for name in names for why in _blocked_operations(app, name)],
        "undo": undone,
    }


def _cycles(app: Application, console: Any) -> tuple[list[CycleResult], list[float]]:  # noqa: ANN401 - Rich's
    """Run cycles until nothing is due; return them with the seconds of each."""
    cycles: list[CycleResult] = []
    seconds: list[float] = []
    while len(cycles) < MOST_CYCLES and (not cycles or cycles[-1].run):
        started = time.perf_counter()
        cycles.append(run_cycle(app.runtime, [CATALOG]))
        seconds.append(time.perf_counter() - started)
        last = cycles[-1]
        console.print(
            f"[bold]Cycle {len(cycles)}[/]: {last.tables} tables > {last.changed} changed > {last.due} due > "
            f"{last.run} run, {seconds[-1]:.1f} s"
        )
    return cycles, seconds


def _failures(cycles: Sequence[CycleResult]) -> list[str]:
    """Return failed jobs, errors and tables that are still due."""
    jobs = [job for c in cycles for job in c.jobs]
    errors = [error for c in cycles for error in c.errors]
    failures = [f"{j.ref}: {j.summary or j.reason}" for j in jobs if j.state in (JobState.FAILED, JobState.PARTIAL)]
    failures += [f"{source}: {error}" for source, error in errors]
    if cycles[-1].due:
        failures.append(f"{cycles[-1].due} tables are still due after {len(cycles)} cycles")
    return failures


def _refs(spark: Any) -> dict[str, Fingerprint]:  # noqa: ANN401 - a SparkSession
    with ThreadPoolExecutor(len(_REFS)) as pool:
        ref_fingerprints = pool.map(lambda table_and_ref: fingerprint(spark, *table_and_ref), _REFS)
        return {f"{table} at {ref}": rows for (table, ref), rows in zip(_REFS, ref_fingerprints, strict=True)}


def _state(app: Application, name: str) -> State:
    ref = TableRef.parse(name)
    metadata = app.runtime.catalog(ref).load(ref)
    summary = facts_summary(measure(app.runtime, app.runtime.policy(), metadata)[0])
    evaluation, snapshot = app.runtime.store.tables.evaluation(ref), metadata.current_snapshot
    return State(
        files=summary["files"],
        delete_files=summary["delete_files"],
        manifests=summary["manifests"],
        snapshots=summary["snapshots"],
        orphans=app.orphans(ref, app.runtime.clock.now() - _ORPHAN_AGE),
        bytes=summary["bytes"],
        planning_ms=round(1000 * min(map(app.runtime.files.planning_seconds, [snapshot] * 3)), 2) if snapshot else 0.0,
        health=evaluation["health"] if evaluation else None,
    )


def _blocked_operations(app: Application, name: str) -> list[str]:
    """Return the operations that are blocked or unsupported, with the reason."""
    evaluation = app.runtime.store.tables.evaluation(TableRef.parse(name)) or {"verdicts": []}
    return [
        f"{v['operation']}: {v['reason']}" for v in evaluation["verdicts"] if v["verdict"] in ("blocked", "unsupported")
    ]


def _show(report: dict[str, Any], home: Path) -> None:
    def change(table: dict[str, Any], key: str, text: Callable[[Any], str] = str) -> str:
        was, now = text(table["before"][key]), text(table["after"][key])
        return now if was == now else f"{was} → {now}"

    counts = ("files", "delete_files", "manifests", "snapshots", "orphans")
    lines = [
        (
            t["name"].removeprefix(f"{CATALOG}."),
            *(change(t, count) for count in counts),
            change(t, "bytes", output.size),
            change(t, "planning_ms", "{:.1f}".format),
            t["rows_after"],
            "same" if t["checksum_before"] == t["checksum_after"] else "CHANGED",
        )
        for t in report["tables"]
    ]
    columns = (
        Column("table"),
        Column("files"),
        Column("deletes"),
        Column("manifests", rank=1),
        Column("snapshots", rank=2),
        Column("orphans", rank=3),
        Column("size", rank=4),
        Column("plan ms", rank=5),
        Column("rows", right=True),
        Column("content"),
    )
    output.rows("Before → after", columns, lines)
    for text in report["left_alone"]:
        output.echo(f"[dim]left alone[/]  {escape(text)}")
    for text in report["failures"]:
        output.echo(f"[red]FAILED  {escape(text)}[/]")
    if report["ok"]:
        output.echo("[green]Every table, tag and branch reads the same rows as before.[/]")
    example = f"icewright --config {home}/icewright.yaml"
    output.echo(f"Look around: {example} tables | {example} health {CATALOG}.web.clicks")
