"""The demo's tables are what their stories say, whole, and free of garbage that was not planted."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from icewright.app.demo import tables
from icewright.app.demo.files import local
from icewright.app.demo.lake import Lake, Rot
from icewright.app.demo.proof import Fingerprint, fingerprint, fingerprints

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

NAMES = [
    "web.clicks",
    "web.events",
    "web.sessions",
    "shop.payments",
    "shop.customers",
    "shop.products",
    "ops.metrics",
    "ops.uploads",
    "ops.shared",
    "ops.ledger",
    "shop.orders",
    "shop.returns",
]
PLANTED = {"ops.uploads": 12 + 3, "ops.shared": 6 + 32 + 4 + 4 + 1}
YOUNG = timedelta(days=3)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the build told, filled by `rots`."""
    return []


@pytest.fixture(scope="module")
def rots(lake: Lake, said: list[str]) -> tuple[Rot, ...]:
    """Every table of the demo, made once."""
    return tables.build(lake, said.append)


@pytest.fixture(scope="module")
def prints(lake: Lake, rots: tuple[Rot, ...]) -> dict[str, Fingerprint]:
    """What Spark reads of each table."""
    return fingerprints(lake.spark(), [one.name for one in rots])


@pytest.fixture
def load(lake: Lake, rots: tuple[Rot, ...]) -> Callable[[str], Table]:
    """Load one of the demo's tables with PyIceberg."""
    return lake.catalog.load_table


def entries(table: Table) -> Iterator[ManifestEntry]:
    """The live entries of the current snapshot."""
    snapshot = table.current_snapshot()
    assert snapshot
    for manifest in snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io)


def kinds(table: Table) -> Counter[tuple[DataFileContent, FileFormat]]:
    """How many live files there are of each kind."""
    return Counter((e.data_file.content, e.data_file.file_format) for e in entries(table))


def reachable(table: Table) -> set[Path]:
    """Every file that the table's metadata names."""
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    found = {table.metadata_location, *log}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                listed = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                found.update(entry.data_file.file_path for entry in listed)
    return {local(path) for path in found}


def unreferenced(lake: Lake, table: Table, name: str) -> list[Path]:
    """The files in the table's folder that its metadata does not name; hidden ones are Hadoop's checksums."""
    named = reachable(table)
    files = [path for path in lake.folder(name).rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert named <= set(files), "a file that the table needs is missing"
    return sorted(set(files) - named)


def age(lake: Lake, path: Path) -> timedelta:
    """How long ago a file was last written."""
    return lake.now - datetime.fromtimestamp(path.stat().st_mtime, UTC)


def commit_ages(lake: Lake, table: Table) -> list[timedelta]:
    """How long ago each snapshot was committed, the oldest first."""
    order = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    return [lake.now - datetime.fromtimestamp(s.timestamp_ms / 1000, UTC) for s in order]


def good_sizes(table: Table) -> bool:
    """Whether no live data file is a candidate of Iceberg's planner."""
    target = int(table.properties["write.target-file-size-bytes"])
    sizes = [e.data_file.file_size_in_bytes for e in entries(table) if e.data_file.content == DataFileContent.DATA]
    return all(0.75 * target <= size <= 1.8 * target for size in sizes)


def test_build_tells_of_every_table(rots: tuple[Rot, ...], said: list[str]) -> None:
    """Each of the twelve tables has a name, a story and a line."""
    assert [one.name for one in rots] == [f"lake.{name}" for name in NAMES]
    assert said == [f"{one.name}: {one.story}" for one in rots]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "shop.payments"])
