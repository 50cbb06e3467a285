"""Compaction against the fastest others on six shapes: Spark's procedure, a rival, and what reading and writing takes.

`RIVAL` names a program that compacts in its own way: it reads lines of JSON with the `metadata` file of a table,
`target_mib`, `partition_mib` and `parallelism`, and answers each with `s`, `cpu`, `mib` and `files`. The limit is the
quickest of DuckDB, Polars and PyArrow that read the same data files and write one, without Iceberg and its deletes.
All sides have at most two threads or tasks and are warm; they run in turn, and CPU seconds decide. Prints one line of
JSON; `ratio` is the geometric mean of the peer's CPU seconds by ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.child import Child
from benchmarks.kit.lake import NAMESPACE, Saved, local
from benchmarks.kit.limits import ENGINES
from benchmarks.kit.live import live_files
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.report import REPEATS, Run
from benchmarks.kit.rows import COLUMNS
from benchmarks.kit.tables import Seed

SPARK, RIVAL = "Spark CALL rewrite_data_files", "rival"
_HOUR, _GIGABYTE = 3600, 10**9
_A_TENTH = 10

Side = Callable[[], Run]


@dataclass(frozen=True)
class Shape:
    """An unpartitioned table of zstd files, rewritten as a whole."""

    name: str
    files: int
    rows: int  # of each
    target: int  # MiB
    commits: int = 10
    deleted_from: int = 0  # files of which every tenth row is gone, by position deletes
    keys: int = 0  # that each commit deletes, beside every 20th of its own rows by position

    def seed(self, sides: Bench) -> Saved:
        """Make the table."""
        table = f"lake.{NAMESPACE}.{self.name}"
        seed = Seed(sides.lake, self.name)
        seed.commits(1 if self.keys else self.commits, self.rows, 1 if self.keys else self.files // self.commits)
        seed.publish()
        if self.keys:
            sides.spark.ask("upserts", table=self.name, number=self.files - 1, rows=self.rows, keys=self.keys)
        if self.deleted_from:
            where = f"id < {self.deleted_from * self.rows} AND id % {_A_TENTH} = 0"
            change = f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
            sides.spark.ask("each", statements=[change, f"DELETE FROM {table} WHERE {where}"])  # noqa: S608
        return sides.lake.save(self.name)

    def sides(self, sides: Bench, saved: Saved, others: Mapping[str, Child]) -> dict[str, Side]:
        """Each side's run, which says what `files` it left."""
        deletes = {"delete_file_threshold": "1"} if self.keys or self.deleted_from else {}
        knobs = {"compact.target_file_size_mb": str(self.target), "compact.engine": "arrow"}
        knobs |= {f"compact.{name}": value for name, value in deletes.items()}
        statement = rewrite_data_files(self.name, self.target, None, **deletes)
        inputs = [str(local(path)) for path in live_files(saved)]
        asked = {"target_mib": self.target, "partition_mib": self.target, "parallelism": 2}

        def committed(run: Run) -> Run:
            return {**run, "files": [str(local(path)) for path in live_files(saved)]}

        def ours() -> Run:
            return committed(sides.ours.ask("run", table=self.name, operation="compact", knobs=knobs))

        def spark() -> Run:
            return committed(sides.spark.ask("sql", statement=statement))

        def rival() -> Run:
            run = others[RIVAL].ask("run", metadata=f"file://{local(saved.pointer[0])}", **asked)
            return {**run, "files": [str(local(path)) for path, _, _ in run["files"]]}

        def limit(engine: str) -> Side:
            out = str(saved.lake.folder(self.name) / "data" / f"{engine}.parquet")
            return lambda: others[engine].ask("run", engine=engine, files=inputs, out=out)

        return (
            {"ours": ours, SPARK: spark}
            | ({RIVAL: rival} if RIVAL in others else {})
            | {engine: limit(engine) for engine in ENGINES}
        )

    def measure(self, sides: Bench, others: Mapping[str, Child]) -> dict[str, Any]:
        """Let all sides run in turn; the medians of each."""
        saved = self.seed(sides)
        runs: dict[str, list[Run]] = {}
        digests = set()
        turns = self.sides(sides, saved, others)
        size = sum(file.size for file in live_files(saved).values())
        for number in range(REPEATS + 1):  # the first uncounted
            for name, side in turns.items():
                run = side()
                if not number and name not in ENGINES:
                    digests.add(_digest(run["files"]))
                if number:
                    runs.setdefault(name, []).append(run)
                saved.restore()
        found = {name: _medians(some, size) for name, some in runs.items()}
        peer = RIVAL if RIVAL in found else min(ENGINES, key=lambda engine: float(found[engine]["cpu_s"]))
        return {
            "shape": f"{self.name}: {self.files} files, {size / MEBIBYTE:.0f} MiB, target {self.target} MiB",
            "peer": peer,
            "ratio": round(found[peer]["cpu_s"] / found["ours"]["cpu_s"], 2),
            "same_result": len(digests) == 1,
            "sides": found,
        }


