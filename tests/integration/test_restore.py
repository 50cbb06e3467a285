"""What an expiry removed from the metadata and a commit put back: Spark and PyIceberg read it as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from icewright.adapters.metadata.restoring import restoration
from icewright.app.demo import rot
from icewright.app.demo.files import local
from icewright.core.table import MAIN
from icewright.ports import RemoveSnapshots
from tests.integration.bench import Bench, spark_time
from tests.integration.tables import tangle, version_one

pytestmark = pytest.mark.spark


def _returns(bench: Bench, name: str) -> None:
    rot.returns(bench.lake, name, size=200)


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
    assert catalog.restorable(expired, undo) == ""
    catalog.commit(expired, undo)
    assert _seen(bench, name) == before
    document = json.loads(local(bench.metadata(name).metadata_location).read_text(encoding="utf-8"))
    old = json.loads(local(base.metadata_location).read_text(encoding="utf-8"))
    assert {key for key in document if document[key] != old.get(key)} == {"metadata-log", "last-updated-ms"}
    table = bench.lake.quoted(name)
    bench.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")  # noqa: S608 - quoted
    assert bench.read(name)["main"][0] == before["rows"]["main"][0] + 1
