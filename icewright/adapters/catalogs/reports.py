"""A table of commit reports: one row per commit, whose column `table_name` names the committed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.types import StringType

from icewright.adapters.catalogs.bounded import load_bounded_catalog
from icewright.core.errors import CatalogUnavailable, IcewrightError, MetadataUnreadable, TableNotFound
from icewright.ports import NewReports

COLUMN = "table_name"


@dataclass
class IcebergReports:
    """Read commit reports from an Iceberg table of the catalog; each snapshot is read once."""

    catalog: str
    properties: Mapping[str, str] = field(repr=False)  # as PyIceberg takes them
    table: tuple[str, ...]
    _opened: Catalog | None = field(default=None, init=False, repr=False)

    def close(self) -> None:
        """Close the connections of the catalog."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def since(self, snapshot_id: int | None) -> NewReports:
        """Return the reports of the snapshots after this one; a gap if the table does not have the snapshot."""
        try:
            table = self._load()
            return _read(table, snapshot_id)
        except NoSuchTableError as error:
            raise TableNotFound(
                f"{self._name}: there is no such table; correct catalogs.{self.catalog}.commit_reports"
            ) from error
        except IcewrightError:
            raise
        except Exception as error:  # PyIceberg lets through what its catalogs and file systems raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise CatalogUnavailable(f"{self._name}: commit reports cannot be read: {lines[0]}") from error

    @property
    def _name(self) -> str:
        return ".".join((self.catalog, *self.table))

    def _load(self) -> Table:
        if self._opened is None:
            self._opened = load_bounded_catalog(self.catalog, self.properties)
        table = self._opened.load_table(self.table)
        column = table.schema().find_field(COLUMN) if COLUMN in table.schema().column_names else None
        if column is None or not isinstance(column.field_type, StringType):
            raise MetadataUnreadable(f"{self._name}: a table of commit reports needs a column {COLUMN} of type string")
        return table


def _read(table: Table, last: int | None) -> NewReports:
    current = table.current_snapshot()
    if current is None or current.snapshot_id == last:
        return NewReports(last)
    if all(snapshot.snapshot_id != last for snapshot in ancestors_of(current, table.metadata)):
        return NewReports(current.snapshot_id, gap=True)  # never read, expired meanwhile, or rolled back
    scan = table.incremental_append_scan(
        from_snapshot_id_exclusive=last, to_snapshot_id_inclusive=current.snapshot_id, selected_fields=(COLUMN,)
    )
    names: set[str] = set()
    for batch in scan.to_arrow_batch_reader():
        names |= {name for name in batch.column(COLUMN).unique().to_pylist() if name}
    return NewReports(current.snapshot_id, tuple(sorted(names)))
