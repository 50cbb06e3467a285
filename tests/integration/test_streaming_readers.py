"""Spark streams that read a maintained table: what they need to go on is pinned by their checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from icewright.core.policy import Operation
from icewright.flow.checkpoint import checkpoint_snapshot
from icewright.flow.detect import detect
from icewright.ports import SnapshotPin
from tests.integration.bench import Bench
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

EXPIRE = {"expire_snapshots.min_snapshots_to_keep": 1, "deletion.delay_hours": 0}


def stream(bench: Bench, name: str, checkpoint: Path, *, available_now: bool = True, skip: str = "") -> list[int]:
    """Run a stream over the table until it has read all; the ids that it read, in order."""
    read: list[int] = []
    frame = (
        bench.lake.spark().readStream.format("iceberg").options(**({skip: "true"} if skip else {})).load(f"lake.{name}")
    )
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.foreachBatch(lambda batch, _: read.extend(row["id"] for row in batch.collect()))
    query = writer.trigger(availableNow=True).start() if available_now else writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sorted(read)  # tasks end in any order


def pin(bench: Bench, name: str, checkpoint: Path, *, available_now: bool) -> int:
    """Pin what the stream needs, as `icewright pin --checkpoint` does."""
    detect(bench.runtime, ["lake"])
    metadata, now = bench.metadata(name), datetime.now(UTC)
    chosen = checkpoint_snapshot(bench.runtime.files, str(checkpoint), metadata, available_now=available_now)
    held = SnapshotPin("reader stream", chosen, now, now + timedelta(days=1), "test")
    assert bench.runtime.store.pins.add(bench.ref(name), metadata.table_uuid, held)
    return len([s for s in metadata.snapshots if s.timestamp < metadata.by_id[chosen].timestamp])


@pytest.mark.cases(142)
def test_streams_go_on_after_an_expiry(bench: Bench, new_name: Callable[[str], str], tmp_path: Path) -> None:
    """A stream reads each row once across an expiry, with either trigger; without its pin AvailableNow fails."""
    name, checkpoint = new_name("streamed"), tmp_path / "checkpoint"
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(0)", "(1)")
    first = bench.metadata(name).snapshots[0].snapshot_id
    assert stream(bench, name, checkpoint) == [0, 1]
    insert(bench, quoted, "(2)", "(3)")
    assert stream(bench, name, checkpoint) == [2, 3]
    insert(bench, quoted, "(4)")
    backdate_all(bench, name, 900, 300)

    assert pin(bench, name, checkpoint, available_now=True) == 0
    bench.run(name, Operation.EXPIRE_SNAPSHOTS, EXPIRE)
    assert bench.metadata(name).snapshots[0].snapshot_id == first
    assert stream(bench, name, checkpoint) == [4]

    insert(bench, quoted, "(5)")
    backdate_all(bench, name, 900, 300)
    assert pin(bench, name, checkpoint, available_now=False) == 4
    bench.run(name, Operation.EXPIRE_SNAPSHOTS, EXPIRE)
    assert len(bench.metadata(name).snapshots) == 2
    assert stream(bench, name, checkpoint, available_now=False) == [5]
    insert(bench, quoted, "(6)")
    with pytest.raises(StreamingQueryException, match="Cannot load current offset at snapshot"):
        stream(bench, name, checkpoint)


@pytest.mark.cases(142)
def test_what_a_stream_has_to_skip(bench: Bench, new_name: Callable[[str], str], tmp_path: Path) -> None:
    """Compaction needs no option of a stream; rows that age out end a stream that does not skip such snapshots."""
    name, checkpoint = new_name("skipped"), tmp_path / "checkpoint"
    quoted = create(bench, name, "id int, day date")
    insert(bench, quoted, *(f"({i}, date'2020-01-0{1 + i % 2}')" for i in range(5)))
    assert stream(bench, name, checkpoint) == [0, 1, 2, 3, 4]
    bench.run(name, Operation.COMPACT, {"compact.min_input_files": 2, "compact.hot_minutes": 0})
    insert(bench, quoted, "(5, current_date())", "(6, date'2020-01-01')")
    assert stream(bench, name, checkpoint) == [5, 6]

    bench.run(name, Operation.EXPIRE_ROWS, {"expire_rows.column": "day", "expire_rows.days": 90})
    assert bench.metadata(name).snapshots[-1].operation == "delete"
    with pytest.raises(StreamingQueryException, match="streaming-skip-delete-snapshots"):
        stream(bench, name, checkpoint)
    insert(bench, quoted, "(7, current_date())")
    assert stream(bench, name, checkpoint, skip="streaming-skip-delete-snapshots") == [7]
