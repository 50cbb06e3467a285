"""PyIceberg in a process of its own: `python -m benchmarks.kit.pyiceberg_peer HOME`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import clear_manifest_cache

from benchmarks.kit.child import Answer, measured, serve
from benchmarks.kit.lake import CATALOG, NAMESPACE, Lake
from icewright.adapters.catalogs.translate import pyiceberg_properties


class PyIceberg:
    """Reads tables."""

    def __init__(self, home: Path) -> None:
        self.lake = Lake(home)

    def files(self, table: str) -> Answer:
        """Load the table and read all its files with an empty cache; counts and bytes per partition, not timed."""
        clear_manifest_cache()
        with closing(SqlCatalog(CATALOG, **pyiceberg_properties(self.lake.catalog))) as catalog, measured() as found:
            files = catalog.load_table((NAMESPACE, table)).inspect.files()
        counted = files.select(["partition", "file_size_in_bytes"]).flatten()
        counted = counted.group_by("partition.part").aggregate([([], "count_all"), ("file_size_in_bytes", "sum")])
        names = ("partition.part", "count_all", "file_size_in_bytes_sum")
        return found.answer(rows=sorted(zip(*(counted[name].to_pylist() for name in names), strict=True)))


if __name__ == "__main__":
    serve({"files": PyIceberg(Path(sys.argv[1])).files})
