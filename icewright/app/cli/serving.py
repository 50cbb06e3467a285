"""Commands of the service: serve, worker, archive, db upgrade, mcp."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.base import OPTIONS, Json, app, configuration, db_app, open_application
from icewright.app.interrupts import STOP_SECONDS, stop_requests
from icewright.core.errors import IcewrightError, StoreUnavailable, UsageError, requires_extra

if TYPE_CHECKING:
    from icewright.app.bootstrap import Application
    from icewright.app.service import Service
    from icewright.flow.runtime import Listener

GRACE_SECONDS = 300  # for running jobs, once the process was asked to stop
STORE_SECONDS, STORE_RETRY_SECONDS = 60, 2  # how long a start waits for its database, and between two tries
MAX_FILES = 65_536  # open at the same time, connections too
Slots = Annotated[
    int | None, typer.Option("--slots", metavar="N", min=1, help="Jobs at the same time; default: limits.per_worker.")
]
Grace = Annotated[
    int,
    typer.Option(
        "--grace-seconds", metavar="N", min=0, help="How long running jobs may continue after a request to stop."
    ),
]


def archive_history(app: Application, *, dry_run: bool) -> dict[str, Any]:
    """Move history that is old enough into the archive, or count it; return the rows by source."""
    from icewright.flow.archive import archive_batches
    from icewright.ports.archive import SOURCES

    archiving, section = app.archiving, app.config.archive
    if archiving is None or section is None:
        raise UsageError("there is no archive: write `archive: {catalog: NAME}` into the configuration")
    before = app.runtime.clock.now() - archiving.after
    rows: Counter[str] = Counter(archiving.history.waiting(before) if dry_run else {})
    for batch in () if dry_run else archive_batches(app.runtime, archiving, before):
        rows[batch.source] += batch.rows
    place = f"{section.catalog}.{section.namespace}"
    moved = {source: rows[source] for source in SOURCES}
    return {"dry_run": dry_run, "archive": place, "before": before, "rows": moved}


def archive_old_days(app: Application) -> bool:
    """Archive all days that are old enough; return False, with a message, when that failed. The next cycle retries."""
    from icewright.flow.archive import archive_due

    if app.archiving is None:
        return True
    try:
        while archive_due(app.runtime, app.archiving):
            pass
    except IcewrightError as error:
        output.error(error)
        return False
    return True


@app.command()
def serve(
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Only plan; separate workers run the jobs.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="Serve here; default: server.port."),
    ] = None,
    slots: Slots = None,
    grace_seconds: Grace = GRACE_SECONDS,
) -> None:
    """Run the service with API and pages.

    It runs until SIGTERM or Ctrl-C; several may share one PostgreSQL.
    """
    _run("service", slots, grace_seconds, no_worker=no_worker, port=port)


@app.command()
def worker(
    slots: Slots = None,
    grace_seconds: Grace = GRACE_SECONDS,
    probe_port: Annotated[
        int | None,
        typer.Option(
            "--probe-port", metavar="PORT", min=0, max=65535, help="Serve /healthz and /readyz here, at server.host."
        ),
    ] = None,
) -> None:
    """Run queued jobs: one more worker for the service.

    It runs until SIGTERM or Ctrl-C.
    """
    _run("worker", slots, grace_seconds, port=probe_port)


def _run(kind: str, slots: int | None, grace_seconds: int, *, no_worker: bool = False, port: int | None = None) -> None:
    from icewright.app import logs
    from icewright.app.service import running

    _raise_file_limit()
    log = logs.listener()  # a service writes a log, on a terminal too
    _wait_for_store(log)
    with open_application("service", listener=log) as opened:
        places = 0 if no_worker else slots or opened.runtime.limits().per_worker
        probes_only = kind == "worker"
        if port is None and not probes_only:
            port = opened.config.server.port
        with (
            # before others see the process, which it then always deregisters
            stop_requests("engine" if port is None else "web") as wait_for_stop,
            running(opened, kind=kind, slots=places, grace=timedelta(seconds=grace_seconds)) as service,
            ExitStack() as stack,
        ):
            address = None
            if port is not None:
                address = stack.enter_context(_listening(opened, service, port, probes_only=probes_only))
            started = {"slots": places, "catalogs": sorted(opened.runtime.catalogs), "address": address}
            log("started", {"kind": kind, **started})
            wait_for_stop()
            log("stopping", {"kind": kind, "grace_seconds": grace_seconds})
            _end_process_in(grace_seconds + STOP_SECONDS, log)  # requests may hang as well
    requests = [thread.name for thread in threading.enumerate() if thread.name == "http"]
    if hanging := [*service.hanging(), *requests]:  # Python would wait for their threads
        log("threads_left", {"hanging": hanging})
        sys.stdout.flush()
        os._exit(0)


def _raise_file_limit() -> None:
    """Let the process open as many files as it may: shells and containers often begin with 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end_process_in(seconds: float, log: Listener) -> None:
    """End the process after this time even if calls that never return hold its threads, as no thread can be killed."""

    def end() -> None:
        hanging = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        log("stop_timed_out", {"threads": sorted(hanging)})
        sys.stdout.flush()
        os._exit(0)  # what ran is reconciled as after a kill

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _wait_for_store(log: Listener) -> None:
    """Wait for a database server that does not answer yet; after a minute the start fails as usual."""
    from icewright.app.bootstrap import open_store

    config, until = configuration(), time.monotonic() + STORE_SECONDS
    while not config.state.startswith("sqlite"):
        try:
            open_store(config).engine.dispose()
        except StoreUnavailable as error:
            if (remaining := until - time.monotonic()) <= 0:
                raise
            log("waiting_for_store", {"error": str(error), "seconds": round(remaining)})
            time.sleep(STORE_RETRY_SECONDS)
        else:
            return


