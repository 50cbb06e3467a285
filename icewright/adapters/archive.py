"""Old history in Iceberg tables, written by PyIceberg: one table per kind of row, one commit per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import DayTransform

from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    InvariantViolated,
    Refused,
    StorageUnavailable,
)
from icewright.ports import Batch
from icewright.ports.archive import BATCH, BATCH_ID, SOURCES

_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "icewright.compact.min_input_files": "2",  # a day comes in few files, and is whole after a few days
}
_MAX_CLOCK_SKEW = timedelta(days=1)  # between the clocks of planner and writer
_FIRST_SEQUENCE_NUMBER = 1  # of a table's first snapshot; snapshots of format v1 have none


@dataclass
class IcebergArchive:
    """The Archive port over one namespace of a catalog."""

    catalog: str
    load: Callable[[], Catalog] = field(repr=False)
    namespace: tuple[str, ...]
    _opened: Catalog | None = field(default=None, init=False)

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Append the rows unless the table has the batch; the commit is conditional on the inspected table state."""
        with self._translating_errors(batch.source):
            table = self._table(batch.source, rows.schema)
            if _has_batch(table, batch):
                return
            files = self._files(table, batch.source, rows)
        self._append(table, batch, files)

    def close(self) -> None:
        """Close the connections of the archive's catalog; the archive is not used afterwards."""
        if self._opened is not None:
            self._opened.close()

    # -- the tables

    def _table(self, source: str, columns: pa.Schema) -> Table:
        """Return the source's table, created if missing and extended by the rows' new columns."""
        catalog, name = self._catalog(), (*self.namespace, source)
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            for depth in range(1, len(self.namespace) + 1):
                catalog.create_namespace_if_not_exists(self.namespace[:depth])
            schema = _schema(columns)
            with suppress(TableAlreadyExistsError):  # by another process, just now
                catalog.create_table(name, schema, partition_spec=_by_day(schema, source), properties=_PROPERTIES)
            table = catalog.load_table(name)
        existing_columns = {column.name for column in table.schema().fields}
        if BATCH not in existing_columns:
            raise Refused(f"{self._name(source)} is another application's table: give archive.namespace another name")
        if not existing_columns.issuperset(columns.names):
            with table.update_schema() as update:
                update.union_by_name(_schema(columns))
        return table

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = self.load()
        return self._opened

    # -- files and commits

    def _files(self, table: Table, source: str, rows: pa.Table) -> list[DataFile]:
        """Write the rows as data files, one per day; they belong to the table once committed."""
        schema, spec, time = table.schema(), table.spec(), SOURCES[source]
        partition_fields = [(schema.find_column_name(f.source_id), f.transform) for f in spec.fields]
        if partition_fields not in ([], [(time, DayTransform())]):
            raise Refused(
                f"{self._name(source)} is partitioned by {', '.join(map(str, spec.fields))}: let it be day({time}) "
                "or nothing, so that the archive can write to it"
            )
        file_schema = pyarrow_to_schema(rows.schema, name_mapping=schema.name_mapping)
        parts = _days(rows, time) if partition_fields else {None: rows}
        writing = uuid4()
        tasks = [
            WriteTask(
                writing,
                number,
                file_schema,
                part.combine_chunks().to_batches(),
                partition_key=PartitionKey([PartitionFieldValue(spec.fields[0], day)], spec, schema)
                if partition_fields
                else None,
            )
            for number, (day, part) in enumerate(parts.items())
        ]
        try:  # one after another, so that nothing writes on after a failure
            return [file for task in tasks for file in write_file(table.io, table.metadata, iter([task]))]
        except OSError as error:
            _discard(table, tasks)
            raise StorageUnavailable(f"{self._name(source)}: its files cannot be written: {_first(error)}") from error

    def _append(self, table: Table, batch: Batch, files: list[DataFile]) -> None:
        """Commit to exactly the inspected table state, without a retry on a newer one."""
        table_name = self._name(batch.source)
        once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        transaction, paths = table.transaction(), [file.file_path for file in files]
        try:
            update = transaction.update_snapshot(snapshot_properties={BATCH_ID: batch.batch_id})
            with update.fast_append() as append:  # which writes manifests, and asks nothing of the catalog
                for file in files:
                    append.append_data_file(file)
        except OSError as error:
            _delete(table, paths)
            raise StorageUnavailable(f"{table_name}: its manifests cannot be written: {_first(error)}") from error
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            _delete(table, paths)
            raise CommitConflict(f"{table_name}: another writer committed: {_first(error)}") from error
        except Exception as error:
            raise CommitStateUnknown(
                f"{table_name}: what became of the commit of batch {batch.batch_id} is not known: {_first(error)}"
            ) from error

    @contextmanager
    def _translating_errors(self, source: str) -> Iterator[None]:
        """Translate exceptions of PyIceberg and storage into `CatalogUnavailable` with the table's name."""
        try:
            yield
        except IcewrightError:
            raise
        except Exception as error:
            raise CatalogUnavailable(f"{self._name(source)} cannot be archived to: {_first(error)}") from error

    def _name(self, source: str) -> str:
        return f"archive table {'.'.join((self.catalog, *self.namespace, source))}"


