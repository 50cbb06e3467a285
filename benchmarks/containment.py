"""Ten faults, one after the other, beside a fleet of 300 small tables in three catalogs: what is healthy goes on.

Two services keep up with writers. Each fault is there for a while; the jobs done on tables that it does not concern
are compared with a quiet while, and then all must be as before without a hand. Prints one JSON line for each fault.
Needs PostgreSQL; the disk of the cache is full only where a file system may be mounted, and the clock jumps where there
is a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.kit.background import beside
from benchmarks.kit.contained import CONFIG, Proxy, Store, Writers, jumping_clock, made, serving
from benchmarks.kit.lake import local
from icewright.app.bootstrap import read_config, upgrade_store
from tests.postgres import PostgresServer, postgres_server

CATALOGS, EACH = ("alpha", "beta", "gamma"), 100
LEAST_SHARE, HEALED_WITHIN = 0.9, 60.0
CACHE_MIB = 48
HUNG, DENIED, CORRUPT = "beta_005", "beta_010", "beta_015"
READ_ONLY = "default_transaction_read_only"


@dataclass(frozen=True)
class World:
    """Everything that a fault may break."""

    home: Path
    writers: Writers
    proxy: Proxy
    state: PostgresServer
    store: Store
    services: Sequence[psutil.Process]

    @property
    def tables(self) -> set[str]:
        """All tables."""
        return {table for _, table in (*self.writers.tables, self.writers.spark)}

    def behind_the_proxy(self) -> set[str]:
        """The tables of the catalog that the proxy leads to."""
        return {table for lake, table in self.writers.tables if lake.name == CATALOGS[-1]}

    def committed(self, name: str) -> Path:
        """Commit to a table; the metadata file that its catalog names now."""
        lake = next(lake for lake, table in self.writers.tables if table == name)
        self.writers.commit(lake, name)
        return local(lake.pointer(name)[0])


Fault = Callable[[World], AbstractContextManager[set[str]]]  # the tables that it concerns


@contextmanager
def catalog_in(mode: str, world: World) -> Iterator[set[str]]:
    """The database of a catalog refuses connections, or answers nothing, also to what has asked it before."""
    world.proxy.mode = mode
    if mode == "refuse":
        world.proxy.cut()
    try:
        yield world.behind_the_proxy()
    finally:
        world.proxy.mode = "forward"


@contextmanager
def hung_read(world: World) -> Iterator[set[str]]:
    """Reads of the files of one table do not return."""
    fifo = world.home / "fifo"
    os.mkfifo(fifo)
    world.committed(HUNG)
    try:
        yield {HUNG}
    finally:
        opened = os.open(fifo, os.O_RDWR)  # whoever waits for a writer waits no more
        fifo.unlink()
        time.sleep(0.5)
        os.close(opened)


@contextmanager
def denied_table(world: World) -> Iterator[set[str]]:
    """The files of one table may not be read."""
    folder = world.committed(DENIED).parent
    folder.chmod(0)
    try:
        yield {DENIED}
    finally:
        folder.chmod(0o755)


@contextmanager
def corrupt_table(world: World) -> Iterator[set[str]]:
    """The metadata file of one table is cut off."""
    world.writers.untouched.add(CORRUPT)
    lake = next(lake for lake, table in world.writers.tables if table == CORRUPT)
    metadata = Path(lake.commit(CORRUPT))
    content = metadata.read_bytes()
    metadata.write_bytes(content[:500])
    try:
        yield {CORRUPT}
    finally:
        metadata.write_bytes(content)
        world.writers.untouched.clear()


@contextmanager
def full_disk(world: World) -> Iterator[set[str]]:
    """The file system of the cache, the logs of Spark and the lists of what was deleted has no room."""
    filler = world.home / "cache" / "filler"
    with filler.open("wb", buffering=0) as out, suppress(OSError):
        while True:
            out.write(bytes(4096))
    try:
        yield set()
    finally:
        filler.unlink()


@contextmanager
def state_stopped(world: World) -> Iterator[set[str]]:
    """The state store is away, and nothing can be done."""
    world.state.stop()
    try:
        yield world.tables
    finally:
        world.state.start()


@contextmanager
def state_read_only(world: World) -> Iterator[set[str]]:
    """The state store takes no writes, as after a failover to a standby."""
    engine = sa.create_engine(world.state.url, isolation_level="AUTOCOMMIT")

    def said(statement: str) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"set {READ_ONLY} = off")
            connection.exec_driver_sql(statement)
            connection.exec_driver_sql("select pg_reload_conf()")

    said(f"alter system set {READ_ONLY} = on")
    try:
        yield world.tables
    finally:
        said(f"alter system reset {READ_ONLY}")
        engine.dispose()


@contextmanager
def killed_jvm(world: World) -> Iterator[set[str]]:
    """Whatever Spark a service has, or starts, is killed within a second."""
    killed: list[int] = []

    def kill(done: threading.Event) -> None:
        while not done.wait(1):
            for child in [child for service in world.services for child in service.children(recursive=True)]:
                with suppress(psutil.Error):
                    if child.name() == "java":
                        child.kill()
                        killed.append(child.pid)

    with beside(kill):
        world.writers.commit(*world.writers.spark)
        yield {world.writers.spark[1]}
    assert killed, "no service had a Spark"


@contextmanager
def jumped_clock(world: World) -> Iterator[set[str]]:
    """The clock of one of the services is an hour ahead."""
    (world.home / "jumped").touch()
    try:
        yield set()
    finally:
        (world.home / "jumped").unlink()


FAULTS: dict[str, Fault] = {
    "dead catalog": partial(catalog_in, "refuse"),
    "hung catalog": partial(catalog_in, "hang"),
    "hung read": hung_read,
    "denied table": denied_table,
    "corrupt table": corrupt_table,
    "full disk of the cache": full_disk,
    "PostgreSQL restarted": state_stopped,
    "PostgreSQL read-only": state_read_only,
    "JVM killed": killed_jvm,
    "clock +1 h": jumped_clock,
}


def impossible(name: str, world: World) -> str:
    """Why a fault cannot be put in on this machine; blank when it can."""
    if name == "full disk of the cache" and not os.path.ismount(world.home / "cache"):
        return "no file system may be mounted here"
    clock = name == "clock +1 h" and not (world.home / "clock.so").is_file()
    return "there is no C compiler" if clock else ""


def rate(world: World, seconds: float) -> float:
    """Jobs that succeed in a second."""
    since = datetime.now(UTC)
    time.sleep(seconds)
    done = world.store.ended(since, datetime.now(UTC))
    return sum(state == "succeeded" for _, state in done) / seconds


def problems(world: World) -> list[str]:
    """What is not as before the fault; empty when all is."""
    late, dead = world.writers.late(), [p.pid for p in world.services if not p.is_running()]
    try:
        found = world.store.problems()
    except SQLAlchemyError as error:
        found = [type(error).__name__]
    return [*found, *(f"{table} is late" for table in late), *(f"service {pid} has ended" for pid in dead)]


def healed(world: World, seconds: float) -> tuple[float | None, list[str]]:
    """After how many seconds all was as before, None for never in so many; and what was not."""
    began = time.monotonic()
    while True:
        found = problems(world)
        passed = time.monotonic() - began
        if not found or passed > seconds:
            return (None if found else round(passed, 1)), found[:5]
        time.sleep(1)


def row(world: World, name: str, seconds: float, quiet: float) -> dict[str, object]:
    """Put a fault in for so long, and watch."""
    line: dict[str, object] = {"benchmark": "containment", "fault": name}
    if why := impossible(name, world):
        return {**line, "ok": None, "not_run": why}
    since = datetime.now(UTC)
    with FAULTS[name](world) as concerned:
        time.sleep(seconds)
        until = datetime.now(UTC)
    after, left = healed(world, 3 * HEALED_WITHIN)
    done = [(table, state) for table, state in world.store.ended(since, until) if table not in concerned]
    others = world.writers.share_of(concerned, since, until)
    succeeded = sum(state == "succeeded" for _, state in done)
    share = None if not others else round(succeeded / seconds / (quiet * others), 2)
    ended = world.store.ended(since, datetime.now(UTC))
    failed = sorted({table for table, state in ended if state == "failed" and table not in concerned})
    own = sum(state == "failed" for table, state in ended if table in concerned)
    whole = (share is None or share >= LEAST_SHARE) and not failed and after is not None and after <= HEALED_WITHIN
    line |= {"seconds": seconds, "quiet_per_s": round(quiet, 2), "healthy_share_of_rate": share}
    line |= {"healthy_failed": failed, "concerned_failed_jobs": own, "healed_s": after, "ok": whole}
    return line | ({"left": left} if left else {})


@contextmanager
def world(per_second: float) -> Iterator[World]:
    """The fleet, and both services on it, which have caught up."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        state, catalogs = stack.enter_context(postgres_server()), stack.enter_context(postgres_server())
        engine = sa.create_engine(catalogs.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for name in CATALOGS:
                connection.exec_driver_sql(f"create database {name}")
        engine.dispose()
        url, proxy = sa.make_url(catalogs.url), Proxy(catalogs.port)
        urls = {name: url.set(database=name).render_as_string() for name in CATALOGS}
        writers = made(home, urls, EACH, per_second)
        places = {lake.name: lake.properties for lake in writers.lakes}
        hidden = url.set(database=CATALOGS[-1], port=proxy.port).render_as_string()
        places[CATALOGS[-1]] = {**places[CATALOGS[-1]], "uri": hidden}
        known = {name: {"type": "sql", "enabled": True, "properties": dict(p)} for name, p in places.items()}
        (home / "cache").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={CACHE_MIB}m", "tmpfs", str(home / "cache")]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            stack.callback(subprocess.run, ["umount", "--lazy", str(home / "cache")], check=True)
        config = home / "icewright.yaml"
        config.write_text(CONFIG.format(state=state.url, catalogs=json.dumps(known), home=home), encoding="utf-8")
        upgrade_store(read_config(config))
        environment = {"HUNG_READS": f" /{HUNG}/", "HUNG_FIFO": str(home / "fifo")}
        clock = jumping_clock(home)
        services = [
            stack.enter_context(serving(config, number, {**environment, **more}))
            for number, more in enumerate(({}, clock))
        ]
        stack.enter_context(writers.writing())
        found = World(home, writers, proxy, state, Store(state.url), services)
        end = time.monotonic() + 300
        while found.store.running() < len(services) or not found.store.succeeded(writers.spark[1]) or problems(found):
            assert time.monotonic() < end, (problems(found), (home / "service0.log").read_text()[-3000:])
            time.sleep(1)
        yield found


def main() -> None:
    """All faults, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="faults of a minute instead of three")
    told = "commits in a second, each of which makes a job: so many that the machine keeps up in a quiet while"
    parser.add_argument("--per-second", type=float, default=1.5, help=told)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one; may be given more than once")
    chosen = parser.parse_args()
    seconds = 60.0 if chosen.quick else 180.0  # in less, a dozen jobs by chance decide
    with world(chosen.per_second) as made_world:
        quiet = rate(made_world, seconds)
        for name in chosen.fault or FAULTS:
            sys.stdout.write(json.dumps(row(made_world, name, seconds, quiet)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
