"""Files of other writers whose values Spark misreads, and would delete by, or write for good.

It takes milliseconds and nanoseconds for microseconds, the digits of a decimal for those of one of another scale, and
nulls in a required column for zeroes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, stored, with_ids
from icewright.adapters.engines.service.column_types import is_read_as
from icewright.adapters.engines.service.footers import parquet_footer
from icewright.adapters.engines.spark.pool import StepResult, Work
from icewright.core.branches import on_branch
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable, Refused
from icewright.core.runs import FileAction
from icewright.core.schemas import NAME_MAPPING, columns
from icewright.core.steps import ExpireRows, RewriteDataFiles
from icewright.core.table import TableMetadata
from icewright.core.words import in_shell
from icewright.ports import Catalog, StepRequest, TableFiles
from icewright.ports.work import WorkerThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READERS = 8
_UNITS = ("milliseconds", "nanoseconds")
_Footer = tuple[pq.FileMetaData, pa.Schema]


def require_true_ages(files: TableFiles, base: TableMetadata, step: ExpireRows, check: Callable[[], None]) -> None:
    """Raise `Refused` when Spark would misread the ages of rows in the files that the step is about."""
    kinds = {number: kind for number, _, kind in columns(base.schema)}
    if not kinds[step.field_id].startswith("timestamp"):
        return
    mapping = base.properties.get(NAME_MAPPING)

    def unit(footer: _Footer) -> str | None:
        return next(_units(*footer, mapping, step.field_id), None)

    for path, what in _found(files, files.aged(base, step), unit, check):
        mend = f"icewright run {in_shell(base.ref)} --op compact --set compact.engine=arrow"
        raise Refused(
            f"{base.ref}: {path} has {step.column} in {what}, which Spark reads as microseconds: young "
            f"rows would go as old ones. Nothing was deleted; first let Arrow rewrite the files: {mend} "
            "--set compact.rewrite_all=true",
            "misread_times",
        )


def require_true_values(
    files: TableFiles, table: TableMetadata, step: RewriteDataFiles, check: Callable[[], None]
) -> None:
    """Raise `Refused` when Spark would write other values than those of the files that the step rewrites."""
    expected, candidates = _Columns(table), files.candidates(on_branch(table, step.branch), step)
    for path, what in _found(files, candidates, lambda footer: expected.misread(*footer), check):
        raise Refused(
            f"{table.ref}: {path} has {what}, and Spark would write that for good. It rewrites nothing: Arrow keeps "
            "values (compact.engine=arrow); those that the column's type cannot hold have to be written anew",
            "misread_values",
        )


def of_true_values(
    work: Work, files: TableFiles, catalog: Catalog, request: StepRequest, step: RewriteDataFiles
) -> Work:
    """Return work that first checks the table, as it is by then, by `require_true_values`."""

    def checked(session: SparkSession) -> StepResult:
        require_true_values(files, catalog.load(request.base.ref), step, request.check)
        return work(session)

    return checked


@dataclass(frozen=True)
class _Columns:
    """The columns of a table, as Spark reads them."""

    table: TableMetadata

    @cached_property
    def _by_id(self) -> Mapping[int, tuple[str, str]]:
        """Return name and type of the columns of simple types, those inside of others too."""
        fields = columns(self.table.schema, elements=True)
        return {number: (path[-1], kind) for number, path, kind in fields if isinstance(kind, str)}

    @cached_property
    def _required(self) -> frozenset[int]:
        """Return the ids of the required columns that are in no other."""
        return frozenset(field["id"] for field in self.table.schema["fields"] if field["required"])

    def misread(self, footer: pq.FileMetaData, schema: pa.Schema) -> str | None:
        """Return how Spark misreads a column of the file; None when it does not, as far as the footer tells."""
        for index, number in enumerate(self._numbers(schema)):
            if number is not None and number in self._by_id:
                name, kind = self._by_id[number]
                how = _misread_type(footer, index, kind)
                if how is None and number in self._required and _nulls(footer, index):
                    how = "nulls, which it reads as zeroes, and the column is required"
                if how is not None:
                    return f"in {name} {how}"
        return None

    def _numbers(self, schema: pa.Schema) -> Sequence[int | None]:
        """Return the id of each stored column; without ids and mapping Spark counts the topmost columns from one."""
        try:
            return _ids(schema, self.table.properties.get(NAME_MAPPING))
        except UnsupportedByArrow:
            return [n if column is field else None for n, field in enumerate(schema, 1) for column in stored([field])]


def _misread_type(footer: pq.FileMetaData, place: int, kind: str) -> str | None:
    column = footer.schema.column(place)
    annotation = column.logical_type.to_json()
    if is_read_as(kind, column.physical_type, annotation):
        return None
    match json.loads(annotation):
        case {"Type": "Decimal", "precision": precision, "scale": scale} if kind.startswith("decimal"):
            return f"decimal({precision}, {scale}), whose digits it reads as {kind}"
        case {"Type": "Timestamp", "timeUnit": unit} if kind.startswith("timestamp"):
            misread = unit != "milliseconds" or _has_codes(footer, place)
            return f"{unit}, which it reads as microseconds" if misread else None
    return None


def _nulls(footer: pq.FileMetaData, place: int) -> bool:
    chunks = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    return any(chunk.statistics.null_count for chunk in chunks if chunk.statistics and chunk.statistics.has_null_count)


def _has_codes(footer: pq.FileMetaData, place: int) -> bool:
    """Return whether values are codes of a dictionary, which Spark decodes without a look at their unit."""
    chunks = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    return any(chunk.has_dictionary_page for chunk in chunks)


def _found(
    files: TableFiles, actions: Sequence[FileAction], look: Callable[[_Footer], str | None], check: Callable[[], None]
) -> Iterator[tuple[str, str]]:
    """Yield the Parquet files in whose footers `look` finds something, with that."""

    def found(action: FileAction) -> str | None:
        check()
        try:
            footer, schema, _ = parquet_footer(files, action.path, action.bytes or 0)
        except MetadataTooLarge:
            raise
        except MetadataUnreadable:  # of another format, in which Spark heeds types; or nobody reads it
            return None
        return look((footer, schema))

    with WorkerThreads(_READERS) as pool:
        for action, what in zip(actions, pool.map(found, actions), strict=True):
            if what is not None:
                yield action.path, what


def _units(footer: pq.FileMetaData, schema: pa.Schema, mapping: str | None, number: int) -> Iterator[str]:
    """Yield the unit of a column, unless it is microseconds; those of all columns where Spark finds them by place."""
    try:
        numbers = _ids(schema, mapping)
    except UnsupportedByArrow:
        numbers = [number] * footer.num_columns
    for index, own in enumerate(numbers):
        column = footer.schema.column(index)
        unit = json.loads(column.logical_type.to_json()).get("timeUnit")
        if own == number and column.physical_type == "INT64" and unit in _UNITS:
            yield unit


def _ids(schema: pa.Schema, mapping: str | None) -> Sequence[int | None]:
    """Return the id of each stored column. Raises `UnsupportedByArrow` where file and mapping have none."""
    return [field_id(column) for column in stored(with_ids(schema, mapping))]
