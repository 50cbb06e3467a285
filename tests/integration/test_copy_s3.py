"""Copies between buckets and disks, beside a writer, and after a crash; a state that is restored beside its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icewright.adapters.files.objects import ObjectStorage
from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config
from icewright.core.errors import Refused
from icewright.core.table import TableRef
from icewright.flow.copy import copy_table, restore_beside
from icewright.flow.detect import detect
from icewright.flow.register import register
from tests.s3 import s3_server

pytestmark = pytest.mark.external  # a server
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: sql
    enabled: true
    allowed_locations: ["s3://lake", "file://{home}"]
    properties: {{uri: "sqlite:///{home}/lake.db", warehouse: "s3://lake/warehouse"{more}}}
cache: {{folder: "{home}/cache"}}
"""
REF, BESIDE = (TableRef("lake", ("sales",), name) for name in ("orders", "beside"))


@pytest.fixture
def properties() -> Iterator[Mapping[str, str]]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


def test_a_table_goes_to_another_place_and_back(
    tmp_path: Path, properties: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a writer and after a crash: within the bucket, to a disk, and from there to the bucket again."""
    file = tmp_path / "icewright.yaml"
    file.write_text(CONFIG.format(home=tmp_path, more="".join(f', {k}: "{v}"' for k, v in properties.items())))
    config, rows = read_config(file), pa.table({"id": pa.array(range(10), pa.int64())})
    catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", rows.schema)
    for _ in range(3):
        table.append(rows)
    real, copied, lock = ObjectStorage.copy, list[str](), Lock()

    class Crash(BaseException):
        pass

    def disturbed(storage: ObjectStorage, source: str, target: str, length: int) -> None:
        with lock:  # files are copied side by side
            if len(copied) == 2:
                raise Crash
            real(storage, source, target, length)
            copied.append(target)
            table.append(rows)

    with application(config, kind="manual") as app:
        runtime = app.runtime
        detect(runtime, ["lake"])
        with monkeypatch.context() as patched:
            patched.setattr(ObjectStorage, "copy", disturbed)
            with pytest.raises(Crash):
                copy_table(runtime, REF, "s3://lake/copies/orders")
        assert not [path for path in listed(app.runtime.files.listing("s3://lake/copies")) if "metadata.json" in path]
        source, places = REF, ("s3://lake/copies/orders", f"file://{tmp_path}/orders", "s3://lake/back/orders")
        for number, place in enumerate(places):
            result = copy_table(runtime, source, place)
            source = TableRef("lake", ("sales",), f"copy{number}")
            register(runtime, source, place)
            detect(runtime, ["lake"])
            assert result.present == (2 if number == 0 else 0), result  # the files that the crash left
            copy = catalog.load_table(("sales", source.name))
            assert copy.location() == place
            assert copy.scan().to_arrow().num_rows == table.refresh().scan().to_arrow().num_rows == 50
            assert all(task.file.file_path.startswith(place) for task in copy.scan().plan_files())
        result = restore_beside(runtime, REF, str(table.snapshots()[0].snapshot_id), BESIDE)
        restored = catalog.load_table(("sales", BESIDE.name))
        assert (restored.location(), result.place) == ("s3://lake/warehouse/sales/beside",) * 2
        assert restored.scan().to_arrow().num_rows == 10
        assert all(task.file.file_path.startswith(result.place) for task in restored.scan().plan_files())
        assert table.refresh().scan().to_arrow().num_rows == 50
        with pytest.raises(Refused, match="exists already"):
            restore_beside(runtime, REF, "main", BESIDE)


def listed(batches: Iterator[pa.RecordBatch]) -> list[str]:
    """The paths of a listing."""
    return [path for batch in batches for path in batch.column("path").to_pylist()]
