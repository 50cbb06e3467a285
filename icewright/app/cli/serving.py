"""The commands that run for ever: the service and further workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from icewright.app import logs
from icewright.app.bootstrap import Application
from icewright.app.cli.base import app, opened_application
from icewright.app.service import GRACE_SECONDS, Service, running, until_asked_to_stop

Slots = Annotated[int | None, typer.Option("--slots", min=1, help="Jobs at the same time; default: limits.per_worker.")]
Grace = Annotated[
    int, typer.Option("--grace-seconds", min=0, help="How long running jobs may go on when the process is to stop.")
]


@app.command()
def serve(
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Plan only; workers of their own run the jobs.")
    ] = False,
    slots: Slots = None,
    grace_seconds: Grace = GRACE_SECONDS,
) -> None:
    """Detect, evaluate, plan and execute until asked to stop (SIGTERM, Ctrl-C). Any number share one PostgreSQL."""
    _run("service", slots, grace_seconds, no_worker=no_worker)


@app.command()
def worker(slots: Slots = None, grace_seconds: Grace = GRACE_SECONDS) -> None:
    """Run queued jobs until asked to stop: one more worker beside the service's own."""
    _run("worker", slots, grace_seconds)


def _run(kind: str, slots: int | None, grace_seconds: int, *, no_worker: bool = False) -> None:
    tell = logs.listener()  # a service has a log, on a terminal too
    with opened_application("service", tell=tell) as opened:
        places = 0 if no_worker else slots or opened.runtime.limits.per_worker
        with running(opened, kind=kind, slots=places, grace=timedelta(seconds=grace_seconds)) as service:
            with ExitStack() as stack:
                address = stack.enter_context(_listening(opened, service)) if kind == "service" else None
                said = {"slots": places, "catalogs": sorted(opened.runtime.catalogs), "address": address}
                tell("started", {"kind": kind, **said})
                until_asked_to_stop()
            tell("stopping", {"kind": kind, "grace_seconds": grace_seconds})


@contextmanager
def _listening(opened: Application, service: Service) -> Iterator[str]:
    """Events come in, and probes are answered, while the block lasts; yields the address."""
    from icewright.app.web.app_state import ServiceStatus  # noqa: PLC0415
    from icewright.app.web.application import Settings, create_app  # noqa: PLC0415 - needed by the service alone
    from icewright.app.web.running import serving  # noqa: PLC0415

    server = opened.config.server
    watch = ServiceStatus(service.faults, service.telemetry.exposition)
    with serving(create_app(opened, Settings.of(opened.config), watch), server.host, server.port) as port:
        yield f"http://{server.host}:{port}"
