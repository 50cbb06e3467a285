"""The API under load: so many users at once, each with the next request when the last is answered, on a large fleet.

Prints one JSON line. There is no peer that serves the same: the line holds the limits, and whether they were kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import FACTS, TABLES, VERDICTS
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.app.tokens import new_token
from icewright.core.permissions import grant
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate, thresholds
from icewright.ports import Pointer
from icewright.testing import NOW, facts, knobs, manifests, metadata, partition

USERS, P95_MS = 50, 200
KINDS = 100  # tables that are evaluated; the others are like them
PATHS = (
    "/tables?limit=50",
    "/tables?sort=health&limit=50",
    "/tables?sort=bytes&order=desc&limit=50",
    "/tables?search=t0042",
    "/tables/lake.n7.t00007",
    "/queue?limit=50",
    "/overview",
    "/jobs?limit=50",
)
CONFIG = """\
state: sqlite:///state.db
catalogs: {{lake: {{type: sql, enabled: false, properties: {{uri: "sqlite:///{home}/c.db", warehouse: "file://{home}"}}}}}}
server: {{port: 0, requests_per_second: 1000000}}
log: {{level: warning, format: json}}
auth: {{}}
"""


def seed(home: Path, tables: int) -> str:
    """A store that knows so many tables, all evaluated; returns a viewer's token."""
    engine = open_database(f"sqlite:///{home}/state.db")
    upgrade(engine)
    store = SqlStore(engine)
    refs = [TableRef("lake", (f"n{i % 40}",), f"t{i:05}") for i in range(tables)]
    pointers = [Pointer(ref, f"file:///w/{ref.name}/1.json") for ref in refs]
    store.tables.record_listing("lake", pointers, NOW)
    set_knobs = knobs()
    for i, (ref, pointer) in enumerate(zip(refs[:KINDS], pointers, strict=False)):
        of = metadata((50, 2, 1), ref=ref, metadata_location=pointer.metadata_location, table_uuid=f"u{i}")
        parts = (partition(files=10 + i % 90, mb=1),) if i % 2 else (partition(files=2, mb=500),)
        found = facts(*parts, of=of, thresholds=thresholds(set_knobs), manifests_of=(manifests(1 + i % 20),))
        store.tables.record_evaluation(evaluate(found, set_knobs, {}, NOW), NOW)
    spread(engine, tables)
    token, row = new_token([grant("viewer")], "benchmark", "benchmark", NOW)
    store.access.add_token(row)
    engine.dispose()
    return token


def spread(engine: sa.Engine, tables: int) -> None:
    """Let further tables be as the first ones are: evaluating each would take longer than the benchmark."""
    columns = ("table_uuid", "evaluated_at", "due_since", "health", "files", "bytes", "importance", "run_order")
    with engine.begin() as connection:
        kinds = connection.execute(sa.select(TABLES).where(TABLES.c.id <= KINDS).order_by(TABLES.c.id)).all()
        mine = sa.update(TABLES).where(TABLES.c.id == sa.bindparam("row"))
        more = [
            {"row": n, **{f"n_{c}": getattr(kinds[(n - 1) % KINDS], c) for c in columns}}
            for n in range(KINDS + 1, tables + 1)
        ]
        values: dict[str, sa.BindParameter[Any]] = {c: sa.bindparam(f"n_{c}") for c in columns}
        connection.execute(mine.values(**values, evaluated_location=TABLES.c.metadata_location), more)
        connection.execute(sa.update(TABLES).values(evaluate_at=None))  # nothing is to be looked at again
        for table in (FACTS, VERDICTS):
            rows: dict[int, list[dict[str, Any]]] = {}
            for row in connection.execute(sa.select(table)):
                rows.setdefault(row.table_id, []).append(dict(row._mapping))  # noqa: SLF001 - a public name
            copies = [{**row, "table_id": n} for n in range(KINDS + 1, tables + 1) for row in rows[(n - 1) % KINDS + 1]]
            connection.execute(sa.insert(table), copies)


@contextmanager
def served(home: Path) -> Iterator[str]:
    """The service in a process of its own; yields its address."""
    (home / "icewright.yaml").write_text(CONFIG.format(home=home), encoding="utf-8")
    command = [sys.executable, "-m", "icewright", "--config", str(home / "icewright.yaml"), "serve", "--no-worker"]
    with (home / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"127.0.0.1:{_port(process.pid)}"
        finally:
            process.terminate()


def _port(pid: int) -> int:
    import psutil  # noqa: PLC0415 - needed here alone

    for _ in range(300):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
        time.sleep(0.1)
    raise RuntimeError("the service does not listen")


def ask(address: str, token: str, seconds: float, users: int) -> list[float]:
    """Milliseconds of each request, by so many users at once.

    They share the machine with the service: of a client that takes as long as an answer, the time would be its own.
    """
    taken: list[list[float]] = [[] for _ in range(users)]
    ready = threading.Barrier(users)

    def use(number: int) -> None:
        with closing(HTTPConnection(address, timeout=30)) as client:
            ready.wait()
            until = time.perf_counter() + seconds
            time.sleep(THINK * number / users)  # nobody begins at the same moment
            for path in islice(cycle(PATHS), number, None):
                began = time.perf_counter()
                if began >= until:
                    return
                client.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
                answer = client.getresponse()
                body = answer.read()
                assert answer.status == 200, body
                taken[number].append((time.perf_counter() - began) * 1000)
                time.sleep(THINK)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for some in taken for one in some]


THINK = 1.0  # seconds between two requests of a user: a page that looks every second


def main() -> None:
    """Seed, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 seconds instead of 60")
    parser.add_argument("--tables", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        token = seed(home, chosen.tables)
        with served(home) as address:
            ask(address, token, 5, 5)  # warm; meanwhile the service makes its first plan
            began = time.perf_counter()
            taken = ask(address, token, 10 if chosen.quick else 60, USERS)
            seconds = time.perf_counter() - began
    cuts = quantiles(taken, n=100)
    line: dict[str, Any] = {
        "benchmark": "api",
        "tables": chosen.tables,
        "users": USERS,
        "think_seconds": THINK,
        "requests": len(taken),
        "requests_per_second": round(len(taken) / seconds, 1),
        "p50_ms": round(cuts[49], 1),
        "p95_ms": round(cuts[94], 1),
        "max_ms": round(max(taken), 1),
        "limit_p95_ms": P95_MS,
        "ok": cuts[94] < P95_MS,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
