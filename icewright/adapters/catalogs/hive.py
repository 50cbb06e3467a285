"""Catalogs of type `hive`: tables of a Hive metastore whose parameters name the metadata file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from thrift.Thrift import TException

from icewright.adapters.catalogs.hive_client import HiveClient, Lock, error_text, locked, table_of, tables_of
from icewright.adapters.catalogs.metadata_files import (
    LOCATION,
    MetastoreCatalog,
    MetastoreEntry,
    Parameters,
    database_and_name,
    not_found,
    swap_pointer,
    tables_by_format,
)
from icewright.adapters.catalogs.staging import RequestOutcomeUnknown, require_landed
from icewright.adapters.catalogs.translate.hive import LOCK_ENABLED, HiveCatalogProperties
from icewright.core.errors import CommitConflict
from icewright.core.table import MAIN, TableMetadata, TableRef
from icewright.ports import AddSnapshot, Change, Dataset, Pointer
from icewright.ports.work import progress

PARALLEL = 4  # connections that list at the same time
_BATCH = 200  # tables that one request asks for
_MODIFIED = "The table has been modified"  # the metastore compared, and found another file
_LONGEST_PARAMETER = 4000  # characters that any database of a metastore holds
# Hive's statistics that Iceberg's clients set, by the names in the snapshot's summary
_STATISTICS = {"total-data-files": "numFiles", "total-records": "numRows", "total-files-size": "totalSize"}
_NO_STATISTICS = "DO_NOT_UPDATE_STATS"  # else the metastore lists the table's files itself


@dataclass
class HiveCatalog(MetastoreCatalog):
    """The Catalog port over a Hive metastore. Thread-safe."""

    properties: HiveCatalogProperties
    _client: HiveClient = field(init=False)

    def __post_init__(self) -> None:
        self._client = HiveClient(self.properties, self.clock)

    def close(self) -> None:
        """Do nothing: each call closes its own connection."""

    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return the tables of all databases: Iceberg's, and those of other formats."""
        databases = self._ask(lambda hive: hive.get_all_databases())
        with ThreadPoolExecutor(PARALLEL) as pool:
            names = zip(databases, pool.map(self._names, databases), strict=True)
            batches = [(d, tables[i : i + _BATCH]) for d, tables in names for i in range(0, len(tables), _BATCH)]
            return tables_by_format(entry for listed in pool.map(self._listed, batches) for entry in listed)

    def _replace(self, base: TableMetadata, after: TableMetadata, change: Change) -> None:
        """Alter the table under its lock, if it still names the file of `base`.

        Metastores that support `expected_parameter_key` compare the pointer too; without locks that is the only check.
        """
        location = after.metadata_location
        with self._table_lock(base) as lock:
            table = self._current(base)
            table.parameters = _new_parameters(table.parameters, base, after, change)
            if lock is not None and not lock.alive():
                raise CommitConflict(f"{base.ref}: the lock did not last until the commit")
            progress()  # the wait for the lock may have been long
            self._alter_table(base, location, table)
            if lock is not None and not lock.alive():  # others may have committed over it
                self._resolve_commit(base, location, "the lock did not outlast the commit", compares=False)

    def _alter_table(self, base: TableMetadata, location: str, table: Any) -> None:  # noqa: ANN401 - Thrift's
        """Send the alter request; return when the metastore confirms it."""
        from hive_metastore import ttypes  # noqa: PLC0415 - takes long to load

        expected = {"expected_parameter_key": LOCATION, "expected_parameter_value": base.metadata_location}
        context = ttypes.EnvironmentContext(properties={_NO_STATISTICS: "true", **expected})
        database, name = database_and_name(base.ref)
        try:
            self._client.once(lambda hive: hive.alter_table_with_environment_context(database, name, table, context))
        except ttypes.InvalidOperationException as error:
            raise CommitConflict(f"{base.ref}: the metastore refused the commit ({error_text(error)})") from error
        except RequestOutcomeUnknown as error:
            self._resolve_commit(base, location, f"the metastore lost the commit ({error})", compares=False)
        except TException as error:
            compared = _MODIFIED in str(getattr(error, "message", ""))
            self._resolve_commit(base, location, f"the metastore failed ({error_text(error)})", compares=compared)

    def _resolve_commit(self, base: TableMetadata, location: str, why: str, *, compares: bool) -> None:
        require_landed(base, location, self.load, self.clock, why, compares=compares)

    @contextmanager
    def _table_lock(self, base: TableMetadata) -> Iterator[Lock | None]:
        """Return the table's lock as a context; a null context where a property turns locks off."""
        if base.properties.get(LOCK_ENABLED, str(self.properties.locks)).lower() != "true":
            yield None
            return
        with locked(self._client, *database_and_name(base.ref)) as lock:
            yield lock

    def _entry(self, ref: TableRef) -> Any:  # noqa: ANN401 - Thrift's
        database, name = database_and_name(ref)
        entry = self._ask(lambda hive: table_of(hive, database, name))
        if entry is None:
            raise not_found(ref)
        return entry

    def _parameters(self, entry: Any) -> Parameters:  # noqa: ANN401 - Thrift's
        return entry.parameters  # type: ignore[no-any-return]

    def _names(self, database: str) -> list[str]:
        return list(self._ask(lambda hive: hive.get_all_tables(database)) or ())

    def _listed(self, batch: tuple[str, list[str]]) -> list[MetastoreEntry]:
        database, names = batch
        tables = self._ask(lambda hive: tables_of(hive, database, names)) or ()
        return [self._listed_entry(database, table) for table in tables]

    def _listed_entry(self, database: str, table: Any) -> MetastoreEntry:  # noqa: ANN401 - Thrift's
        ref, descriptor = TableRef(self.name, (database,), table.tableName), table.sd
        if descriptor is None:
            return MetastoreEntry(ref, table.parameters, None)
        serde = descriptor.serdeInfo and descriptor.serdeInfo.parameters
        return MetastoreEntry(ref, table.parameters, descriptor.location, serde)

    def _ask(self, question: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - Thrift's
        """Return the metastore's answer; None if the database or table does not exist."""
        from hive_metastore import ttypes  # noqa: PLC0415

        try:
            return self._client.ask(question)
        except (ttypes.NoSuchObjectException, ttypes.UnknownDBException):
            return None
        except TException as error:
            raise self._client.unavailable(error) from error


def _new_parameters(
    parameters: Mapping[str, str] | None, base: TableMetadata, after: TableMetadata, change: Change
) -> dict[str, str]:
    """Return the table's parameters after the commit, with the snapshot statistics that Iceberg's own client sets."""
    new = swap_pointer(parameters, base, after.metadata_location)
    new |= {_NO_STATISTICS: "true", "snapshot-count": str(len(after.snapshots))}
    new.pop("COLUMN_STATS_ACCURATE", None)
    if isinstance(change, AddSnapshot) and change.branch == MAIN and after.current_snapshot is not None:
        summary = {str(key): str(value) for key, value in change.snapshot.get("summary", {}).items()}
        new |= {hive: summary[name] for name, hive in _STATISTICS.items() if name in summary}
        statistics = {
            "current-snapshot-id": str(after.current_snapshot_id),
            "current-snapshot-timestamp-ms": str(change.snapshot.get("timestamp-ms", "")),
            "current-snapshot-summary": msgspec.json.encode(summary).decode(),
        }
        for name in statistics.keys() & new.keys():  # only statistics that the entry has already
            new[name] = statistics[name]
        if len(new.get("current-snapshot-summary", "")) > _LONGEST_PARAMETER:
            del new["current-snapshot-summary"]
    return new
