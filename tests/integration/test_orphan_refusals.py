"""Where orphan removal must stop: other tables and datasets near by, doubtful paths, and what an owner forbids."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from icewright.core.runs import OperationState
from tests.integration.bench import Bench, make_old
from tests.integration.planting import DELETE, plain, plant, remove
from tests.integration.tables import insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


@pytest.mark.cases(57, 58)
def test_schemes_and_authorities(bench: Bench, new_name: Callable[[str], str]) -> None:
    """`file:/x` and `file:///x` are one place; a file named under a foreign authority stops the run."""
    name = new_name("schemes")
    plain(bench, name)
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
    plain(bench, name)
    plain(bench, sibling)
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
@pytest.mark.parametrize("foreign", ["uuid", "gzip", "_delta_log", "lance"])
def test_foreign_data_stops_the_run(foreign: str, bench: Bench, new_name: Callable[[str], str]) -> None:
    """Metadata of a table that no catalog knows, and datasets of other formats, under the location: nothing goes."""
    name = new_name("foreign")
    plain(bench, name)
    folder = bench.folder(name)
    strange = json.dumps({"table-uuid": "0b5dc7d0-1ed4-4c34-9b58-77c2e5a8bd3a"}).encode()
    planted = {
        "uuid": ("metadata/00000-x.metadata.json", strange),
        "gzip": ("metadata/00000-x.gz.metadata.json", gzip.compress(strange)),
        "_delta_log": ("_delta_log/00000000000000000000.json", b"{}"),
        "lance": ("data/some.lance/data/x.lance", b""),
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
    plain(bench, name)
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
