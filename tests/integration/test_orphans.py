"""Orphan removal in-service against Spark's dry run on the same table: the same paths, and never a live one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from icewright.app.demo import tables
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench, make_old, paths, spark_time
from tests.integration.planting import OLD, plain, plant, remove
from tests.integration.tables import create, insert, statistics, version_one

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


def by_spark(bench: Bench, name: str) -> frozenset[str]:
    """What Spark's procedure would remove, in one spelling."""
    cutoff = spark_time(datetime.now(UTC) - timedelta(hours=24, minutes=1))
    rows = bench.call("remove_orphan_files", name, f"older_than => {cutoff}, dry_run => true")
    return paths(row["orphan_file_location"] for row in rows if not row["orphan_file_location"].endswith(".crc"))


def check(bench: Bench, name: str, planted: set[Path]) -> None:
    """Ours finds what Spark finds, removes exactly that, and a second scan finds nothing."""
    files, read = bench.files(name), bench.read(name)
    expected = paths(map(str, planted))
    assert by_spark(bench, name) == expected
    said = remove(bench, name, dry_run=True)
    assert said.state is OperationState.COMMITTED, said
    assert bench.files(name) == files
    assert paths(f.path for f in said.files) == expected
    done = remove(bench, name)
    assert paths(f.path for f in done.files) == expected
    assert files - bench.files(name) == frozenset(map(str, planted))
    assert bench.read(name) == read
    assert remove(bench, name).metrics["orphans_removed"] == 0


def _orders(bench: Bench, name: str) -> None:
    tables.orders(bench.lake, name, commits=2, rows_per_file=30)


def _returns(bench: Bench, name: str) -> None:
    tables.returns(bench.lake, name, size=200)


def _gzipped(bench: Bench, name: str) -> None:
    quoted = create(bench, name, "id int", properties={"write.metadata.compression-codec": "gzip"})
    insert(bench, quoted, "(1)", "(2)")


