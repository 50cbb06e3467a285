"""Which kernel takes what: tables of the demo, tables that are sorted, and what Arrow leaves to Spark, in words."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icewright.app.demo import tables
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.steps import Due, NotDue, RewriteDataFiles
from tests.integration.bench import Bench
from tests.integration.compacting import compacted
from tests.integration.javacore import JavaTable
from tests.integration.pictures import KNOBS, compare, picture
from tests.integration.tables import create, insert
from tests.integration.test_compaction import MERGE_ON_READ
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

Name = Callable[[str], str]
OLDER = "files of an older partition spec are partitioned again"


def compact(bench: Bench, name: str, kernel: str = "auto") -> Outcome:
    """One compaction that keeps every row."""
    query = f"SELECT * FROM {bench.lake.quoted(name)}"  # noqa: S608 - quoted
    before = sorted(map(str, bench.sql(query)))
    found = bench.run(name, Operation.COMPACT, {**KNOBS, "compact.engine": kernel})
    assert sorted(map(str, bench.sql(query))) == before
    return found


def _orders(bench: Bench, name: str) -> None:
    tables.orders(bench.lake, name, commits=3, rows_per_file=60)


def _payments(bench: Bench, name: str) -> None:
    tables.payments(bench.lake, name, checkpoints=9, rows_per_file=40)


def _clicks(bench: Bench, name: str) -> None:
    tables.clicks(bench.lake, name, commits=20, rows_per_file=5)


def _returns(bench: Bench, name: str) -> None:
    tables.returns(bench.lake, name, size=300)


@pytest.mark.parametrize("build", [_orders, nightly(_payments), nightly(_clicks), nightly(_returns)])
def test_tables_of_the_demo(build: Callable[[Bench, str], None], bench: Bench, new_name: Name) -> None:
    """Position deletes, equality deletes, a stream of small files and deletion vectors: the same rows and deletes."""
    name = new_name("demo")
    build(bench, name)
    found = compare(bench, name)
    assert [said for said in found.differences if said.startswith(("rows", "delete files", "partitions"))] == []


@pytest.mark.cases(41, 42)
def test_older_specs_are_left_to_spark(bench: Bench, new_name: Name) -> None:
    """Partitions of the current spec go as Arrow, those of an older one by Spark; Arrow alone is refused."""
    name = new_name("specs")
    quoted = create(bench, name, "id int, part string, other string", "part")
    insert(bench, quoted, "(1, 'a', 'x')", "(2, 'a', 'y')")
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD other")
    insert(bench, quoted, "(3, 'a', 'x')", "(4, 'a', 'x')")
    refused = compact(bench, name, "arrow")
    assert refused.state is OperationState.SKIPPED
    assert f"compact.engine is arrow, but {OLDER}" in refused.reason
    done = compact(bench, name)
    assert done.state is OperationState.COMMITTED, done
    assert any(OLDER in note for note in done.notes)
    assert {key.split(" ")[0] for key in picture(bench, name).files} == {"1"}


def test_specs_whose_column_is_dropped(bench: Bench, new_name: Name) -> None:
    """Iceberg writes their partition values anew as nulls of a type that takes no bytes: the table is still read."""
    name = new_name("dropped")
    quoted = create(bench, name, "id int, part string, other string", "part, other")
    insert(bench, quoted, "(1, 'a', 'x')", "(2, 'a', 'y')")
    bench.sql(f"ALTER TABLE {quoted} DROP PARTITION FIELD other")
    bench.sql(f"ALTER TABLE {quoted} DROP COLUMN other")
    insert(bench, quoted, "(3, 'a')", "(4, 'a')")  # which merges the manifests of the older spec
    assert compact(bench, name).state is OperationState.COMMITTED
    assert picture(bench, name).files.keys() == {'1 ["a"]'}


def test_files_go_into_the_spec_that_is_asked_for(bench: Bench, new_name: Name) -> None:
    """As by Spark's `output-spec-id`: large or small, with deletes or not, also into an earlier spec, once each."""
    name = new_name("respecced")
    quoted = create(bench, name, "id int, part string, other string", "part", MERGE_ON_READ)
    insert(bench, quoted, "(1, 'a', 'x'), (2, 'a', 'y'), (3, 'a', 'y')", "(4, 'b', 'x'), (5, NULL, NULL)")
    bench.sql(f"DELETE FROM {quoted} WHERE id = 2")  # noqa: S608 - quoted
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD other")
    insert(bench, quoted, "(6, 'a', 'x')")
    for wanted, spec_id in (("current", 1), (0, 0)):
        asked = {**KNOBS, "compact.min_input_files": 9, "compact.output_spec_id": wanted}
        saved = bench.save(name)
        options = f"options => map('rewrite-all', 'true', 'output-spec-id', '{spec_id}')"
        bench.call("rewrite_data_files", name, options)
        theirs = picture(bench, name)
        saved.restore()
        done = compacted(bench, name, asked)
        assert "output-spec-id" in done.outcome.statements[0]
        ours = picture(bench, name)
        assert {key: len(files) for key, files in ours.files.items()} == {k: len(f) for k, f in theirs.files.items()}
        assert ours.rows == theirs.rows
        assert {key.split(" ")[0] for key in ours.files} == {str(spec_id)}
        assert bench.run(name, Operation.COMPACT, asked).state is OperationState.SKIPPED


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_all_files_are_rewritten_where_that_is_asked(engine: str, bench: Bench, new_name: Name) -> None:
    """As by Spark's `rewrite-all`, one file in each partition too; a cycle does it once after each write."""
    name = new_name("all")
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a')")
    asked = {**KNOBS, "compact.rewrite_all": True, "compact.engine": engine}
    done = compacted(bench, name, asked)
    assert len(done.removed) == 3
    assert {key: len(files) for key, files in picture(bench, name).files.items()} == {'0 ["a"]': 1, '0 ["b"]': 1}
    verdict = bench.evaluate(name, asked).verdicts[Operation.COMPACT]
    assert isinstance(verdict, NotDue), verdict
    insert(bench, quoted, "(4, 'b')")
    verdict = bench.evaluate(name, asked).verdicts[Operation.COMPACT]
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, RewriteDataFiles)
    assert len(step.partitions) == 1


