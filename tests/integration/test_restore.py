"""What a commit puts back, of an expiry or of main's past: Spark and PyIceberg read it as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from icewright.adapters.metadata.changes import restoration
from icewright.app.demo import tables
from icewright.app.demo.files import local
from icewright.core.table import MAIN
from icewright.flow.detect import detect
from icewright.flow.restore import restore
from icewright.ports import RemoveSnapshots
from tests.integration.bench import Bench, spark_time
from tests.integration.tables import create, insert, tangle, version_one
from tests.integration.test_v3 import MERGE_ON_READ

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


def _returns(bench: Bench, name: str) -> None:
    tables.returns(bench.lake, name, size=200)


def _seen(bench: Bench, name: str) -> dict[str, Any]:
    """Everything that Spark shows of the table's past: rows by version and by time, snapshots, refs and history."""
    table = bench.lake.quoted(name)
    history = bench.sql(f"SELECT * FROM {table}.history")  # noqa: S608 - quoted
    times = [row["made_current_at"].astimezone() + timedelta(milliseconds=1) for row in history]
    counts = " UNION ALL ".join(
        f"SELECT {number} AS n, count(*) AS c FROM {table} TIMESTAMP AS OF {spark_time(time)}"  # noqa: S608 - quoted
        for number, time in enumerate(times)
    )
    return {
        "rows": bench.read(name, bench.versions(name)),
        "at": sorted(bench.sql(counts)),
        "history": history,
        "snapshots": bench.sql(f"SELECT * FROM {table}.snapshots"),  # noqa: S608 - quoted
        "refs": sorted(bench.sql(f"SELECT * FROM {table}.refs")),  # noqa: S608 - quoted
        "theirs": [s.model_dump_json() for s in bench.lake.catalog.load_table(name).snapshots()],
    }


@pytest.mark.parametrize("build", [tangle, version_one, _returns])
def test_spark_reads_what_was_put_back(
    build: Callable[[Bench, str], None], bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Every snapshot, tag and branch, by version and by time, and the table goes on."""
    name = new_name("restored")
    build(bench, name)
    before = _seen(bench, name)
    base = bench.metadata(name)
    gone = frozenset(base.by_id) - {base.current_snapshot_id or 0}
    change = RemoveSnapshots(gone, frozenset(r.name for r in base.refs) - {MAIN})
    undo = restoration(local(base.metadata_location).read_bytes(), base.metadata_location, change)
    catalog = bench.runtime.catalogs["lake"]
    expired = catalog.commit(base, change)
    assert len(bench.sql(f"SELECT * FROM {bench.lake.quoted(name)}.snapshots")) == 1  # noqa: S608 - quoted
    assert catalog.unrestorable(expired, undo) == ""
    catalog.commit(expired, undo)
    assert _seen(bench, name) == before
    document = json.loads(local(bench.metadata(name).metadata_location).read_text(encoding="utf-8"))
    old = json.loads(local(base.metadata_location).read_text(encoding="utf-8"))
    assert {key for key in document if document[key] != old.get(key)} == {"metadata-log", "last-updated-ms"}
    table = bench.lake.quoted(name)
    bench.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")  # noqa: S608 - quoted
    assert bench.read(name)["main"][0] == before["rows"]["main"][0] + 1


def evolved(bench: Bench, name: str, version: int) -> list[int]:
    """Make a table with deletes, a branch, a moved write path, and a column and a partition field more; its commits."""
    quoted = create(bench, name, "id int, part string", "part", MERGE_ON_READ if version > 1 else {}, version=version)
    insert(bench, quoted, "(1, 'a'), (2, 'a'), (3, 'b')", "(4, 'b')")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 1")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} CREATE BRANCH dev")
    insert(bench, quoted, "(5, 'c')", branch="dev")
    elsewhere = str(bench.folder(name).with_name(f"{name}-elsewhere")).replace("'", "\\'")
    bench.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('write.data.path' = 'file://{elsewhere}')")
    bench.sql(f"ALTER TABLE {quoted} ADD COLUMN more int")
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD bucket(2, id)")
    insert(bench, quoted, "(6, 'a', 60), (7, 'b', 70)")
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (2, 6)")  # noqa: S608 - quoted
    return [row["snapshot_id"] for row in bench.sql(f"SELECT snapshot_id FROM {quoted}.history")]  # noqa: S608 - quoted


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_restored_table_is_what_rollback_makes_of_it(
    version: int, bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Main reads as after Spark's rollback, all else as before, and Spark writes on; but for the tag all is equal."""
    name = new_name("returned")
    commits = evolved(bench, name, version)
    quoted, versions, found = bench.lake.quoted(name), bench.versions(name), []
    for ours in (False, True):
        with bench.aside(name):
            if ours:
                detect(bench.runtime, ["lake"])
                restore(bench.runtime, [bench.ref(name)], str(commits[1]))
            else:
                bench.call("rollback_to_snapshot", name, f"snapshot_id => {commits[1]}")
            document = json.loads(local(bench.metadata(name).metadata_location).read_text(encoding="utf-8"))
            for written in "metadata-log", "last-updated-ms":
                document.pop(written)
            document["snapshot-log"][-1].pop("timestamp-ms")
            tags = [ref for ref in document["refs"] if ref.startswith("icewright-before-restore-")]
            tagged = [document["refs"].pop(tag)["snapshot-id"] for tag in tags]
            assert tagged == ([commits[-1]] if ours else [])
            read = bench.read(name, versions)
            found.append((document, read))
            if ours:
                insert(bench, quoted, "(8, 'd', 80)")
                assert bench.read(name)["main"][0] == read["main"][0] + 1
    assert found[0] == found[1]
