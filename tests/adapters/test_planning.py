"""Planning is timed by reading what it reads: the manifest list and every manifest, whatever the cache has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.files.tables import IcebergFiles
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import local_path
from icewright.core.table import Snapshot, TableMetadata
from icewright.ports import SizeLimit, Storage
from tests.contracts.bench import Bench


@dataclass
class Watched:
    """Storage that writes down what was read."""

    storage: Storage
    read_paths: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        """The file's content."""
        self.read_paths.append(path)
        return self.storage.read(path, limit)


@pytest.fixture
def table(tmp_path: Path) -> TableMetadata:
    """A table of four commits, a manifest each."""
    (tmp_path / "warehouse").mkdir()
    lake = Bench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse")
    lake.iceberg.create_namespace("web")
    made = lake.craft("web.clicks")
    lake.close()
    return made


def current(table: TableMetadata) -> Snapshot:
    """The snapshot that a scan reads."""
    assert table.current_snapshot is not None
    return table.current_snapshot


def test_every_manifest_is_read_each_time(table: TableMetadata, files: IcebergFiles) -> None:
    """What the cache has is read all the same, and nothing is put there."""
    snapshot = current(table)
    manifests = files.manifests(snapshot)
    files.reader.entries(manifests)
    watched = Watched(files.storage)
    slow = IcebergFiles(watched, replace(files.reader, storage=watched))
    for _ in range(2):
        assert 0 < slow.planning_seconds(snapshot) < 10
    assert sorted(watched.read_paths) == sorted(2 * [str(snapshot.manifest_list), *(m.path for m in manifests)])
    assert len(manifests) == 4


def test_manifests_that_the_metadata_file_names(table: TableMetadata, files: IcebergFiles) -> None:
    """Format v1 may have no list."""
    snapshot = current(table)
    named = tuple(m.path for m in files.manifests(snapshot))
    assert files.planning_seconds(replace(snapshot, manifest_list=None, manifests=named)) > 0


@pytest.mark.parametrize("which", ["list", "manifest"])
def test_a_file_that_is_gone(table: TableMetadata, files: IcebergFiles, which: str) -> None:
    """The error names the file that is gone."""
    snapshot = current(table)
    gone = str(snapshot.manifest_list) if which == "list" else files.manifests(snapshot)[2].path
    Path(str(local_path(gone))).unlink()
    with pytest.raises(MetadataUnreadable, match=Path(gone).name):
        files.planning_seconds(snapshot)
