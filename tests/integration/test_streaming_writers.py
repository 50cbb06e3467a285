"""A real Spark stream that writes to a maintained table, and died between its table commit and its own commit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from icewright.core.policy import Operation
from tests.integration.bench import Bench
from tests.integration.tables import backdate_all, create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


def batch(bench: Bench, name: str, home: Path, number: int) -> None:
    """Give the stream one more file of three rows, and let it write all that it has not."""
    inbox = home / "inbox"
    inbox.mkdir(exist_ok=True)
    rows = "".join(f'{{"id": {3 * number + row}}}\n' for row in range(3))
    (inbox / f"{number}.json").write_text(rows, encoding="utf-8")
    frame = bench.lake.spark().readStream.schema("id int").json(str(inbox))
    writer = frame.writeStream.format("iceberg").option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).toTable(f"lake.{name}")
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.cases(139)
@pytest.mark.parametrize("keeps", [True, nightly(False, id="0 days")])
def test_no_epoch_is_written_twice(
    bench: Bench, new_name: Callable[[str], str], tmp_path: Path, *, keeps: bool
) -> None:
    """The default expiry keeps the epoch that the restarted stream looks for; without it the rows come twice."""
    name = new_name("sink")
    quoted = create(bench, name, "id int")
    for number in range(3):
        batch(bench, name, tmp_path, number)
    for log in (tmp_path / "checkpoint" / "commits").glob("*2*"):  # with its checksum
        log.unlink()
    insert(bench, quoted, *(f"({-row})" for row in range(1, 6)))
    backdate_all(bench, name, 500, 220)
    knobs = {"deletion.delay_hours": 0} | ({} if keeps else {"expire_snapshots.writer_state_days": 0})
    bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs)
    assert len(bench.metadata(name).snapshots) == (6 if keeps else 5)

    batch(bench, name, tmp_path, 3)
    rows = Counter(row["id"] for row in bench.lake.spark().table(quoted).collect())
    assert set(rows) == set(range(-5, 12))
    assert [row for row, times in rows.items() if times > 1] == ([] if keeps else [6, 7, 8])