def _discard(table: Table, tasks: Sequence[WriteTask]) -> None:
    """Delete what the tasks wrote, or a part of it: on a full disk, each further try would leave as much again."""
    places = load_location_provider(table.location(), table.properties)
    suffix = table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
    _delete(table, [places.new_data_location(t.generate_data_file_filename(suffix), t.partition_key) for t in tasks])


def _delete(table: Table, paths: Sequence[str]) -> None:
    for path in paths:
        with suppress(OSError):  # an orphan like others
            table.io.delete(path)


def _has_batch(table: Table, batch: Batch) -> bool:
    """Return whether the table has the batch, by snapshots since the batch was planned, else by its rows.

    Snapshots may have expired since: where the sequence numbers have a gap, only the rows decide.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return False
    number = snapshot.sequence_number
    while snapshot is not None and number and snapshot.sequence_number == number:
        summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
        if summary.get(BATCH_ID) == batch.batch_id:
            return _batch_complete(batch, int(summary.get("added-records", batch.rows)))
        committed_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        if committed_at < batch.planned - _MAX_CLOCK_SKEW or number == _FIRST_SEQUENCE_NUMBER:
            return False
        number, parent = number - 1, snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    is_batch = EqualTo(term=Reference(BATCH), value=literal(batch.batch_id))
    batch_rows = table.scan(row_filter=is_batch, selected_fields=(BATCH,)).to_arrow_batch_reader()
    return _batch_complete(batch, sum(part.num_rows for part in batch_rows))


def _batch_complete(batch: Batch, row_count: int) -> bool:
    if row_count not in (0, batch.rows):
        raise InvariantViolated(
            f"the archive table of {batch.source} has {row_count} of the {batch.rows} rows of batch {batch.batch_id}: "
            "nothing is deleted from the store until a person has looked"
        )
    return row_count > 0


def _schema(columns: pa.Schema) -> Schema:
    """Return the columns as an Iceberg schema, all optional so that later versions may omit some."""
    kinds: Mapping[pa.DataType, iceberg.IcebergType] = {
        pa.string(): iceberg.StringType(),
        pa.int64(): iceberg.LongType(),
        pa.float64(): iceberg.DoubleType(),
        pa.bool_(): iceberg.BooleanType(),
        pa.timestamp("us", "UTC"): iceberg.TimestamptzType(),
    }
    return Schema(*(iceberg.NestedField(i, c.name, kinds[c.type], required=False) for i, c in enumerate(columns, 1)))


def _by_day(schema: Schema, source: str) -> PartitionSpec:
    time = SOURCES[source]
    return PartitionSpec(PartitionField(schema.find_field(time).field_id, 1000, DayTransform(), f"{time}_day"))


def _days(rows: pa.Table, time: str) -> dict[int, pa.Table]:
    """Return the rows grouped by day, as days since 1970."""
    days = pc.floor_temporal(rows[time], unit="day").cast(pa.int64())
    micros = 24 * 3600 * 10**6
    return {day // micros: rows.filter(pc.equal(days, day)) for day in sorted(pc.unique(days).to_pylist())}


def _first(error: Exception) -> str:
    """Return the first line of an error's message, without SQL statements and parameters."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
