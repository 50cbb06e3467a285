"""Tables that several tests are about, made by Spark and PyIceberg and then backdated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from icewright.app.demo.files import local, millis
from tests.integration.bench import Bench, hours_ago


def create(
    bench: Bench,
    name: str,
    columns: str,
    partition: str = "",
    properties: Mapping[str, str] | None = None,
    *,
    version: int = 2,
) -> str:
    """Make a table with Spark where `lake.folder` expects it; its quoted name."""
    bench.lake.identifier(name)
    said = {"format-version": str(version), **(properties or {})}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in said.items())
    quoted = bench.lake.quoted(name)
    partitioned = f"PARTITIONED BY ({partition})" if partition else ""
    place = str(bench.lake.folder(name)).replace("'", "\\'")
    bench.sql(
        f"CREATE TABLE {quoted} ({columns}) USING iceberg {partitioned} LOCATION 'file://{place}' "
        f"TBLPROPERTIES ({listed})"
    )
    return quoted


def insert(bench: Bench, quoted: str, *values: str, branch: str | None = None) -> None:
    """Append rows, a commit each."""
    table = quoted if branch is None else f"{quoted}.`branch_{branch}`"
    for row in values:
        bench.sql(f"INSERT INTO {table} VALUES {row}")  # noqa: S608


def spread_hours(count: int, first: float, last: float) -> list[float]:
    """Falling ages, as many as there are snapshots."""
    step = (first - last) / max(1, count - 1)
    return [first - step * i for i in range(count)]


def backdate_all(bench: Bench, name: str, first: float, last: float) -> Sequence[float]:
    """Spread all snapshots of a table over the hours from `first` to `last` ago; earlier versions are gone.

    Unlogged versions would look like those of another writer.
    """
    table = bench.lake.catalog.load_table(name)
    old = local(table.metadata_location)
    document = json.loads(old.read_text(encoding="utf-8"))
    order = sorted(document["snapshots"], key=lambda s: s.get("sequence-number", 0))
    ages = spread_hours(len(order), first, last)
    times = {s["snapshot-id"]: millis(at) for s, at in zip(order, hours_ago(*ages), strict=True)}
    for snapshot in document["snapshots"]:
        snapshot["timestamp-ms"] = times[snapshot["snapshot-id"]]
    head = document["current-snapshot-id"]
    document |= {
        "snapshot-log": [{"snapshot-id": head, "timestamp-ms": times[head]}],  # a rollback's would not rise
        "metadata-log": [],
        "last-updated-ms": max(times.values()),
    }
    path = old.with_name(f"{int(old.name.partition('-')[0]) + 1:05d}-backdated.metadata.json")
    for earlier in old.parent.glob("*.metadata.json"):
        earlier.unlink()
    path.write_text(json.dumps(document), encoding="utf-8")
    bench.lake.catalog.drop_table(name)
    bench.lake.catalog.register_table(name, f"file://{path}")
    return ages


def version_one(bench: Bench, name: str) -> None:
    """Make a format v1 table with appends, a copy-on-write delete and a compaction."""
    quoted = create(bench, name, "id int, part string", "part", version=1)
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a'), (4, 'b')", "(5, 'a')", "(6, NULL)")
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (1, 4)")  # noqa: S608 - quoted
    bench.call("rewrite_data_files", name, "options => map('rewrite-all', 'true')")
    insert(bench, quoted, "(7, 'a')")
    backdate_all(bench, name, 100, 2)


def statistics(bench: Bench, name: str) -> None:
    """Make a table with statistics and partition statistics of an old snapshot and of the current one."""
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a'), (2, 'b')")
    for procedure in ("compute_table_stats", "compute_partition_stats"):
        bench.call(procedure, name)
    insert(bench, quoted, "(3, 'a')", "(4, 'c')")
    for procedure in ("compute_table_stats", "compute_partition_stats"):
        bench.call(procedure, name)
    backdate_all(bench, name, 60, 5)


def tangle(bench: Bench, name: str) -> None:
    """Make a table with branches and tags of every retention, and with snapshots that no ref leads to."""
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(1), (2)", "(3)", "(4)", "(5)")
    ids = [s.snapshot_id for s in bench.metadata(name).snapshots]
    for statement in (
        f"CREATE TAG `outlived-tag` AS OF VERSION {ids[0]} RETAIN 3 DAYS",
        f"CREATE TAG `plain-tag` AS OF VERSION {ids[1]}",
        f"CREATE BRANCH `outlived-branch` AS OF VERSION {ids[0]} RETAIN 3 DAYS",
        f"CREATE BRANCH `keeps-age` AS OF VERSION {ids[2]} WITH SNAPSHOT RETENTION 40 HOURS",
        f"CREATE BRANCH `keeps-count` AS OF VERSION {ids[2]} WITH SNAPSHOT RETENTION 2 SNAPSHOTS",
    ):
        bench.sql(f"ALTER TABLE {quoted} {statement}")
    insert(bench, quoted, "(20)", "(21)", "(22)", branch="keeps-age")
    insert(bench, quoted, "(30)", "(31)", branch="keeps-count")
    _rolled_back(bench, name, quoted)
    _staged(bench, name, quoted)
    _added_again(bench, name, quoted)
    backdate_all(bench, name, 120, 2)


def _rolled_back(bench: Bench, name: str, quoted: str) -> None:
    head = bench.metadata(name).current_snapshot_id
    insert(bench, quoted, "(40)", "(41)")
    bench.call("rollback_to_snapshot", name, f"snapshot_id => {head}")
    insert(bench, quoted, "(42)")


def _staged(bench: Bench, name: str, quoted: str) -> None:
    """Stage two commits, publish the first of them."""
    conf = bench.lake.spark().conf
    known = {s.snapshot_id for s in bench.metadata(name).snapshots}
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    for number, wap in ((50, "published"), (51, "pending")):
        conf.set("spark.wap.id", wap)
        insert(bench, quoted, f"({number})")
    conf.unset("spark.wap.id")
    insert(bench, quoted, "(52)")
    staged = next(s.snapshot_id for s in bench.metadata(name).snapshots if s.snapshot_id not in known)
    bench.call("cherrypick_snapshot", name, f"snapshot_id => {staged}")
    bench.sql(f"ALTER TABLE {quoted} UNSET TBLPROPERTIES ('write.wap.enabled')")


def _added_again(bench: Bench, name: str, quoted: str) -> None:
    """Remove a file by a whole-file delete and add the same path again."""
    (row,) = bench.sql(f"SELECT DISTINCT _file AS f FROM {quoted} WHERE id = 42")  # noqa: S608 - quoted
    bench.sql(f"DELETE FROM {quoted} WHERE id = 42")  # noqa: S608 - quoted
    insert(bench, quoted, "(60)")
    table = bench.lake.catalog.load_table(name)
    table.add_files([row["f"]])
