"""Compaction as Arrow sorts as Spark does in bounded memory, leaves to Spark what it cannot do, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icewright.adapters.engines.arrow.executors import Piece, exchange
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from tests.integration.bench import Bench
from tests.integration.javacore import JavaTable
from tests.integration.pictures import KNOBS, DataFile, compare, few, live, picture
from tests.integration.tables import create

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]
MERGE_ON_READ = {"write.delete.mode": "merge-on-read"}


def run(bench: Bench, name: str, knobs: Mapping[str, object]) -> Outcome:
    """One compaction."""
    return bench.run(name, Operation.COMPACT, {**KNOBS, **knobs})


def data_files(bench: Bench, name: str, *, rows: bool = True) -> list[DataFile]:
    """The live data files by name, which is the order in which a task wrote them."""
    found, _ = live(JavaTable.load(bench, name), rows=rows)
    return sorted((file for some in found.values() for file in some), key=lambda file: file.path)


KEYS = (
    "cast(id as int) id, if(id % 7 = 0, NULL, substr('zébc\U0001f600A', int(id % 6) + 1)) s, "
    "if(id % 11 = 0, double('nan'), if(id % 13 = 0, NULL, if(id % 17 = 0, -0.0D, double(id % 9 - 4)))) f, "
    "if(id % 5 = 0, NULL, cast(id % 19 - 9 as decimal(10, 2))) dec, if(id % 3 = 0, NULL, id % 2 = 0) b, "
    "if(id % 4 = 0, NULL, date_add(date'2000-01-01', int(id % 6))) dt"
)


@pytest.mark.parametrize(
    "order",
    few(
        1, ("f DESC NULLS LAST, s ASC NULLS FIRST", "dec NULLS LAST, f, id DESC", "s DESC NULLS FIRST", "b, dt DESC, f")
    ),
)
def test_sorted_as_spark_sorts(order: str, bench: Bench, new_name: Name) -> None:
    """Rows come out in the order of the same keys, whatever their type and wherever nulls and NaN are to be."""
    name = new_name("sorted")
    quoted = create(bench, name, "id int, s string, f double, dec decimal(10, 2), b boolean, dt date")
    for first in (0, 300):
        bench.sql(f"INSERT INTO {quoted} SELECT {KEYS} FROM range({first}, {first + 300})")  # noqa: S608 - quoted
    found = compare(bench, name, {"compact.strategy": "sort", "compact.sort_order": order})
    assert found.differences == []
    keys = [key.split()[0] for key in order.split(",")]
    ((theirs,),), ((ours,),) = found.spark.files.values(), found.arrow.files.values()
    assert _words(ours.table.select(keys)) == _words(theirs.table.select(keys))


def _words(table: pa.Table) -> list[str]:
    """The rows; zeros of either sign are equal to whoever sorts."""
    return [repr(row).replace("-0.0", "0.0") for row in table.to_pylist()]


@pytest.mark.parametrize("strategy", few(1, ("sort", "zorder")))
def test_sorted_in_little_memory(strategy: str, bench: Bench, new_name: Name) -> None:
    """More rows than a task may hold are sorted across all outputs, each row once."""
    name = new_name("spilled")
    quoted = create(bench, name, "id bigint, k int, w string", "", {"write.parquet.compression-codec": "snappy"})
    wide = f"concat({', '.join(['uuid()'] * 8)})"
    for first in (0, 100_000):
        bench.sql(
            f"INSERT INTO {quoted} SELECT /*+ REPARTITION(4) */ id, cast(hash(id) % 5000 as int), {wide} "  # noqa: S608
            f"FROM range({first}, {first + 100_000})"
        )
    before = bench.read(name)
    order = "k, id" if strategy == "zorder" else "k DESC, id"
    knobs = {"compact.strategy": strategy, "compact.sort_order": order}
    done = run(
        bench,
        name,
        {**knobs, "compact.engine": "arrow", "compact.task_memory_mb": 256, "compact.target_file_size_mb": 10},
    )
    assert done.state is OperationState.COMMITTED, done
    assert bench.read(name) == before
    files = data_files(bench, name)
    counts = [file.entry["record-count"] for file in files]
    assert len(files) > 3, "more than tasks read for themselves: rows went through Spark's shuffle"
    assert max(counts) < 1.1 * min(counts), "several tasks have sorted ranges, which a sample has divided"
    if strategy == "sort":
        rows = pa.concat_tables([file.table.select(["k", "id"]) for file in files])
        assert rows.equals(rows.take(pc.sort_indices(rows, [("k", "descending"), ("id", "ascending")])))


def test_rows_in_the_shuffle_come_a_few_at_a_time(bench: Bench) -> None:
    """By default Spark hands a task 64 MB of them at once, which takes 200 MB beside the memory that rows may take."""

    def split(pieces: int) -> Iterator[Piece]:
        return (Piece(0, bytes(4 << 20), None) for _ in range(pieces))

    def taken(_: int, pieces: Iterator[Piece]) -> Iterator[int]:
        most = max(_resident_mib() for _ in pieces)
        yield most - _resident_mib()

    (mib,) = exchange(bench.lake.spark(), split, taken, [20], 1, json.dumps, json.loads)
    assert mib < 48


def _resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) >> 8


def test_values_that_are_too_large(bench: Bench, new_name: Name) -> None:
    """A group whose values do not fit into a task is left to Spark with a note, and left alone by Arrow alone."""
    name = new_name("large")
    quoted = create(bench, name, "id bigint, k string, part int", "part")
    for first in (0, 10):
        bench.sql(
            f"INSERT INTO {quoted} SELECT /*+ COALESCE(1) */ id, "  # noqa: S608 - quoted
            f"if(id % 10 < 5, 'short', concat(repeat('q', 5000000), id)), if(id % 10 < 5, 2, 1) "
            f"FROM range({first}, {first + 10}) ORDER BY 3"
        )
    knobs = {"compact.strategy": "sort", "compact.sort_order": "k DESC, id", "compact.task_memory_mb": 256}
    paths = {file.path for file in data_files(bench, name, rows=False)}
    done = run(bench, name, {**knobs, "compact.engine": "arrow"})
    assert any("compact.task_memory_mb" in note for note in done.notes), done
    assert {file.path for file in data_files(bench, name, rows=False)} >= paths - {
        path for path in paths if "part=2" in path
    }
    done = run(bench, name, {**knobs, "compact.engine": "auto"})
    assert done.state is OperationState.COMMITTED, done
    assert any("left to Spark's own path" in note for note in done.notes)
    files = data_files(bench, name, rows=False)
    assert len(files) == 2
    assert sum(file.footer.num_rows for file in files) == 20


@pytest.mark.cases(41)
def test_an_older_spec_is_refused_where_arrow_is_forced(bench: Bench, new_name: Name) -> None:
    """Files that are to be partitioned again are Spark's, and who forces Arrow is told so."""
    name = new_name("respecced")
    quoted = create(bench, name, "id bigint, part string", "")
    for number in range(2):
        bench.sql(f"INSERT INTO {quoted} VALUES ({number}, 'a')")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD part")
    done = run(bench, name, {"compact.engine": "arrow"})
    assert done.state is OperationState.SKIPPED
    assert "older partition spec" in done.reason


