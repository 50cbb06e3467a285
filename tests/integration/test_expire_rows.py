"""Rows that are too old go: whole files from the metadata alone, else by rewriting; nothing younger goes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due, NotDue
from tests.integration.bench import Bench
from tests.integration.tables import create

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

DAYS = 30
COPY = {f"write.{verb}.mode": "copy-on-write" for verb in ("delete", "update", "merge")}
MERGE = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}


def policy(column: str) -> Mapping[str, object]:
    """Rows of thirty days ago go."""
    return {"expire_rows.column": column, "expire_rows.days": DAYS, "expire_rows.enabled": True}


def fill(bench: Bench, quoted: str, *ages: int, nulls: int = 0) -> None:
    """A row for each age in days, at midnight and at noon, in one commit."""
    value = "date_trunc('DAY', current_timestamp()) - make_dt_interval(age) + make_dt_interval(0, hours)"
    listed = ", ".join(map(str, ages))
    bench.sql(
        f"INSERT INTO {quoted} SELECT age * 100 + hours, {value} FROM "  # noqa: S608 - quoted
        f"(SELECT explode(array({listed})) AS age) CROSS JOIN (SELECT explode(array(0, 12)) AS hours)"
    )
    for number in range(nulls):
        bench.sql(f"INSERT INTO {quoted} VALUES ({9000 + number}, NULL)")  # noqa: S608 - quoted


def ids(bench: Bench, quoted: str) -> list[int]:
    """The rows that are there."""
    return sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}"))  # noqa: S608 - quoted


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_whole_days_go_from_the_metadata_alone(kind: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Where files hold whole days, no file is written and no younger row is touched; the dry run names the files."""
    name = new_name("aged")
    partition = "seen" if kind == "date" else "days(seen)"
    quoted = create(bench, name, f"id int, seen {kind}", partition, MERGE)
    fill(bench, quoted, 0, 1, 29, 30, 31, 45, nulls=1)
    before = bench.live(name)
    dry = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"), dry_run=True)
    assert bench.live(name) == before
    done = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert done.state is OperationState.COMMITTED, done
    assert ids(bench, quoted) == [0, 12, 100, 112, 2900, 2912, 3000, 3012, 9000]
    after = bench.live(name)
    assert not after - before
    assert {f.path.rpartition("/")[2] for f in dry.files} == {p.rpartition("/")[2] for _, p in before - after}
    assert {f.kind for f in dry.files} == {"data"}
    assert dry.summary == f"would drop {len(dry.files)} files and delete rows of 0 more"
    assert (done.metrics["rows_deleted"], done.metrics["files_rewritten"]) == (4, 0)
    assert done.metrics["files_deleted"] == len(before - after)
    assert done.summary.startswith(f"deleted 4 rows with seen before {_cutoff()} (")
    found = bench.evaluate(name, policy("seen")).verdicts[Operation.EXPIRE_ROWS]
    assert isinstance(found, NotDue)