@pytest.mark.cases(51, 53, 54, 55, 59, 60, 66, 68, 73, 74)
@pytest.mark.parametrize(
    "build",
    [plain, _orders, _returns, _gzipped, statistics, version_one],
    ids=["partitioned", "position deletes", "deletion vectors", "gzip", "statistics", "v1"],
)
def test_finds_what_spark_finds(
    build: Callable[[Bench, str], None], bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Of a table whose files are all old only planted ones go: none that is hidden, young, or reached by any way."""
    name = new_name("orphans")
    build(bench, name)
    folder = bench.folder(name)
    make_old(folder)
    odd = ("data/a+b c.parquet", "data/é=%20/x#y?.parquet", "data/deep/er/file", "metadata/gone-m0.avro")
    planted = plant(folder, "data/orphan.parquet", *odd)
    logged = {Path(p).name for p in bench.metadata(name).metadata_log}
    unlogged = {p for p in (folder / "metadata").glob("*.metadata.json") if p.name not in logged}
    current = bench.metadata(name).metadata_location.rpartition("/")[2]
    plant(folder, "_hidden/x.parquet", "data/.tmp/x.parquet", "data/_temporary/0/x", "data/.part-0")
    plant(folder, "data/young.parquet", days=0.5)
    plant(folder, "data/future.parquet", days=-5)
    check(bench, name, planted | {p for p in unlogged if p.name != current})


@pytest.mark.nightly
@pytest.mark.cases(151)
@pytest.mark.parametrize("hashed", [False, True], ids=["folders", "hashes"])
def test_what_crashed_jobs_left_goes_by_itself(hashed: bool, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Nobody has to say a word where Spark's jobs have died, in whatever partition: it is what Spark finds too."""
    name = new_name("orphans")
    # whose log does not say that the table is younger than what it left
    properties = {"write.object-storage.enabled": str(hashed).lower(), "write.metadata.previous-versions-max": "1"}
    insert(bench, create(bench, name, "id int, part string, k int", "part, bucket(4, k)", properties), "(1, 'a', 1)")
    folder = bench.folder(name)
    make_old(folder)
    (live,) = (folder / "data").rglob("*.parquet")
    partition = live.relative_to(folder).parent
    other = str(partition).replace("part=a", "part=never+seen").replace("k_bucket=0", "k_bucket=3")
    left = plant(folder, *(f"{place}/00000-9-{live.name}" for place in (partition, other, "data")))
    assert by_spark(bench, name) == paths(map(str, left))
    done = bench.run(name, Operation.REMOVE_ORPHANS, OLD, manual=False)
    assert paths(f.path for f in done.files) == paths(map(str, left)), done
    assert bench.read(name)["main"][0] == 1


@pytest.mark.cases(54)
def test_version_hint_is_kept(bench: Bench, new_name: Callable[[str], str]) -> None:
    """The hint of Hadoop tables names the current metadata: it is no orphan, though no metadata names it."""
    name = new_name("hint")
    plain(bench, name)
    make_old(bench.folder(name))
    plant(bench.folder(name), "metadata/version-hint.text", content=b"3")
    assert remove(bench, name).metrics["orphans_found"] == 0


ODD_NAME = 'id"~!@$%^&*()/'
VALUES = ("a b", "a+b", "a%20b", "é", "e\u0301", "x/y", "_h", ".d", "a=b", "a#b?c", "", "%", "a%2Fb")


@pytest.mark.cases(59, 60)
@pytest.mark.parametrize("odd", ["plain", "sp ace+%20é", "50%"])
def test_no_live_file_is_flagged_for_its_name(odd: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Whatever the location, the column and the partition values hold, nothing that is live is an orphan."""
    name = new_name("odd")
    bench.lake.identifier(name)
    quoted, place = bench.lake.quoted(name), bench.lake.warehouse / "odd" / f"{odd} {name}"
    location = f"file://{place}"
    bench.sql(
        f"CREATE TABLE {quoted} (n int, `{ODD_NAME}` string, `_p` string, `.q` int) USING iceberg "
        f"PARTITIONED BY (`{ODD_NAME}`, `_p`, `.q`) LOCATION '{location}'"
    )
    rows = ", ".join(f"({n}, '{v}', '{v}', {n})" for n, v in enumerate(VALUES))
    insert(bench, quoted, rows, "(-1, NULL, NULL, NULL)")
    make_old(place)
    found = remove(bench, name, dry_run=True)
    assert found.state is OperationState.COMMITTED, found
    assert found.files == ()
    assert found.metrics["files_scanned"] >= len(VALUES) + 1
    data = [p for p in place.rglob("*.parquet") if "_p=" in str(p)]
    orphan = data[0].with_name("orphan.parquet")
    plant(orphan.parent, orphan.name)
    read = bench.read(name)
    assert remove(bench, name).metrics["orphans_removed"] == 1
    assert not orphan.exists()
    assert bench.read(name) == read


@pytest.mark.cases(61)
@pytest.mark.parametrize("key", ["write.data.path", "write.object-storage.enabled", "write.metadata.path"])
def test_files_in_other_places_are_live(key: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Data and metadata outside the location, or under hashed folders, are never flagged."""
    name = new_name("elsewhere")
    inside = key == "write.object-storage.enabled"
    other = bench.lake.warehouse / "elsewhere" / name
    quoted = create(bench, name, "id int", properties={key: "true" if inside else f"file://{other}"})
    insert(bench, quoted, "(1)", "(2)")
    make_old(bench.folder(name))
    elsewhere = set() if inside else {p for p in other.rglob("*") if p.is_file()}
    found = remove(bench, name)
    assert found.state is OperationState.COMMITTED, found
    assert found.metrics["orphans_found"] == 0
    assert all(p.exists() for p in elsewhere)
    assert bench.read(name)["main"][0] == 2


@pytest.mark.cases(53, 13)
def test_leftovers_of_an_expiry_are_found(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Files that an expiry forgot, as after a crash, are orphans; with the expiry's files gone nothing live is."""
    name = new_name("leftovers")
    tables.metrics(bench.lake, name, commits=12, rows_per_file=3)
    make_old(bench.folder(name))
    knobs = {
        "deletion.delay_hours": 0,
        "expire_snapshots.retention_hours": 2,
        "expire_snapshots.min_snapshots_to_keep": 1,
    }
    would = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs, dry_run=True)
    kept = {**knobs, "expire_snapshots.delete_files": False}
    assert bench.run(name, Operation.EXPIRE_SNAPSHOTS, kept).metrics["files_deleted"] == 0
    read = bench.read(name, bench.versions(name))
    done = remove(bench, name)
    assert paths(f.path for f in done.files) == paths(f.path for f in would.files)
    assert bench.read(name, bench.versions(name)) == read


@pytest.mark.cases(67, 73)
def test_a_file_committed_meanwhile_is_kept(
    bench: Bench, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that took for ever commits its old file between the scan and the deletion: the file stays."""
    name = new_name("slow")
    plain(bench, name)
    folder = bench.folder(name)
    make_old(folder)
    source = next((folder / "data").rglob("*.parquet"))
    late = source.with_name("late.parquet")
    shutil.copyfile(source, late)
    plant(folder, "data/orphan.parquet")
    make_old(folder, only=["late.parquet"])
    table = bench.lake.catalog.load_table(name)
    ledger: Any = type(bench.runtime.store.ledger)
    original, calls = ledger.plan, []

    def plan(*arguments: Any, **more: Any) -> None:
        calls.append(1)
        if len(calls) == 2:  # the first call writes the findings down, the second the deletions
            table.add_files([f"file://{late}"])
        original(*arguments, **more)

    monkeypatch.setattr(ledger, "plan", plan)
    done = remove(bench, name)
    assert len(calls) == 2
    assert late.exists()
    assert not (folder / "data/orphan.parquet").exists()
    assert paths(f.path for f in done.files) == paths([str(folder / "data/orphan.parquet")])
    assert bench.read(name)["main"][0] == 4


def test_report_and_confirm_wait(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Mode report deletes nothing, and mode confirm nothing before a day has passed since the first finding."""
    name = new_name("modes")
    plain(bench, name)
    make_old(bench.folder(name))
    orphans = plant(bench.folder(name), "data/orphan.parquet")
    for mode in ("report", "confirm", "confirm"):
        done = remove(bench, name, {**OLD, "remove_orphans.mode": mode})
        assert done.metrics["orphans_found"] == 1
        assert done.metrics["orphans_removed"] == 0
    assert all(p.exists() for p in orphans)