def broken_table(bench: Bench, name: str) -> str:
    """Three partitions of two files each, in many pages."""
    small = {"write.parquet.row-group-size-bytes": "200000", "write.parquet.page-size-bytes": "4000"}
    quoted = create(bench, name, "id bigint, s string, part string", "part", {**small, **MERGE_ON_READ}, version=3)
    for first in (0, 6000):
        bench.sql(
            f"INSERT INTO {quoted} SELECT /*+ COALESCE(1) */ id, concat(uuid(), uuid()), "  # noqa: S608 - quoted
            f"substr('abc', int(id % 3) + 1, 1) FROM range({first}, {first + 6000}) ORDER BY 3"
        )
    bench.sql(f"DELETE FROM {quoted} WHERE id % 10 = 1")  # noqa: S608 - quoted
    return quoted


def _cut(path: Path, _: Any) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _garbled(path: Path, _: Any) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 300 + content[304:])


def _gone(path: Path, _: Any) -> None:
    path.unlink()


def _longer(path: Path, _: Any) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\0" + content[4:])


def _vector(_: Path, delete: Any) -> None:
    path = Path(local_path(str(delete.location())) or "")
    content = bytearray(path.read_bytes())
    content[int(delete.contentOffset()) + int(delete.contentSizeInBytes()) - 6] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", few(2, (_garbled, _vector, _cut, _gone, _longer)))
def test_a_broken_file_spoils_its_own_group_alone(
    damage: Callable[[Path, Any], None], bench: Bench, new_name: Name
) -> None:
    """Of several partitions that of a broken file stays as it was, the others are committed, no file is left over."""
    name = new_name("broken")
    broken_table(bench, name)
    rows = picture(bench, name).rows
    saved = bench.save(name)
    for path in saved.copy.rglob("*.*"):  # hard links of what is damaged
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    tasks = JavaTable.load(bench, name).table.newScan().planFiles().iterator()
    found = iter(tasks.next, None)
    task = next(one for one in found if "part=b" in str(one.file().location()))
    victim = Path(local_path(str(task.file().location())) or "")
    damage(victim, task.deletes()[0])
    before = bench.files(name)
    done = run(bench, name, {"compact.engine": "arrow"})
    assert done.state is OperationState.COMMITTED, done
    assert done.metrics["bins"] == 2
    assert "2 data files could not be rewritten" in done.notes
    assert len([path for path in bench.files(name) - before if "/data/" in path]) == 2
    _mend(bench, name, saved.copy, victim)
    assert picture(bench, name).rows == rows


def _mend(bench: Bench, name: str, copy: Path, victim: Path) -> None:
    """Put what was damaged back as it was."""
    folder = bench.folder(name)
    for path in (victim, *folder.rglob("*.puffin")):
        path.write_bytes((copy / path.relative_to(folder)).read_bytes())


def test_an_entry_that_counts_other_rows(bench: Bench, new_name: Name) -> None:
    """A file that has not as many rows as its entry says is left alone with its group."""
    name = new_name("miscounted")
    broken_table(bench, name)
    java = JavaTable.load(bench, name)
    victim = java.live()[0].file
    builder = java.java.DataFiles.builder(java.table.spec()).copy(victim).withRecordCount(victim.recordCount() + 1)
    java.table.newOverwrite().deleteFile(victim).addFile(builder.build()).commit()
    done = run(bench, name, {"compact.engine": "arrow"})
    assert done.state is OperationState.COMMITTED, done
    assert done.metrics["bins"] == 2
    assert str(victim.location()) in bench.lake.spark().table(f"lake.{name}.files").toArrow()["file_path"].to_pylist()
