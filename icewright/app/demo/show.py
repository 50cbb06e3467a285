"""The demo: makes the lakehouse, lets Icewright loose on it, and proves that every row is still there."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from rich.markup import escape

from icewright.app import logs, output
from icewright.app.bootstrap import Application, application, java_of, pyiceberg_catalog_properties, read_config
from icewright.app.config import Config, user_cache
from icewright.app.demo import rot
from icewright.app.demo.live import live
from icewright.app.demo.ops import METRICS_BRANCH, METRICS_TAG
from icewright.app.demo.proof import Fingerprint, fingerprint, fingerprints
from icewright.app.demo.rest_server import rest_host
from icewright.app.demo.rot import Lake, Rot
from icewright.core.describe import facts_summary
from icewright.core.errors import UsageError
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.cycle import CycleResult, run_cycle
from icewright.flow.evaluate import read_facts

CATALOG = "lake"
MARK = ".icewright-demo"
MOST_CYCLES = 6
HEALTHY: tuple[Callable[[Lake], Rot], ...] = (
    rot.sessions,
    rot.products,
)  # there before the rot: seen once, then left alone
_REFS = ((f"{CATALOG}.ops.metrics", METRICS_TAG), (f"{CATALOG}.ops.metrics", METRICS_BRANCH))
_ORPHAN_AGE = timedelta(hours=72)

_CONFIG = """\
# Made by `icewright demo`. Cooldowns are off and orphans are deleted at once, so that there is something to see.
state: sqlite:///{home}/icewright.db
catalogs:
  {catalog}:
    type: {kind}
    enabled: true
    properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}
cache: {{folder: "{home}/cache"}}
detect: {{interval_seconds: 3}}
policy:
  - set:
      evaluate.cooldown_minutes: 0
      compact.cooldown_minutes: 0
      rewrite_deletes.cooldown_minutes: 0
      rewrite_manifests.cooldown_minutes: 0
      expire_snapshots.cooldown_minutes: 0
      remove_orphans.mode: delete
  - {{match: "{catalog}.web", set: {{importance: high}}}}
"""


@dataclass(frozen=True)
class State:
    """One table in numbers, and the fingerprint of its rows."""

    files: int
    delete_files: int
    manifests: int
    snapshots: int
    orphans: int
    bytes: int
    planning_ms: float
    health: int | None


def run_demo(directory: Path | None, *, once: bool, as_json: bool, kind: str = "sql") -> int:
    """Run it; the exit code is 0 when every proof holds. A REST catalog is served as long as the demo runs."""
    port = _free_port() if kind == "rest" else None
    home = _home(directory or Path("icewright-demo"), port)
    console = output.ERR if as_json else output.OUT
    config = read_config(home / "icewright.yaml")
    logs.configure_by(config)
    served = nullcontext() if port is None else _served(config, home, port)
    with served, output.progress() as tell, application(config, kind="demo", tell=tell) as app:
        lake = _lake(app, home)
        console.print(f"[bold]A lakehouse in {escape(str(home))}[/]: two healthy tables, then rot")
        rots = {make: make(lake) for make in HEALTHY}
        run_cycle(app.world, [CATALOG])
        for make in rot.TABLES:
            if make not in rots:
                rots[make] = make(lake)
                console.print(f"  {escape(rots[make].name)}: {escape(rots[make].story)}")
        report = _maintain(app, list(rots.values()), console)
        if as_json:
            output.print_json(report | {"directory": str(home), "config": str(home / "icewright.yaml")})
        else:
            _show(report, home)
        if not once and report["ok"]:
            live(app, lake, console)
    return 0 if report["ok"] else 1


@contextmanager
def _served(config: Config, home: Path, port: int) -> Iterator[None]:
    """Apache's REST server over a SQLite database in the demo's folder."""
    (home / "logs").mkdir()
    with (
        (home / "logs" / "rest.log").open("wb") as log,
        rest_host(java_of(config), user_cache() / "rest", log) as host,
    ):
        host.serve(home / "catalog.db", f"file://{home}/warehouse", port)
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _home(directory: Path, port: int | None) -> Path:
    """An empty folder with a configuration; an earlier demo's is made anew, anything else is left alone."""
    home = directory.expanduser().resolve()
    if home.is_dir() and any(home.iterdir()):
        if not (home / MARK).is_file():
            raise UsageError(f"{home} is not empty and no earlier demo: name another folder with --dir")
        for child in home.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    (home / "warehouse").mkdir(parents=True, exist_ok=True)
    (home / MARK).touch()
    uri = f"sqlite:///{home}/catalog.db" if port is None else f"http://127.0.0.1:{port}"
    said = _CONFIG.format(home=home, catalog=CATALOG, kind="sql" if port is None else "rest", uri=uri)
    (home / "icewright.yaml").write_text(said, encoding="utf-8")
    return home


