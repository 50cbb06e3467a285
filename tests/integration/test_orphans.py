"""Orphan removal in-service against Spark's dry run on the same table: the same paths, and never a live one."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from icewright.app.demo import rot
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from tests.integration.bench import Bench, make_old, paths, spark_time
from tests.integration.tables import create, insert, statistics, version_one

pytestmark = pytest.mark.spark

DELETE: Mapping[str, object] = {"remove_orphans.mode": "delete"}
OLD = {**DELETE, "remove_orphans.older_than_hours": 24, "remove_orphans.max_delete_ratio": 1.0}


def remove(bench: Bench, name: str, knobs: Mapping[str, object] = OLD, *, dry_run: bool = False) -> Outcome:
    """Orphan removal in-service."""
    return bench.run(name, Operation.REMOVE_ORPHANS, knobs, dry_run=dry_run)


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


def plant(folder: Path, *relative: str, content: bytes = b"x", days: float = 10) -> set[Path]:
    """Leave files as failed writes would have."""
    made = {folder / one for one in relative}
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        at = (datetime.now(UTC) - timedelta(days=days)).timestamp()
        os.utime(path, (at, at))
    return made


def _plain(bench: Bench, name: str) -> None:
    quoted = create(bench, name, "id int, part string", "part")
    insert(bench, quoted, "(1, 'a')", "(2, 'b')", "(3, 'a')")


def _orders(bench: Bench, name: str) -> None:
    rot.orders(bench.lake, name, commits=2, rows_per_file=30)


def _returns(bench: Bench, name: str) -> None:
    rot.returns(bench.lake, name, size=200)


def _gzipped(bench: Bench, name: str) -> None:
    quoted = create(bench, name, "id int", **{"write.metadata.compression-codec": "gzip"})
    insert(bench, quoted, "(1)", "(2)")


@pytest.mark.cases(51, 53, 54, 55, 59, 60, 66, 73, 74)
@pytest.mark.parametrize(
    "build",
    [_plain, _orders, _returns, _gzipped, statistics, version_one],
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


@pytest.mark.cases(54)
def test_version_hint_is_kept(bench: Bench, new_name: Callable[[str], str]) -> None:
    """The hint of Hadoop tables names the current metadata: it is no orphan, though no metadata names it."""
    name = new_name("hint")
    _plain(bench, name)
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
    quoted = create(bench, name, "id int", **{key: "true" if inside else f"file://{other}"})
    insert(bench, quoted, "(1)", "(2)")
    make_old(bench.folder(name))
    elsewhere = set() if inside else {p for p in other.rglob("*") if p.is_file()}
    found = remove(bench, name)
    assert found.state is OperationState.COMMITTED, found
    assert found.metrics["orphans_found"] == 0
    assert all(p.exists() for p in elsewhere)
    assert bench.read(name)["main"][0] == 2


@pytest.mark.cases(57, 58)
def test_schemes_and_authorities(bench: Bench, new_name: Callable[[str], str]) -> None:
    """`file:/x` and `file:///x` are one place; a file named under a foreign authority stops the run."""
    name = new_name("schemes")
    _plain(bench, name)
    make_old(bench.folder(name))
    table = bench.lake.catalog.load_table(name)
    metadata = bench.folder(name) / "metadata" / table.metadata_location.rpartition("/")[2]
    document = metadata.read_text()
    for spelling in ("file:/", "file:////"):
        _point(bench, name, document.replace("file:///", spelling))
        assert remove(bench, name, dry_run=True).metrics["orphans_found"] <= 1, spelling  # the former metadata file
    foreign = json.loads(document)
    for entry in foreign["metadata-log"]:
        entry["metadata-file"] = "s3://bucket" + entry["metadata-file"].removeprefix("file:").replace("//", "")
    _point(bench, name, json.dumps(foreign))
    files = bench.files(name)
    assert remove(bench, name).state is not OperationState.COMMITTED
    assert bench.files(name) == files


def _point(bench: Bench, name: str, document: str) -> None:
    path = bench.lake.folder(name) / "metadata" / f"00099-{abs(hash(document))}.metadata.json"
    path.write_text(document)
    bench.lake.catalog.drop_table(name)
    bench.lake.catalog.register_table(name, f"file://{path}")


@pytest.mark.cases(62, 63, 64)
def test_other_tables_near_by(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A sibling whose name begins alike is no concern; a table inside, around or in the same place stops the run."""
    name = new_name("near")
    sibling, inner, twin = f"{name}_archive", f"{name}_inner", f"{name}_twin"
    _plain(bench, name)
    _plain(bench, sibling)
    for table in (name, sibling):
        make_old(bench.folder(table))
        plant(bench.folder(table), "data/orphan.parquet")
    read = bench.read(sibling)
    assert remove(bench, name).metrics["orphans_removed"] == 1
    assert bench.read(sibling) == read
    assert (bench.folder(sibling) / "data/orphan.parquet").exists()
    plant(bench.folder(name), "data/orphan.parquet")
    quoted, place = bench.lake.quoted(inner), f"file://{bench.folder(name)}/data/inner"
    bench.sql(f"CREATE TABLE {quoted} (id int) USING iceberg LOCATION '{place}'")
    insert(bench, quoted, "(1)")
    make_old(bench.folder(name))
    _refused(bench, name, inner)
    _refused(bench, inner, name)
    bench.sql(f"DROP TABLE {quoted}")
    shutil.rmtree(bench.folder(name) / "data/inner")
    bench.lake.catalog.register_table(twin, bench.lake.catalog.load_table(name).metadata_location)
    _refused(bench, name, twin)
    _refused(bench, twin, name)
    bench.lake.catalog.drop_table(twin)
    assert remove(bench, name).metrics["orphans_removed"] == 1


