"""What a command costs before it works: `icewright --help`, `icewright tables`, the first page of `icewright serve`.

Beside them in the same run: `pyiceberg --help` and, where it is installed, `dbt --version`. Prints one JSON line.
Processor seconds and peak memory are of whole processes, which take turns; of the service until its overview has been
answered once. State store and catalog lie on this machine's disk. Modules are compiled once, as an installer does it.
`--quick` takes fewer turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from benchmarks.kit.report import REPEATS

TABLES = 20
_CHILD = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=-3, check=True); "
_CHILD += "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)"


@dataclass(frozen=True)
class Cost:
    """Wall seconds, processor seconds and peak MiB of one process."""

    s: float
    cpu: float
    mib: float


def measured(command: Sequence[str]) -> Cost:
    """Return the cost of a command, measured by a process of its own, whose only child it is."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _CHILD, *command], capture_output=True, text=True, check=True)
    cpu, mib = map(float, done.stdout.split())
    return Cost(time.perf_counter() - began, cpu, mib)


def lakehouse(folder: Path, port: int) -> Path:
    """Create a SQL catalog with tables and the configuration for it; return the configuration's path."""
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{warehouse}"}
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("shop")
    for number in range(TABLES):
        catalog.create_table(f"shop.t{number}", Schema(NestedField(1, "id", LongType())))
    catalog.close()
    path = folder / "icewright.yaml"
    path.write_text(
        f"state: sqlite:///state.db\nserver: {{port: {port}}}\n"
        f"catalogs:\n  lake: {{type: sql, properties: {json.dumps(properties)}}}\n",
        encoding="utf-8",
    )
    return path


def first_page(command: Sequence[str], port: int, log: Path) -> Cost:
    """Return what a service costs until it has answered the overview of all tables once."""
    began = time.perf_counter()
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as service:
        while not answered(port):
            if service.poll() is not None:
                sys.exit(f"the service ended: {log.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        seconds, process = time.perf_counter() - began, psutil.Process(service.pid)
        times, peak = process.cpu_times(), process.memory_info().rss  # of which nothing was given back yet
        service.terminate()
    return Cost(seconds, times.user + times.system, peak / 2**20)


def answered(port: int) -> bool:
    """Return whether a service serves its overview, whole."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/", headers={"Accept": "text/html"})
        return b"</html>" in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def program(name: str) -> str | None:
    """Return the path of a program beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def main() -> None:
    """Measure all commands in turn and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take three turns instead of nine")
    turns = REPEATS if parser.parse_args().quick else 3 * REPEATS
    with tempfile.TemporaryDirectory() as name:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = str(lakehouse(Path(name), port))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(name) / "bytecode")
        icewright = str(program("icewright"))
        commands: dict[str, list[str]] = {
            "icewright --help": [icewright, "--help"],
            "icewright tables": [icewright, "--config", config, "tables"],
            "pyiceberg --help": [str(program("pyiceberg")), "--help"],
        }
        if dbt := program("dbt"):
            commands["dbt --version"] = [dbt, "--version"]
        serve = [icewright, "--config", config, "serve"]
        costs: dict[str, list[Cost]] = {command: [] for command in (*commands, "icewright serve, first page")}
        for turn in range(turns + 1):
            found = [measured(arguments) for arguments in commands.values()]
            found.append(first_page(serve, port, Path(name) / "serve.log"))
            if turn:  # the first one fills the caches of files
                for of_command, cost in zip(costs.values(), found, strict=True):
                    of_command.append(cost)
        listed = subprocess.run([*commands["icewright tables"], "--json"], capture_output=True, check=True)
        tables = len(json.loads(listed.stdout)["tables"])
    sums = {command: _summary(found) for command, found in costs.items()}
    ours, peer = sums["icewright --help"], sums["pyiceberg --help"]
    document = {
        "benchmark": "start",
        "peer": "pyiceberg --help",
        "ratio": round(peer["cpu_s"] / ours["cpu_s"], 2),
        "ours_s": ours["cpu_s"],
        "peer_s": peer["cpu_s"],
        "ours_peak_mib": ours["peak_mib"],
        "peer_peak_mib": peer["peak_mib"],
        "same_result": True if tables == TABLES else f"{tables} of {TABLES} tables are listed",
        "others": [{"command": command, **found} for command, found in sums.items()],
    }
    print(json.dumps(document))


def _summary(costs: Sequence[Cost]) -> Mapping[str, float]:
    """Return the medians of the seconds, and the highest peak."""
    return {
        "cpu_s": round(statistics.median(cost.cpu for cost in costs), 3),
        "wall_s": round(statistics.median(cost.s for cost in costs), 3),
        "peak_mib": round(max(cost.mib for cost in costs), 1),
    }


if __name__ == "__main__":
    main()