@pytest.mark.nightly
def test_options_of_the_procedure_reach_it(bench: Bench, new_name: Name) -> None:
    """Few files at a time by Arrow, until all are merged; options of sorts by Spark, which takes no unknown one."""
    name = new_name("options")
    quoted = create(bench, name, "id int, s string")
    insert(bench, quoted, *(f"({n}, 'x{n}')" for n in range(5)))
    few = {"max-files-to-rewrite": "3", "max-file-group-input-files": "2", "rewrite-job-order": "files-asc"}
    asked = {**KNOBS, "compact.options": few, "compact.engine": "arrow"}
    done = [bench.run(name, Operation.COMPACT, asked) for _ in range(2)]
    assert [(one.metrics["files_merged"], one.metrics["files_left"]) for one in done] == [(3, 2), (3, 1)]
    assert "each call rewrites 3 of its files at most: compact.options says so" in done[0].notes
    sorts = {"compression-factor": "1.5", "shuffle-partitions-per-file": "2", "max-output-size": "64"}
    by_spark = {"compact.strategy": "zorder", "compact.sort_order": "id, s", "compact.rewrite_all": True}
    options = {**few, **sorts, "max-files-to-rewrite": "99", "var-length-contribution": "4"}
    last = compacted(bench, name, {**KNOBS, **by_spark, "compact.options": options})
    assert all(f"'{option}', '{value}'" in last.outcome.statements[0] for option, value in options.items())
    assert sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}")) == [*range(5)]  # noqa: S608 - quoted


@pytest.mark.cases(23)
def test_deletes_of_another_spec(bench: Bench, new_name: Name) -> None:
    """Equality deletes of before the table was partitioned still delete what was written before them."""
    name = new_name("global")
    quoted = create(bench, name, "id int, part string")
    insert(bench, quoted, "(1, 'a'), (2, 'a')")
    java = JavaTable.load(bench, name)
    java.row_delta(deletes=[java.equality_deletes({"id": [2]}, ["id"])])
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD part")
    insert(bench, quoted, "(2, 'a')", "(3, 'a')")
    assert compact(bench, name).state is OperationState.COMMITTED
    assert sorted(row["id"] for row in bench.sql(f"SELECT id FROM {quoted}")) == [1, 2, 3]  # noqa: S608 - quoted


