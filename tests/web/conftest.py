"""What tests of the server share: a client of an application over a real store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from icewright.adapters.store.sql import SqlStore
from icewright.app.tokens import digest
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.events import EventSenders
from icewright.core.events.directory import CatalogEntry, Directory
from icewright.core.permissions import Grant, Role
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.runtime import Runtime
from icewright.ports import Trigger
from icewright.ports.access import SessionRow
from tests.flow.bench import Bench

TOKEN, OTHER_TOKEN, SECRET = "token-0123456789-hush", "other-0123456789-hush", "secret-0123456789-hush"
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"
DIRECTORY = Directory({"lake": CatalogEntry(("iceberg",), ("s3://lake/",))})


@dataclass
class Served:
    """An application over a lake with one table, and clients of it."""

    bench: Bench
    stack: ExitStack
    faults: list[str] = field(default_factory=list)
    stuck_loops: list[str] = field(default_factory=list)
    directory: Directory = DIRECTORY
    usual: FastAPI | None = None
    vacuum_locks: Mapping[str, Lock] = field(default_factory=lambda: defaultdict(Lock))

    def __post_init__(self) -> None:
        self.ref = self.bench.table("orders")
        self.bench.store.tables.record_listing("lake", self.bench.catalog.pointers(), self.bench.clock.now())
        self.bench.store.tables.schedule_evaluation([self.ref], None)

    @property
    def runtime(self) -> Runtime:
        """Ports and settings."""
        return self.bench.runtime(vacuum_locks=self.vacuum_locks)

    def app(self, *, tokens: Sequence[str] = (), secrets: Sequence[str] = (), **settings: Any) -> FastAPI:
        """The application."""
        watch = ServiceStatus(lambda: self.faults, lambda: b"icewright_tables 1\n", lambda: self.stuck_loops)
        return create_app(self, Settings(senders=EventSenders(tokens, secrets), **settings), watch)

    def client(self, app: FastAPI | None = None, *, host: str = HERE, at: str = "http://127.0.0.1:8765") -> TestClient:
        """Somebody on a host who speaks to it; what fails inside is answered, as on a real server."""
        if app is None:
            self.usual = app = self.usual or self.app()  # which takes a while to make
        made = TestClient(app, at, client=(host, 50000), raise_server_exceptions=False)
        return self.stack.enter_context(made)

    def evaluate(self) -> None:
        """Let the table have something due, and be known."""
        self.bench.rot(self.ref)
        evaluate_and_record(self.runtime, self.ref, self.bench.clock.now())

    def job(self) -> str:
        """A job that ended."""
        store, now = self.bench.store, self.bench.clock.now()
        job_id = store.jobs.claim(self.ref, "u1", (Operation.COMPACT,), Trigger("cycle", "me", "host:1:2"), now)
        assert job_id is not None
        store.jobs.finish(job_id, JobState.SUCCEEDED, "done", now)
        return job_id

    def log_in(self, secret: str, role: Role = Role.ADMIN) -> None:
        """A session whose cookie says the secret."""
        now = self.bench.clock.now()
        row = SessionRow(digest(secret), "ann@example.com", (Grant(role),), now, now, now + timedelta(hours=12))
        self.bench.store.access.add_session(row)

    def looked_at(self) -> bool:
        """Whether the table is evaluated next."""
        return any(row.evaluate_at is not None for row in self.bench.store.tables.list())


@pytest.fixture
def served(copied_store: Callable[[Path], sa.Engine], tmp_path: Path) -> Iterator[Served]:
    """An application over a store that knows one table, at which nobody is going to look."""
    store = SqlStore(copied_store(tmp_path / "state.db"))
    with ExitStack() as stack:
        yield Served(Bench(store), stack)
    store.engine.dispose()
