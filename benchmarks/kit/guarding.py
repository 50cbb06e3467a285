"""What the guard of deletions costs beside many tables: one question, as it is asked before each batch."""

from __future__ import annotations

import statistics
import time

import sqlalchemy as sa

from benchmarks.kit.lake import Lake
from icewright.adapters.engines.service.listing import unreferenced_metadata_beside
from icewright.app.bootstrap import Application
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Registration

_ASKED = 5
_ROW = sa.text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES ('lake', 'beside', :name, :location, 'TABLE')"
)


def seconds_of_the_guard(app: Application, lake: Lake, table: str, beside: int) -> float:
    """The median time of one question about a table beside so many others, all of which evaluations know."""
    metadata = app.runtime.catalogs["lake"].load(TableRef("lake", ("bench",), table))
    others = [_other(lake, number) for number in range(beside)]
    engine = sa.create_engine(lake.properties["uri"])
    with engine.begin() as connection:
        rows = [{"name": one.ref.name, "location": one.metadata_location} for one in others]
        connection.execute(_ROW, rows)
    app.runtime.store.registrations.record(others, app.runtime.clock.now())
    try:
        return statistics.median(_asked(app, metadata) for _ in range(_ASKED))
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM iceberg_tables WHERE table_namespace = 'beside'"))
        engine.dispose()


def _asked(app: Application, metadata: TableMetadata) -> float:
    guard = app.engines.expire.guard
    started = time.perf_counter()
    guard.around(metadata)
    unreferenced_metadata_beside(guard.registry.files, metadata)
    return time.perf_counter() - started


def _other(lake: Lake, number: int) -> Registration:
    location = lake.location(f"other_{number}")
    ref = TableRef("lake", ("beside",), f"other_{number}")
    return Registration(ref, f"uuid-{number}", f"{location}/metadata/00001-a.metadata.json", (location,))