def test_the_order_of_the_table_is_kept(bench: Bench, new_name: Name) -> None:
    """Merging files of a sorted table sorts them, and the entry says by which order, as with Spark."""
    name = new_name("ordered")
    quoted = create(bench, name, "id int, s string")
    bench.sql(f"ALTER TABLE {quoted} WRITE ORDERED BY s DESC NULLS LAST, id")
    insert(bench, quoted, "(3, 'b'), (1, NULL)", "(2, 'c'), (4, 'b')")
    found = compare(bench, name)
    assert found.differences == []
    ((file,),) = found.arrow.files.values()
    assert file.entry["sort-order-id"] == 1
    assert file.table.column("id").to_pylist() == [2, 3, 4, 1]
    assert "//" not in file.path.removeprefix("file://")


def test_an_order_of_transforms_is_left_to_spark(bench: Bench, new_name: Name) -> None:
    """Also where a sort order is told: the table's own would be claimed of files that have it not."""
    name = new_name("transforms")
    quoted = create(bench, name, "id int, s string")
    bench.sql(f"ALTER TABLE {quoted} WRITE ORDERED BY truncate(1, s)")
    insert(bench, quoted, "(1, 'b'), (2, 'a')", "(3, 'c')")
    assert bench.metadata(name).sort_order_id == 1
    told = {**KNOBS, "compact.strategy": "sort", "compact.sort_order": "s"}
    for knobs in ({**KNOBS, "compact.engine": "arrow"}, {**told, "compact.engine": "arrow"}):
        refused = bench.run(name, Operation.COMPACT, knobs)
        assert refused.state is OperationState.SKIPPED, refused
        assert "compact.engine is arrow, but the table's sort order has transforms" in refused.reason
    done = compact(bench, name)
    assert done.state is OperationState.COMMITTED, done
    assert any("kernel spark: the table's sort order has transforms" in note for note in done.notes)


@pytest.mark.parametrize("version", ["2", "3"])
def test_partitions_of_no_number(bench: Bench, new_name: Name, version: str) -> None:
    """NaN as a partition value is more than Iceberg's own JSON can say: where that is needed Spark takes them."""
    name = new_name("nan")
    quoted = create(bench, name, "id int, p double", "p", {"format-version": version})
    for rows in ("(1, double('nan')), (2, 1.5)", "(3, double('nan')), (4, 1.5)"):
        insert(bench, quoted, rows)
    done = compact(bench, name)
    assert done.state is OperationState.COMMITTED, done
    assert any("a partition value is not a number" in note for note in done.notes) is (version == "3")
    assert sum(map(len, picture(bench, name).files.values())) == 2


def test_files_without_ids_are_left_to_spark(bench: Bench, new_name: Name) -> None:
    """Spark finds their columns by position; with Arrow alone nothing is done, and it says why."""
    name = new_name("noids")
    bench.lake.identifier(name)
    place = f"file://{bench.lake.folder(name)}"
    table = bench.lake.catalog.create_table(name, Schema(NestedField(1, "id", LongType())), place)
    folder = bench.lake.folder(name) / "data"
    folder.mkdir(parents=True)
    for number in range(2):
        pq.write_table(pa.table({"id": [number, 7]}), folder / f"{number}.parquet")
    table.add_files([f"file://{folder}/{number}.parquet" for number in range(2)])
    with bench.lake.catalog.load_table(name).transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    refused = compact(bench, name, "arrow")
    assert refused.state is OperationState.SKIPPED
    assert "files without field ids" in refused.reason
    done = compact(bench, name)
    assert done.state is OperationState.COMMITTED, done
    assert any("files without field ids" in note for note in done.notes)


def test_a_broken_file_is_named_beside_what_was_done(bench: Bench, new_name: Name) -> None:
    """The partition of a file with a flipped bit stays, the other is compacted, and the outcome names the file."""
    name = new_name("broken")
    quoted = create(bench, name, "id int, p string", "p", {"write.parquet.compression-codec": "uncompressed"})
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(3, 'a'), (4, 'b')")
    broken = min((bench.folder(name) / "data").glob("p=a/*.parquet"))
    content = bytearray(broken.read_bytes())
    content[30] ^= 1
    broken.write_bytes(content)
    done = bench.run(name, Operation.COMPACT, KNOBS)
    assert done.state is OperationState.COMMITTED, done
    assert any(broken.name in note for note in done.notes), done.notes
    assert done.metrics["files_merged"] == 2
    assert sum(path.endswith(".parquet") for _, path in bench.live(name)) == 3