def _refused(bench: Bench, name: str, other: str) -> None:
    files = bench.files(name)
    done = remove(bench, name)
    assert done.state is OperationState.SKIPPED
    assert other in done.reason
    assert bench.files(name) == files


@pytest.mark.cases(63, 65)
@pytest.mark.parametrize("foreign", ["uuid", "gzip", "_delta_log", "lance", "broken"])
def test_foreign_data_stops_the_run(foreign: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Metadata of a table that no catalog knows, and datasets of other formats, under the location: nothing goes."""
    name = new_name("foreign")
    _plain(bench, name)
    folder = bench.folder(name)
    strange = json.dumps({"table-uuid": "0b5dc7d0-1ed4-4c34-9b58-77c2e5a8bd3a"}).encode()
    planted = {
        "uuid": ("metadata/00000-x.metadata.json", strange),
        "gzip": ("metadata/00000-x.gz.metadata.json", gzip.compress(strange)),
        "_delta_log": ("_delta_log/00000000000000000000.json", b"{}"),
        "lance": ("data/some.lance/data/x.lance", b""),
        "broken": ("metadata/00000-x.metadata.json", b"{"),
    }[foreign]
    make_old(folder)
    plant(folder, planted[0], content=planted[1])
    plant(folder, "data/orphan.parquet")
    files = bench.files(name)
    done = remove(bench, name)
    assert done.state is OperationState.SKIPPED
    assert Path(planted[0]).parts[-1] in done.reason or Path(planted[0]).parts[0] in done.reason
    assert bench.files(name) == files


@pytest.mark.cases(70, 72)
def test_doubtful_or_forbidden_is_refused(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A scan that calls most files orphans stops, and so does one of a table under gc.enabled=false."""
    name = new_name("doubt")
    _plain(bench, name)
    folder = bench.folder(name)
    make_old(folder)
    plant(folder, *(f"data/{n}.parquet" for n in range(80)))
    files = bench.files(name)
    done = remove(bench, name, DELETE)
    assert done.state is OperationState.SKIPPED
    assert "max_delete_ratio" in done.reason
    bench.sql(f"ALTER TABLE {bench.lake.quoted(name)} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    assert "gc.enabled" in remove(bench, name).reason
    assert files <= bench.files(name)


@pytest.mark.cases(53, 13)
def test_leftovers_of_an_expiry_are_found(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Files that an expiry forgot, as after a crash, are orphans; with the expiry's files gone nothing live is."""
    name = new_name("leftovers")
    rot.metrics(bench.lake, name, commits=12, rows_per_file=3)
    make_old(bench.folder(name))
    knobs = {"expire_snapshots.retention_hours": 2, "expire_snapshots.min_snapshots_to_keep": 1}
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
    _plain(bench, name)
    folder = bench.folder(name)
    make_old(folder)
    source = next((folder / "data").rglob("*.parquet"))
    late = source.with_name("late.parquet")
    shutil.copyfile(source, late)
    plant(folder, "data/orphan.parquet")
    make_old(folder, only=["late.parquet"])
    table = bench.lake.catalog.load_table(name)
    original = type(bench.world.store).plan

    def plan_while_somebody_commits(*arguments: object, **more: object) -> None:
        if not table.metadata_location.startswith("done"):
            table.add_files([f"file://{late}"])
        original(*arguments, **more)  # type: ignore[arg-type]

    calls: list[int] = []

    def once(*arguments: object, **more: object) -> None:
        calls.append(1)
        (plan_while_somebody_commits if len(calls) == 2 else original)(*arguments, **more)  # type: ignore[operator]

    monkeypatch.setattr(type(bench.world.store), "plan", once)
    done = remove(bench, name)
    assert len(calls) == 2
    assert late.exists()
    assert not (folder / "data/orphan.parquet").exists()
    assert paths(f.path for f in done.files) == paths([str(folder / "data/orphan.parquet")])
    assert bench.read(name)["main"][0] == 4


@pytest.mark.cases(68)
def test_confirm_deletes_at_the_second_finding(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Mode confirm waits, mode report never deletes, and what was found once and is live now stays."""
    name = new_name("modes")
    _plain(bench, name)
    make_old(bench.folder(name))
    orphans = plant(bench.folder(name), "data/orphan.parquet")
    for mode in ("report", "confirm", "confirm"):
        done = remove(bench, name, {**OLD, "remove_orphans.mode": mode})
        assert done.metrics["orphans_found"] == 1
        assert done.metrics["orphans_removed"] == 0
    assert all(p.exists() for p in orphans)