@pytest.mark.parametrize("mode", [COPY, MERGE], ids=["copy", "merge"])
def test_files_of_many_days_are_rewritten(
    mode: Mapping[str, str], bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Where a file holds young rows too, the old ones are deleted row by row, once a day."""
    name = new_name("mixed")
    quoted = create(bench, name, "id int, seen timestamp", "", mode)
    fill(bench, quoted, 0, 29, 31)
    fill(bench, quoted, 45, 60)
    dry = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"), dry_run=True)
    assert sorted({f.kind for f in dry.files}) == ["data", "data, in part"]
    done = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert done.state is OperationState.COMMITTED, done
    assert ids(bench, quoted) == [0, 12, 2900, 2912]
    assert done.metrics["rows_deleted"] == 6
    assert isinstance(bench.evaluate(name, policy("seen")).verdicts[Operation.EXPIRE_ROWS], NotDue)


def test_folders_of_hive_grow_old(bench: Bench, new_name: Callable[[str], str], tmp_path: Path) -> None:
    """Files that `add_files` took over lack the partition column, and so its bounds: old folders go all the same."""
    name = new_name("hive")
    quoted = create(bench, name, "id int, seen date", "seen")
    days = "date_sub(current_date(), age) AS seen FROM (SELECT explode(array(1, 29, 31, 45)) AS age)"
    bench.lake.spark().sql(f"SELECT age AS id, {days}").write.partitionBy("seen").parquet(f"{tmp_path}/hive")
    bench.call("add_files", name, f"source_table => '`parquet`.`{tmp_path}/hive`'")
    done = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert (done.metrics["rows_deleted"], done.metrics["files_deleted"]) == (2, 2), done
    assert ids(bench, quoted) == [1, 29]
    assert isinstance(bench.evaluate(name, policy("seen")).verdicts[Operation.EXPIRE_ROWS], NotDue)


def test_where_nothing_is_known_of_ages_rows_are_looked_for(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Files without bounds may hold old rows; where they hold none, no empty snapshot is committed day by day."""
    name = new_name("boundless")
    quoted = create(bench, name, "id int, seen timestamp", "", {**MERGE, "write.metadata.metrics.default": "none"})
    fill(bench, quoted, 1, 45, nulls=1)
    done = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert (done.state, done.metrics["rows_deleted"]) == (OperationState.COMMITTED, 2), done
    before = bench.metadata(name)
    again = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert (again.state, again.reason) == (OperationState.SKIPPED, f"no rows with seen before {_cutoff()}")
    assert bench.metadata(name).metadata_location == before.metadata_location
    assert ids(bench, quoted) == [100, 112, 9000]


def test_milliseconds_of_another_writer_are_refused(
    bench: Bench, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Spark reads them as microseconds of 1970, and would delete yesterday's rows too; Arrow rewrites them."""
    name = new_name("millis")
    quoted = create(bench, name, "id int, seen timestamp")
    ages = [1, 29, 45]
    seen = pa.array([datetime.now(UTC) - timedelta(days=age) for age in ages], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"id": pa.array(ages, pa.int32()), "seen": seen}), tmp_path / "000000_0")
    bench.call("add_files", name, f"source_table => '`parquet`.`{tmp_path}`'")
    for dry_run in (True, False):
        found = bench.run(name, Operation.EXPIRE_ROWS, policy("seen"), dry_run=dry_run)
        assert "seen in milliseconds, which Spark reads as microseconds" in found.reason, found
    bench.run(name, Operation.COMPACT, {"compact.engine": "arrow", "compact.rewrite_all": True})
    bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert ids(bench, quoted) == [1, 29]


def test_a_tag_keeps_old_rows(bench: Bench, new_name: Callable[[str], str]) -> None:
    """What a tag holds is read by it as before; only main forgets."""
    name = new_name("tagged")
    quoted = create(bench, name, "id int, seen timestamp", "days(seen)")
    fill(bench, quoted, 1, 45)
    bench.sql(f"ALTER TABLE {quoted} CREATE TAG kept")
    bench.run(name, Operation.EXPIRE_ROWS, policy("seen"))
    assert ids(bench, quoted) == [100, 112]
    assert len(bench.sql(f"SELECT id FROM {quoted} VERSION AS OF 'kept'")) == 4  # noqa: S608 - quoted


def test_off_unless_a_policy_asks(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Without `expire_rows.enabled` nothing is due, whatever column and days say."""
    name = new_name("off")
    quoted = create(bench, name, "id int, seen timestamp", "days(seen)")
    fill(bench, quoted, 45)
    by = policy("seen")
    assert isinstance(bench.evaluate(name, by).verdicts[Operation.EXPIRE_ROWS], Due)
    off = {**by, "expire_rows.enabled": False}
    assert not isinstance(bench.evaluate(name, off).verdicts[Operation.EXPIRE_ROWS], Due)


def _cutoff() -> str:
    return str(datetime.now(UTC).date().fromordinal(datetime.now(UTC).date().toordinal() - DAYS))
