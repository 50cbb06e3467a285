"""Equality deletes of an upsert stream, which commits every 5 seconds meanwhile: converted, against rewriting the data.

Prints one JSON line. Ours is `rewrite_deletes` in the service, the peer `CALL rewrite_data_files`, warm. After each run
Spark reads the rows, which have to be those that the commits of the stream leave.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.kit.background import beside
from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.child import Child
from benchmarks.kit.lake import NAMESPACE, Saved
from benchmarks.kit.live import manifests
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.report import Run
from benchmarks.kit.rows import COLUMNS
from benchmarks.kit.upserts import Upserts

FILES, TOGETHER = 1000, 10  # of keys, and in each commit beside its data file: of the parallel tasks of a sink
EVERY_SECONDS = 5
PEAK_LIMIT_MIB = 512
_SQL = {"long": "bigint", "timestamptz": "timestamp"}


@dataclass
class Stream:
    """A table of upserts, and the writer that goes on with them."""

    name: str
    version: int
    rows: int
    keys: int
    sides: Bench
    writer: Child
    written: int = field(default=0, init=False)

    def create(self) -> Saved:
        """Make the table."""
        columns = ", ".join(f"`{name}` {_SQL.get(kind, kind)}" for name, kind in COLUMNS)
        properties = f"'format-version' = '{self.version}', 'write.parquet.compression-codec' = 'zstd'"
        table = f"lake.{NAMESPACE}.{self.name}"
        self.sides.spark.ask("sql", statement=f"CREATE TABLE {table} ({columns}) TBLPROPERTIES ({properties})")
        (self.sides.lake.folder(self.name) / "data").mkdir(parents=True)
        self._commit(FILES)
        return self.sides.lake.save(self.name)

    def _commit(self, files: int) -> None:
        more = asdict(self._upserts(files))
        del more["folder"]
        self.writer.ask("upserts", table=self.name, **more)
        self.written += files

    def _upserts(self, files: int) -> Upserts:
        folder = self.sides.lake.folder(self.name)
        return Upserts(folder, files, self.rows, self.keys, 0, self.written, TOGETHER)

    def flowing(self) -> AbstractContextManager[None]:
        """Commit every 5 seconds while the block runs, and at least once."""

        def write(ended: threading.Event) -> None:
            self._commit(TOGETHER)
            while not ended.wait(EVERY_SECONDS):
                self._commit(TOGETHER)

        return beside(write)

    def expected(self) -> list[int]:
        """The number of rows that the commits leave, the sum of their ids and that of squares of their remainders."""
        alive = bytearray(b"\1") * (self.written * self.rows)
        upserts = self._upserts(0)
        for number in range(self.written):
            before = number // TOGETHER * TOGETHER * self.rows
            for key in upserts.deleted(number):
                if key < before:
                    alive[key] = 0
        ids = [number for number, is_alive in enumerate(alive) if is_alive]
        return [len(ids), sum(ids), sum((number % 1009) ** 2 for number in ids)]

    def measure(self, saved: Saved, run: Callable[[], Run]) -> dict[str, Any]:
        """Run beside the writer, and put the table back."""
        with self.flowing():
            found = run()
        snapshots = [s for s in saved.lake.metadata(self.name)["snapshots"] if s["sequence-number"] > FILES // TOGETHER]
        ours = [
            s["summary"]
            for s in snapshots
            if "added-records" not in s["summary"] or s["summary"]["operation"] == "replace"
        ]
        query = f"SELECT count(*), sum(id), sum((id % 1009) * (id % 1009)) FROM lake.{NAMESPACE}.{self.name}"  # noqa: S608
        statements = [f"REFRESH TABLE lake.{NAMESPACE}.{self.name}", query]
        equal = self.sides.spark.ask("each", statements=statements)["rows"][0] == self.expected()
        deletes = sum(m["added_files_count"] + m["existing_files_count"] for m in manifests(saved) if m["content"])
        commits = (self.written - FILES) // TOGETHER
        saved.restore()
        self.written = FILES
        return {
            "s": round(found["s"], 1),
            "cpu_s": round(found["cpu"], 1),
            "peak_mib": round(found["mib"]),
            "written_mib": round(sum(int(s.get("added-files-size", 0)) for s in ours) / MEBIBYTE, 2),
            "rows_equal": equal,
            "commits_of_the_writer": commits,
            "delete_files_left": deletes,
        }

    def compare(self) -> dict[str, Any]:
        """Both in turn."""
        saved = self.create()
        options_ = {"delete_file_threshold": "1", "remove_dangling_deletes": "true"}
        statement = rewrite_data_files(self.name, 128, None, **options_)
        ours = self.measure(
            saved, lambda: self.sides.ours.ask("run", table=self.name, operation="rewrite_deletes", knobs={})
        )
        peer = self.measure(saved, lambda: self.sides.spark.ask("sql", statement=statement))
        return {
            "shape": f"v{self.version}, {FILES // TOGETHER} files of {self.rows * TOGETHER} rows, "
            f"{FILES} files of {self.keys} keys",
            "ours": ours,
            "peer": peer,
            "written_ratio": round(peer["written_mib"] / ours["written_mib"]) if ours["written_mib"] else None,
            "within_limit": ours["peak_mib"] < PEAK_LIMIT_MIB,
        }


def main() -> None:
    """Seed, measure, print."""
    chosen: argparse.Namespace = options(__doc__, "format v3 alone, of 20,000 rows a data file").parse_args()
    with bench(chosen) as sides, Child("benchmarks.kit.spark", str(sides.lake.home)) as writer:
        sides.spark.ask("sql", statement="SELECT 1")
        rows, versions = (2000, (3,)) if chosen.quick else (10_000, (2, 3))
        found = [Stream(f"upserts{v}", v, rows, 100, sides, writer).compare() for v in versions]
    line = {
        "benchmark": "equality_deletes",
        "peer": "Spark CALL rewrite_data_files, warm",
        "others": found[1:],
        **found[0],
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
