"""Small tables in three catalogs that get commits at an even rate, and real services that expire their snapshots."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import sqlalchemy as sa

from benchmarks.kit.background import beside
from benchmarks.kit.fleet import ROWS
from benchmarks.kit.lake import NAMESPACE, Lake, local
from benchmarks.kit.layouts import LAYOUTS
from benchmarks.kit.tables import Seed
from icewright.adapters.store.schema import BREAKERS, JOBS, PROCESSES, TABLES
from icewright.core.breakers import OPEN_AFTER
from icewright.core.runs import JobState

LAG = timedelta(seconds=10)  # after which a commit that nobody has cleaned up after is late
CONFIG = """\
state: {state}
catalogs: {catalogs}
cache: {{folder: "{home}/cache"}}
server: {{port: 0}}
detect: {{interval_seconds: 2, timeout_seconds: 10}}
limits: {{global: 8}}
pools: {{default: {{master: "local[1]", conf: {{spark.driver.memory: 1g}}}}}}
policy:
  - set:
      compact.enabled: false
      rewrite_manifests.enabled: false
      remove_orphans.enabled: false
      expire_snapshots.cooldown_minutes: 0
      expire_snapshots.min_snapshots_to_keep: 1
      expire_snapshots.min_share: 0
      deletion.delay_hours: 0
      evaluate.cooldown_minutes: 0
  - {{match: "*.bench.*spark", set: {{expire_snapshots.engine: spark}}}}
"""
CLOCK = b"""
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && !access(getenv("JUMPED"), F_OK)) now->tv_sec += 3600;
    return failed;
}
"""


@dataclass(frozen=True)
class NamedLake(Lake):
    """A catalog of its own name in a database of its own."""

    name: str = ""

    @cached_property
    def engine(self) -> sa.Engine:
        """The catalog's database."""
        return sa.create_engine(self.database)

    def add(self, table: str, metadata: str) -> None:
        """Let the catalog know a table by its metadata file."""
        columns = ("catalog_name", "table_namespace", "table_name", "metadata_location")
        with self.engine.begin() as connection:
            row = dict(zip(columns, (self.name, NAMESPACE, table, metadata), strict=True))
            connection.execute(sa.insert(ROWS).values(row))

    def pointer(self, table: str) -> tuple[str, str | None]:
        """The metadata file that the catalog names, and the one before it."""
        query = sa.select(ROWS.c.metadata_location, ROWS.c.previous_metadata_location)
        with self.engine.connect() as connection:
            metadata, previous = connection.execute(query.where(ROWS.c.table_name == table)).one()
        return metadata, previous

    def commit(self, table: str) -> str:
        """Add a snapshot of the same files, from which on the one before it has expired; its metadata file."""
        while True:
            base = self.pointer(table)[0]
            document = json.loads(local(base).read_bytes())
            last = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
            number, at = document["last-sequence-number"] + 1, last["timestamp-ms"] + 1
            folder = self.folder(table) / "metadata"
            manifests = folder / f"snap-{number}-{os.urandom(4).hex()}.avro"
            shutil.copy(local(last["manifest-list"]), manifests)
            snapshot = {**last, "snapshot-id": last["snapshot-id"] + 1, "parent-snapshot-id": last["snapshot-id"]}
            snapshot |= {"sequence-number": number, "timestamp-ms": at, "manifest-list": f"file://{manifests}"}
            identity = snapshot["snapshot-id"]
            document |= {"last-sequence-number": number, "last-updated-ms": int(time.time() * 1000)}
            document["current-snapshot-id"] = identity
            document["snapshots"].append(snapshot)
            document["snapshot-log"].append({"timestamp-ms": at, "snapshot-id": identity})
            document["refs"]["main"]["snapshot-id"] = identity
            version = int(local(base).name.partition("-")[0]) + 1
            file = folder / f"{version:05d}-{UUID(bytes=os.urandom(16))}.metadata.json"
            file.write_text(json.dumps(document), encoding="utf-8")
            mine = (ROWS.c.table_name == table) & (ROWS.c.metadata_location == base)
            swing = sa.update(ROWS).where(mine).values(metadata_location=f"file://{file}")
            with self.engine.begin() as connection:
                if connection.execute(swing).rowcount == 1:
                    return str(file)
            for path in (file, manifests):  # somebody else has committed
                path.unlink()

    def snapshots(self, table: str) -> int:
        """How many the table has now."""
        return len(json.loads(local(self.pointer(table)[0]).read_bytes())["snapshots"])