@contextmanager
def _listening(opened: Application, service: Service, port: int, *, probes_only: bool) -> Iterator[str]:
    """Serve API, pages and probes, or probes alone, while the block lasts; yield the address."""
    with requires_extra("web", "serving API, pages and probes"):
        from icewright.app.web.app_state import ServiceStatus
        from icewright.app.web.application import Settings, create_app
        from icewright.app.web.running import serving

    host, settings = opened.config.server.host, Settings.of(opened.config)
    status = ServiceStatus(service.probed_faults, service.telemetry.exposition, service.stuck_loops)
    web_app = create_app(opened, replace(settings, probes_only=probes_only), status)
    with serving(web_app, host, port) as bound_port:
        yield f"http://{host}:{bound_port}"


@app.command()
def archive(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be moved; move nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move old history into the archive's Iceberg tables."""
    with output.progress() as listener, open_application(listener=listener) as opened:
        document = archive_history(opened, dry_run=dry_run)
    if as_json:
        output.print_json(document)
        return
    output.rows(
        f"History before {output.moment(document['before'])} UTC",
        ("table", output.Column("rows to move" if dry_run else "rows moved", right=True)),
        [(f"{document['archive']}.{source}", count) for source, count in document["rows"].items()],
    )


@db_app.command("upgrade")
def db_upgrade(as_json: Json = False) -> None:
    """Migrate the state store to the newest revision."""
    from icewright.app.bootstrap import upgrade_store

    revision = upgrade_store(configuration())
    if as_json:
        output.print_json({"revision": revision})
    else:
        output.echo("the state store has the newest revision")


@app.command()
def mcp(
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer the tool that runs operations, too.")
    ] = False,
) -> None:
    """Serve agents by the Model Context Protocol.

    The server reads standard input and writes standard output.
    """
    from icewright.app.environment import find_config

    with requires_extra("mcp", "this command"):
        from icewright.app.agents import server
    configuration()  # reports its faults now, and not with each question of an agent
    server(str(find_config(OPTIONS.config)), allow_changes=allow_changes).run()