def _lake(app: Application, home: Path) -> Lake:
    catalog = load_catalog(CATALOG, **pyiceberg_catalog_properties(app.config.catalogs[CATALOG]))
    return Lake(catalog, app.pools["default"].session, home / "warehouse", app.world.clock.now())


def _maintain(app: Application, rots: Sequence[Rot], console: Any) -> dict[str, Any]:  # noqa: ANN401 - Rich's
    """Cycles until nothing is due, with every table's state and rows before and after."""
    names = [r.name for r in rots]
    spark = app.pools["default"].session()
    console.print("Reading every row once, to compare later")
    rows_before, refs_before = fingerprints(spark, names), _refs(spark)
    before = {name: _state(app, name) for name in names}
    cycles: list[CycleResult] = []
    seconds: list[float] = []
    while len(cycles) < MOST_CYCLES and (not cycles or cycles[-1].run):
        started = time.perf_counter()
        cycles.append(run_cycle(app.world, [CATALOG]))
        seconds.append(time.perf_counter() - started)
        last = cycles[-1]
        console.print(
            f"[bold]Cycle {len(cycles)}[/]: {last.tables} tables > {last.changed} changed > {last.due} due > "
            f"{last.run} run, {seconds[-1]:.1f} s"
        )
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
    bad = (JobState.FAILED, JobState.PARTIAL)
    failures += [f"{job.ref}: {job.summary}" for c in cycles for job in c.jobs if job.state in bad]
    failures += [f"{source}: {error}" for c in cycles for source, error in c.errors]
    if cycles[-1].due:
        failures.append(f"{cycles[-1].due} tables are still due after {len(cycles)} cycles")
    documents = [output.cycle_document(c) for c in cycles]
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
        "left_alone": [f"{name}: {why}" for name in names for why in _left_alone(app, name)],
    }


def _refs(spark: Any) -> dict[str, Fingerprint]:  # noqa: ANN401 - a SparkSession
    return {f"{table} at {ref}": fingerprint(spark, table, ref) for table, ref in _REFS}


def _state(app: Application, name: str) -> State:
    ref = TableRef.parse(name)
    metadata = app.world.catalog(ref).load(ref)
    summary = facts_summary(read_facts(app.world, metadata)[0])
    known, snapshot = app.world.store.evaluation(ref), metadata.current_snapshot
    return State(
        files=summary["files"],
        delete_files=summary["delete_files"],
        manifests=summary["manifests"],
        snapshots=summary["snapshots"],
        orphans=app.orphans(ref, app.world.clock.now() - _ORPHAN_AGE),
        bytes=summary["bytes"],
        planning_ms=round(1000 * app.world.files.planning_seconds(snapshot), 2) if snapshot else 0.0,
        health=known["health"] if known else None,
    )


def _left_alone(app: Application, name: str) -> list[str]:
    """What Icewright does not touch on purpose, with the reason."""
    known = app.world.store.evaluation(TableRef.parse(name)) or {"verdicts": []}
    return [f"{v['operation']}: {v['reason']}" for v in known["verdicts"] if v["verdict"] in ("blocked", "unsupported")]


def _show(report: dict[str, Any], home: Path) -> None:
    def change(table: dict[str, Any], key: str, said: Callable[[Any], str] = str) -> str:
        was, now = said(table["before"][key]), said(table["after"][key])
        return now if was == now else f"{was} → {now}"

    columns = ("files", "delete_files", "manifests", "snapshots", "orphans")
    lines = [
        (
            t["name"].removeprefix(f"{CATALOG}."),
            *(change(t, column) for column in columns),
            change(t, "bytes", output.size),
            change(t, "planning_ms", "{:.1f}".format),
            t["rows_after"],
            "same" if t["checksum_before"] == t["checksum_after"] else "CHANGED",
        )
        for t in report["tables"]
    ]
    headings = ("table", "files", "deletes", "manifests", "snapshots", "orphans", "size", "plan ms", "rows", "content")
    output.rows("Before → after", headings, lines)
    for text in report["left_alone"]:
        output.OUT.print(f"[dim]left alone[/]  {escape(text)}")
    for text in report["failures"]:
        output.OUT.print(f"[red]FAILED  {escape(text)}[/]")
    if report["ok"]:
        output.OUT.print("[green]Every table, tag and branch reads the same rows as before.[/]")
    example = f"icewright --config {home}/icewright.yaml"
    output.OUT.print(f"Look around: {example} tables | {example} health {CATALOG}.web.clicks", soft_wrap=True)
