"""PyIceberg in a process of its own: `python -m benchmarks.kit.pyiceberg_peer HOME [CATALOG_URL]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import clear_manifest_cache

from benchmarks.kit.child import Answer, measured, serve
from benchmarks.kit.lake import CATALOG, NAMESPACE, Lake


class PyIceberg:
    """Reads tables."""

    def __init__(self, home: Path, *database: str) -> None:
        self.lake = Lake(home, *database)
        self.seen: dict[tuple[str, str], str] = {}  # metadata files, as of the last look

    def files(self, table: str) -> Answer:
        """Load the table and read all its files with an empty cache; counts and bytes per partition, not timed."""
        clear_manifest_cache()
        with closing(self._opened()) as catalog, measured() as found:
            files = catalog.load_table((NAMESPACE, table)).inspect.files()
        counted = files.select(["partition", "file_size_in_bytes"]).flatten()
        counted = counted.group_by("partition.part").aggregate([([], "count_all"), ("file_size_in_bytes", "sum")])
        names = ("partition.part", "count_all", "file_size_in_bytes_sum")
        return found.answer(rows=sorted(zip(*(counted[name].to_pylist() for name in names), strict=True)))

    def moved(self, tables: Sequence[tuple[str, str]]) -> Answer:
        """Load each of the tables, and say which have another metadata file than at the last look."""
        moved = []
        with closing(self._opened()) as catalog, measured() as found:
            for space, name in tables:
                location = catalog.load_table((space, name)).metadata_location
                if self.seen.get((space, name)) != location:
                    moved.append((space, name))
                self.seen[space, name] = location
        return found.answer(rows=moved)

    def _opened(self) -> SqlCatalog:
        return SqlCatalog(CATALOG, **self.lake.catalog.pyiceberg_properties())


if __name__ == "__main__":
    peer = PyIceberg(Path(sys.argv[1]), *sys.argv[2:])
    serve({"files": peer.files, "moved": peer.moved})
