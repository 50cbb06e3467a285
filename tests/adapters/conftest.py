"""What adapter tests share: a reader over an empty cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from icewright.adapters.files.cache import Cache
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.adapters.files.tables import IcebergFiles


@pytest.fixture
def reader(tmp_path: Path) -> ManifestReader:
    """A reader of manifests whose cache is empty."""
    return ManifestReader(LocalStorage(), Cache(tmp_path / "cache", 1 << 26, ENTRY))


@pytest.fixture
def files(reader: ManifestReader) -> IcebergFiles:
    """Local files behind their port."""
    return IcebergFiles(reader.storage, reader)