def test_spark_and_pyiceberg_read_the_same(
    name: str, load: Callable[[str], Table], prints: dict[str, Fingerprint]
) -> None:
    """Both see the same number of rows; PyIceberg reads every row that it counts."""
    scan = load(name).scan()
    assert scan.to_arrow().num_rows == scan.count() == prints[f"lake.{name}"].rows > 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_lies_about_but_what_was_planted(name: str, lake: Lake, load: Callable[[str], Table]) -> None:
    """A file that no metadata names is planted; there are no others of any age."""
    assert len(unreferenced(lake, load(name), name)) == PLANTED.get(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_times_tell_one_story(name: str, lake: Lake, load: Callable[[str], Table]) -> None:
    """Commit times rise with sequence numbers, and files are as old as the snapshots that added them."""
    table = load(name)
    ages = commit_ages(lake, table)
    assert ages == sorted(ages, reverse=True)
    assert len(set(ages)) == len(ages)
    assert ages[-1] > timedelta(0)
    logged = [e.timestamp_ms for e in table.metadata.metadata_log]
    assert [*logged, table.metadata.last_updated_ms] == sorted([*logged, table.metadata.last_updated_ms])
    when = {s.snapshot_id: s.timestamp_ms / 1000 for s in table.metadata.snapshots}
    for snapshot in table.metadata.snapshots:
        assert local(snapshot.manifest_list).stat().st_mtime == pytest.approx(when[snapshot.snapshot_id], abs=0.01)
    for entry in entries(table):
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in when:
            written = local(entry.data_file.file_path).stat().st_mtime
            assert written == pytest.approx(when[entry.snapshot_id], abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_spark_sees_the_same_history(name: str, lake: Lake, load: Callable[[str], Table]) -> None:
    """Spark lists the snapshots, manifests and files that PyIceberg lists, so each manifest is valid for both."""
    table, spark = load(name), lake.spark()
    snapshot = table.current_snapshot()
    assert snapshot
    quoted = lake.quoted(name)
    assert spark.table(f"{quoted}.`snapshots`").count() == len(table.metadata.snapshots)
    assert spark.table(f"{quoted}.`manifests`").count() == len(snapshot.manifests(table.io))
    contents = spark.table(f"{quoted}.`files`").groupBy("content").count().collect()
    assert dict(map(tuple, contents)) == Counter(int(e.data_file.content) for e in entries(table))


def test_clicks_are_a_stream(lake: Lake, load: Callable[[str], Table]) -> None:
    """300 small files and snapshots over ten days, in daily partitions, the newest of which is hot."""
    table = load("web.clicks")
    ages = commit_ages(lake, table)
    assert len(ages) == 300
    assert ages[0] == pytest.approx(timedelta(days=10), abs=timedelta(seconds=1))
    assert ages[-1] < timedelta(minutes=5)
    assert kinds(table) == {(DataFileContent.DATA, FileFormat.PARQUET): 300}
    per_day = Counter(e.data_file.partition[0] for e in entries(table))
    assert len(per_day) in (10, 11)
    assert max(e.data_file.file_size_in_bytes for e in entries(table)) < 64 * 1024


def test_orders_have_position_deletes(load: Callable[[str], Table]) -> None:
    """Spark left position-delete files in every region, and no other kind of deletes."""
    table = load("shop.orders")
    assert table.format_version == 2
    assert set(kinds(table)) == {
        (DataFileContent.DATA, FileFormat.PARQUET),
        (DataFileContent.POSITION_DELETES, FileFormat.PARQUET),
    }
    deletes = Counter(
        e.data_file.partition[0] for e in entries(table) if e.data_file.content == DataFileContent.POSITION_DELETES
    )
    assert set(deletes) == {"apac", "emea", "latam", "noram"}
    assert min(deletes.values()) >= 5


def test_payments_obey_equality_deletes(lake: Lake, load: Callable[[str], Table]) -> None:
    """Spark reads what the spec says: a key deleted and written again later lives, with its last amount."""
    table = load("shop.payments")
    live = sorted(entries(table), key=lambda e: e.sequence_number or 0)
    deletes = [e for e in live if e.data_file.content == DataFileContent.EQUALITY_DELETES]
    assert {tuple(e.data_file.equality_ids or ()) for e in deletes} == {(1,), (2, 3)}
    expected: list[tuple[object, ...]] = []
    for data in (e for e in live if e.data_file.content == DataFileContent.DATA):
        later = [e for e in deletes if (e.sequence_number or 0) > (data.sequence_number or 0)]
        dead = [pq.read_table(local(e.data_file.file_path)).to_pylist() for e in later]
        rows = pq.read_table(local(data.data_file.file_path)).to_pylist()
        alive = [row for row in rows if not any(key.items() <= row.items() for keys in dead for key in keys)]
        expected.extend((row["payment_id"], row["amount"]) for row in alive)
    read = lake.spark().table(lake.quoted("shop.payments")).select("payment_id", "amount").collect()
    assert sorted(map(tuple, read)) == sorted(expected)
    ids = [row[0] for row in read]
    assert len(ids) == len(set(ids)) == 12 * 40 - 3
    assert tables.PAYMENT_BACK in ids
    assert not {tables.PAYMENT_GONE, *tables.PAYMENTS_GONE_BY_ORDER} & set(ids)


def test_returns_have_deletion_vectors(load: Callable[[str], Table]) -> None:
    """The table is of format v3; at most one deletion vector hides rows of each data file."""
    table = load("shop.returns")
    assert table.format_version == 3
    found = kinds(table)
    vectors = found.pop((DataFileContent.POSITION_DELETES, FileFormat.PUFFIN))
    assert set(found) == {(DataFileContent.DATA, FileFormat.PARQUET)}
    assert 1 <= vectors <= found[DataFileContent.DATA, FileFormat.PARQUET]


def test_events_have_only_scattered_manifests(load: Callable[[str], Table]) -> None:
    """120 manifests of one file each, whose files are as large as the table wants them."""
    table = load("web.events")
    snapshot = table.current_snapshot()
    assert snapshot
    manifests = snapshot.manifests(table.io)
    assert len(manifests) == 120
    assert {m.added_files_count for m in manifests} == {1}
    assert good_sizes(table)
    assert len(table.metadata.snapshots) == 4


def test_metrics_have_a_pinned_history(lake: Lake, load: Callable[[str], Table]) -> None:
    """400 snapshots of a month with replaced files; the tag and the branch read the same in Spark and PyIceberg."""
    table = load("ops.metrics")
    ages = commit_ages(lake, table)
    assert len(ages) == 400
    assert ages[0] == pytest.approx(timedelta(days=30), abs=timedelta(seconds=1))
    assert sum(kinds(table).values()) == 3
    assert len(list(lake.folder("ops.metrics").glob("data/*.parquet"))) == 400
    tag, branch = table.refs()[tables.METRICS_TAG], table.refs()[tables.METRICS_BRANCH]
    assert tag.snapshot_ref_type == SnapshotRefType.TAG
    assert branch.min_snapshots_to_keep == tables.METRICS_BRANCH_KEEPS
    for name in (tables.METRICS_TAG, tables.METRICS_BRANCH):
        seen = fingerprint(lake.spark(), "lake.ops.metrics", name)
        assert seen.rows == table.scan().use_ref(name).to_arrow().num_rows == 300
        assert seen == fingerprint(lake.spark(), "lake.ops.metrics", table.refs()[name].snapshot_id)
        assert seen != fingerprint(lake.spark(), "lake.ops.metrics")


def test_customers_evolved(lake: Lake, load: Callable[[str], Table]) -> None:
    """Small files lie under both specs; one column was renamed and one added."""
    table = load("shop.customers")
    per_spec = Counter(e.data_file.spec_id for e in entries(table))
    assert len(per_spec) == 2
    assert min(per_spec.values()) >= 10
    assert table.schema().column_names == ["customer_id", "full_name", "country", "since", "email"]
    read = lake.spark().table(lake.quoted("shop.customers"))
    assert read.selectExpr("count(*)", "count(`full_name`)", "count(`email`)").head() == (900, 900, 300)


def test_uploads_have_old_and_young_orphans(lake: Lake, load: Callable[[str], Table]) -> None:
    """Old orphans of data and of each metadata kind, and young ones; far fewer than the files that are needed."""
    table = load("ops.uploads")
    orphans = unreferenced(lake, table, "ops.uploads")
    old = [path for path in orphans if age(lake, path) > YOUNG]
    young = [path for path in orphans if age(lake, path) < timedelta(hours=2)]
    assert (len(old), len(young)) == (12, 3)
    assert Counter((path.parent.name, path.name.partition(".")[2]) for path in old) == {
        ("data", "parquet"): 9,
        ("metadata", "avro"): 2,
        ("metadata", "metadata.json"): 1,
    }
    assert len(orphans) < len(reachable(table)) / 2


def test_shared_holds_another_table(lake: Lake, load: Callable[[str], Table]) -> None:
    """Old orphans, and a whole table of another uuid that names the same folder."""
    table = load("ops.shared")
    orphans = unreferenced(lake, table, "ops.shared")
    assert all(age(lake, path) > YOUNG for path in orphans if "aborted" in path.name)
    (foreign,) = [path for path in orphans if path.name.endswith(".metadata.json")]
    document = json.loads(foreign.read_text())
    assert document["table-uuid"] != str(table.metadata.table_uuid)
    assert document["location"] == table.location()
    assert len(document["snapshots"]) == 4
    assert all(local(snapshot["manifest-list"]) in orphans for snapshot in document["snapshots"])


@pytest.mark.parametrize(("name", "at_least", "at_most"), [("web.sessions", 59.99, 61), ("shop.products", 0, 0.25)])
def test_healthy_tables(name: str, at_least: float, at_most: float, lake: Lake, load: Callable[[str], Table]) -> None:
    """A few snapshots of good files, in the quiet table 60 days old and in the other written today."""
    table = load(name)
    ages = commit_ages(lake, table)
    assert len(ages) <= 3
    assert all(timedelta(days=at_least) <= one <= timedelta(days=at_most) for one in ages)
    assert good_sizes(table)


def test_ledger_forbids_expiry(lake: Lake, load: Callable[[str], Table]) -> None:
    """A history of 60 days under gc.enabled=false."""
    table = load("ops.ledger")
    assert table.properties["gc.enabled"] == "false"
    ages = commit_ages(lake, table)
    assert len(ages) == 120
    assert ages[0] == pytest.approx(timedelta(days=60), abs=timedelta(seconds=1))


def test_made_up_tables_can_be_maintained(lake: Lake, new_name: Callable[[str], str]) -> None:
    """Iceberg's own procedures work on crafted and back-dated tables and change no row."""
    stream, history, orders = (new_name(stem) for stem in ("clicks", "metrics", "orders"))
    made = [
        tables.clicks(lake, stream, commits=24, rows_per_file=20),
        tables.metrics(lake, history, commits=24, rows_per_file=20),
        tables.orders(lake, orders, commits=2, rows_per_file=100),
    ]
    spark = lake.spark()
    before = fingerprints(spark, [one.name for one in made])
    call = "CALL `lake`.`system`."
    compacted = spark.sql(f"{call}`rewrite_data_files`(table => '{stream}', options => map('min-input-files', '2'))")
    assert compacted.collect()[0]["rewritten_data_files_count"] >= 20
    spark.sql(f"{call}`rewrite_manifests`('{history}')")
    expired = spark.sql(f"{call}`expire_snapshots`(table => '{history}', retain_last => 1)").collect()[0]
    assert expired["deleted_data_files_count"] > 0
    rewritten = spark.sql(
        f"{call}`rewrite_position_delete_files`(table => '{orders}', options => map('rewrite-all', 'true'))"
    ).collect()[0]
    assert rewritten["rewritten_delete_files_count"] > 0
    assert fingerprints(spark, before) == before
    assert fingerprint(spark, f"lake.{history}", tables.METRICS_TAG).rows > 0


def test_same_seed_same_table(tmp_path: Path) -> None:
    """What is crafted depends on the seed and the name alone, and starts no Spark."""

    def never() -> NoReturn:
        raise AssertionError

    now = datetime(2026, 5, 4, 0, 3, tzinfo=UTC)
    made = []
    for folder, seed in (("a", 7), ("b", 7), ("c", 8)):
        home = tmp_path / folder
        home.mkdir()
        catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}")
        lake = Lake(catalog, never, home, now, seed)
        tables.clicks(lake, commits=3, rows_per_file=5)
        table = catalog.load_table("web.clicks")
        made.append((table.metadata.table_uuid, [s.snapshot_id for s in table.snapshots()], table.scan().to_arrow()))
        catalog.close()
    for one, same, other in zip(*made, strict=True):
        assert one == same != other


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VALUES (1, 'a'), (2, 'b')", "VALUES (2, 'b'), (1, 'a')", True),
        ("VALUES (1, 'a'), (2, 'b')", "VALUES (1, 'b'), (2, 'a')", False),
        ("VALUES (1), (1)", "VALUES (2), (2)", False),
        ("VALUES (1)", "VALUES (1), (1)", False),
        ("VALUES (1, int(null))", "VALUES (int(null), 1)", False),
        ("VALUES (array(1, null))", "VALUES (array(1))", False),
        ("VALUES (cast(array() AS array<int>))", "VALUES (cast(null AS array<int>))", False),
        ("VALUES (map('a', 1, 'b', 2))", "VALUES (map('b', 2, 'a', 1))", True),
        ("VALUES (array(map('a', array(1))))", "VALUES (array(map('a', array(2))))", False),
        ("VALUES (struct(1, int(null)))", "VALUES (struct(int(null), 1))", False),
        ("VALUES (double('nan'), 1)", "VALUES (double('nan'), 1)", True),
        ("VALUES (double('nan'))", "VALUES (double(null))", False),
        ("""VALUES (parse_json('{"a": 1}'))""", """VALUES (parse_json('{"a": 2}'))""", False),
    ],
)
def test_fingerprints_tell_tables_apart(
    one: str, other: str, same: bool, lake: Lake, new_name: Callable[[str], str]
) -> None:
    """Order of rows and of map entries does not count; every value, null and copy of a row does."""
    spark, name = lake.spark(), new_name("values")
    lake.identifier(name)
    spark.sql(one).writeTo(lake.quoted(name)).using("iceberg").tableProperty("format-version", "3").create()
    before = fingerprint(spark, f"lake.{name}")
    spark.sql(other).writeTo(lake.quoted(name)).overwritePartitions()
    assert (fingerprint(spark, f"lake.{name}") == before) is same


def test_fingerprint_of_odd_names_and_no_rows(lake: Lake, new_name: Callable[[str], str]) -> None:
    """Names are quoted whatever they hold; an empty table has a fingerprint too."""
    name = new_name("it's a `b`")
    lake.identifier(name)
    lake.spark().sql(f"CREATE TABLE {lake.quoted(name)} (`a.b` int, `c``d` struct<`e f`: int>) USING iceberg")
    table = lake.rot(name, "").name
    assert fingerprint(lake.spark(), table) == Fingerprint(0, "0" * 32)
    row = lake.spark().sql("SELECT 1 AS `a.b`, named_struct('e f', 2) AS `c``d`")
    row.writeTo(lake.quoted(name)).append()
    assert fingerprint(lake.spark(), table).rows == 1