def _digest(files: Sequence[str]) -> tuple[Any, ...]:
    """The number of rows, and a sum of their hashes in any order."""
    columns = ", ".join(f'"{name}"' for name, _ in COLUMNS)
    query = f"select count(*), sum(hash({columns})::hugeint) from read_parquet({files})"  # noqa: S608
    with duckdb.connect(config={"threads": 2}) as connection:
        return tuple(connection.execute(query).fetchall()[0])


def _medians(runs: Sequence[Run], size: int) -> dict[str, Any]:
    cpu = statistics.median(run["cpu"] for run in runs)
    return {
        "cpu_s": round(cpu, 2),
        "s": round(statistics.median(run["s"] for run in runs), 2),
        "gb_per_core_hour": round(size / _GIGABYTE / cpu * _HOUR),
        "peak_mib": round(max(run["mib"] for run in runs)),
        "task_peak_mib": round(max(run.get("child_mib", 0) for run in runs)),
        "runs_cpu_s": [round(run["cpu"], 2) for run in runs],
    }


@contextmanager
def _others() -> Iterator[Mapping[str, Child]]:
    os.environ["POLARS_MAX_THREADS"] = "2"
    program = os.environ.get("RIVAL")
    with ExitStack() as stack:
        others = {RIVAL: stack.enter_context(Child(program, launcher=()))} if program else {}
        yield others | {engine: stack.enter_context(Child("benchmarks.kit.limits")) for engine in ENGINES}


FULL = (
    Shape("large", 100, 118_000, 256),
    Shape("small", 200, 5_600, 32, commits=20),
    Shape("deleted", 100, 19_000, 64, deleted_from=20),
    Shape("mixed", 20, 500_000, 256, keys=25_000),
    Shape("mixed160", 160, 50_000, 256, keys=25_000),
    Shape("risingwave", 174, 248_000, 512, commits=6),
)
QUICK = (
    Shape("large", 20, 118_000, 64),
    Shape("small", 60, 5_600, 8),
    Shape("deleted", 50, 19_000, 32, deleted_from=10),
    Shape("mixed", 10, 200_000, 64, keys=10_000),
    Shape("mixed160", 40, 25_000, 32, keys=12_500),
    Shape("risingwave", 24, 248_000, 128, commits=6),
)


def main() -> None:
    """Seed, measure, print."""
    parser = options(__doc__, "the same shapes at a fifth of their size")
    parser.add_argument("shapes", nargs="*", help="the names of those to measure; all when there are none")
    chosen = parser.parse_args()
    shapes = [s for s in (QUICK if chosen.quick else FULL) if s.name in chosen.shapes or not chosen.shapes]
    with bench(chosen) as sides, _others() as others:
        with sides.starting(warmed=True):
            pass
        found = [shape.measure(sides, others) for shape in shapes]
    ratios = [shape["ratio"] for shape in found]
    line = {"benchmark": "rivals", "ratio": round(statistics.geometric_mean(ratios), 2), "worst": min(ratios)}
    sys.stdout.write(json.dumps(line | {"load": os.getloadavg()[0], "shapes": found}) + "\n")


if __name__ == "__main__":
    main()
