"""The orphan scan of a table on a real S3-compatible server, against Spark's procedure and against a bare listing.

Prints one JSON line. The server is versitygw, which is built once by Go; its objects are files, so that a table is made
quickly and looks old. Both sides say what is orphan and delete nothing. `raw_*` is how long obstore and boto3 take to
list the same prefix and to do nothing else: what a scan cannot be faster than.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import boto3
import obstore

from benchmarks.kit.bench import hours_ago
from benchmarks.kit.child import Child
from benchmarks.kit.lake import NAMESPACE, Lake
from benchmarks.kit.report import Comparison, Run, in_turn, show
from benchmarks.kit.tables import Seed
from tests.s3 import store, versitygw
from tests.servers.s3_server import BUCKET

HOURS, FOLDERS, IN_MANIFEST, TABLE = 72, 50, 2000, "littered"
KNOBS = {"remove_orphans.mode": "delete", "deletion.delay_hours": "0", "remove_orphans.older_than_hours": str(HOURS)}
PREFIX = f"warehouse/{NAMESPACE}/{TABLE}/"


def seed(lake: Lake, files: int, orphans: int) -> None:
    """A table of so many data files in some folders; a few of them are in no manifest."""
    made = Seed(lake, TABLE)
    lost = set(random.Random(7).sample(range(files), orphans))
    all_files = [replace(made.file(10 + number % FOLDERS), part=None) for number in range(files)]
    named = [file for number, file in enumerate(all_files) if number not in lost]
    for start in range(0, len(named), IN_MANIFEST):
        made.bulk(named[start : start + IN_MANIFEST])
    made.snapshot()
    made.publish()


@dataclass
class Raw:
    """The bare listings, timed."""

    s3: Mapping[str, str]
    objects: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"obstore": [], "boto3": []})

    def run(self) -> None:
        """The faster client; the slower one, which is many times slower, only once."""
        self._timed("obstore", self._obstore)
        if not self.seconds["boto3"]:
            self._timed("boto3", self._boto3)

    def median(self, client: str) -> float:
        """Seconds."""
        return round(statistics.median(self.seconds[client]), 3)

    def _timed(self, client: str, listed: Callable[[], int]) -> None:
        started = time.perf_counter()
        found = listed()
        self.seconds[client].append(time.perf_counter() - started)
        assert found == self.objects, (client, found, self.objects)

    def _obstore(self) -> int:
        return sum(page.num_rows for page in obstore.list(store(self.s3), PREFIX, chunk_size=10_000, return_arrow=True))

    def _boto3(self) -> int:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=self.s3["s3.endpoint"], **keys)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=PREFIX)
        return sum(len(page["Contents"]) for page in pages)


def main() -> None:
    """Seed, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="20,000 objects and 200 orphans, not 100,000 and 1,000; no run is left out"
    )
    parser.add_argument("--profile", action="store_true", help="where ours spends its time, on standard error")
    chosen = parser.parse_args()
    files, orphans = (20_000, 200) if chosen.quick else (100_000, 1_000)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(versitygw(home))
        lake = Lake(home)
        lake.serve(s3)
        lake.create()
        spark = stack.enter_context(Child("benchmarks.kit.spark", str(home)))
        ours = stack.enter_context(Child("benchmarks.kit.ours", str(home)))
        seed(lake, files, orphans)
        objects = sum(len(page) for page in obstore.list(store(s3), PREFIX))
        raw = Raw(s3, objects)
        spark.ask("sql", statement="SELECT 1")
        question = {"table": TABLE, "operation": "remove_orphans", "knobs": KNOBS, "dry_run": True}

        def scan() -> Run:
            raw.run()
            return ours.ask("run", **question)

        def procedure() -> Run:
            return spark.ask(
                "sql",
                statement=f"CALL lake.system.remove_orphan_files(table => '{NAMESPACE}.{TABLE}', older_than => "
                f"{hours_ago(HOURS)}, dry_run => true, prefix_listing => true)",
            )

        def found(run: Run) -> frozenset[str]:
            paths = frozenset(row[0] for row in run["rows"])
            assert len(paths) == orphans, len(paths)
            return paths

        turns = in_turn(scan, procedure, found, discard=0 if chosen.quick else 1)  # of three the first is no median
        if chosen.profile:
            ours.ask("run", **question, profile=True)
    ours_s = statistics.median(run["s"] for run in turns.ours)
    more = {
        "raw_obstore_s": raw.median("obstore"),
        "raw_boto3_s": raw.median("boto3"),
        "speed_of_raw_obstore": round(raw.median("obstore") / ours_s, 2),
        "speed_of_raw_boto3": round(raw.median("boto3") / ours_s, 2),
        "objects_per_s": round(objects / ours_s),
    }
    shape = f"{objects} objects on versitygw, {FOLDERS} folders, {orphans} orphans; dry run"
    show(Comparison("s3_orphans", "Spark CALL remove_orphan_files(prefix_listing => true), warm", shape, turns, more))


if __name__ == "__main__":
    main()