@dataclass
class Writers:
    """Commits to all tables in turn, and to the table of Spark every few commits."""

    lakes: Sequence[NamedLake]
    tables: Sequence[tuple[NamedLake, str]]
    spark: tuple[NamedLake, str]
    per_second: float
    untouched: set[str] = field(default_factory=set)
    commits: list[tuple[datetime, str]] = field(default_factory=list)
    last: dict[str, datetime] = field(default_factory=dict)

    def writing(self) -> AbstractContextManager[None]:
        """Write as long as the block lasts."""

        def write(stop: threading.Event) -> None:
            began = time.monotonic()
            for number in range(10**9):
                if stop.wait(max(0.0, began + number / self.per_second - time.monotonic())):
                    return
                self.commit(*(self.spark if number % 20 == 0 else self.tables[number % len(self.tables)]))

        return beside(write)

    def commit(self, lake: NamedLake, table: str) -> None:
        """Commit to a table, unless nobody may touch it now."""
        if table not in self.untouched:
            lake.commit(table)
            self.commits.append((datetime.now(UTC), table))
            self.last[table] = self.commits[-1][0]

    def late(self) -> list[str]:
        """The tables whose last commit is some time ago, and whose expired snapshots are still there."""
        before = datetime.now(UTC) - LAG
        every = [*self.tables, self.spark]
        return [table for lake, table in every if self.last.get(table, before) < before and lake.snapshots(table) > 1]

    def share_of(self, others: set[str], since: datetime, until: datetime) -> float:
        """The share of the commits of a while that went to other tables than these."""
        mine = [table for at, table in self.commits if since <= at < until]
        return sum(table not in others for table in mine) / len(mine)


def made(home: Path, urls: Mapping[str, str], each: int, per_second: float) -> Writers:
    """So many tables of one commit in each of the catalogs, whose databases these are, and one more for Spark."""
    lakes = [NamedLake(home / name, url, name) for name, url in urls.items()]
    tables = []
    for lake in lakes:
        lake.create()
        for number in range(each):
            seed = Seed(lake, f"{lake.name}_{number:03d}", LAYOUTS[0])
            seed.commit([seed.file()])
            seed.publish(checked=False)
            tables.append((lake, seed.table))
    seed = Seed(lakes[0], f"{lakes[0].name}_spark", LAYOUTS[0])
    seed.commit([seed.file()])
    seed.publish(checked=False)
    mixed = [table for number in range(each) for table in tables[number::each]]
    return Writers(lakes, mixed, (lakes[0], seed.table), per_second)


class Proxy:
    """A port that leads to a server, or refuses, or accepts and never answers."""

    def __init__(self, port: int) -> None:
        self._target, self.mode = port, "forward"
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            client = self._server.accept()[0]
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        while self.mode == "hang":
            time.sleep(0.05)
        if self.mode == "refuse":
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self._target))
        self._open += [client, server]
        threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
        self._copy(client, server)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                while self.mode == "hang":
                    time.sleep(0.05)
                target.sendall(content)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def jumping_clock(home: Path) -> Mapping[str, str]:
    """The environment of a process whose clock is an hour ahead while there is a file `jumped`; empty without cc."""
    if shutil.which("cc") is None:
        return {}
    library = home / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=CLOCK, check=True)  # noqa: S607
    return {"LD_PRELOAD": str(library), "JUMPED": str(home / "jumped")}


@contextmanager
def serving(config: Path, number: int, environment: Mapping[str, str]) -> Iterator[psutil.Process]:
    """A service that may not read what its user may not read, even as root, and on which reads can hang."""
    command = [sys.executable, "-m", "tests.integration.hung_mount", "--config", str(config), "serve", "--slots", "4"]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    with (config.parent / f"service{number}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(90)  # twice the grace and ten seconds, where a thread hangs
            finally:
                process.kill()


class Store:
    """What the state store says, without Icewright."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, pool_pre_ping=True)

    def ended(self, since: datetime, until: datetime) -> list[tuple[str, str]]:
        """The tables and states of jobs that ended in a while."""
        query = sa.select(TABLES.c.name, JOBS.c.state).join_from(JOBS, TABLES)
        return [(row.name, row.state) for row in self._rows(query.where(JOBS.c.finished.between(since, until)))]

    def paused(self) -> list[str]:
        """The paused tables."""
        return [row.name for row in self._rows(sa.select(TABLES.c.name).where(TABLES.c.paused.is_not(None)))]

    def problems(self) -> list[str]:
        """What is not as in a quiet hour; empty when all is."""
        unread = self._rows(sa.select(TABLES.c.name, TABLES.c.error).where(TABLES.c.error.is_not(None)))
        broken = self._rows(sa.select(BREAKERS.c.resource).where(BREAKERS.c.failures >= OPEN_AFTER))
        details = [row.details for row in self._rows(sa.select(PROCESSES.c.details))]
        found = [f"{row.name}: {row.error}" for row in unread] + [row.resource for row in broken]
        found += [f"{name} is paused" for name in self.paused()]
        return found + [fault for detail in details for fault in detail.get("faults", ())]

    def running(self) -> int:
        """How many services have begun."""
        return len(self._rows(sa.select(PROCESSES.c.holder)))

    def succeeded(self, table: str) -> bool:
        """Whether a job on the table succeeded."""
        mine = (TABLES.c.name == table) & (JOBS.c.state == JobState.SUCCEEDED)
        return bool(self._rows(sa.select(JOBS.c.job_id).join_from(JOBS, TABLES).where(mine).limit(1)))

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()
