"""Files of other writers whose values Spark misreads, and would delete by, or write for good.

It takes milliseconds and nanoseconds for microseconds, the digits of a decimal for those of one of another scale, and
nulls in a required column for zeroes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, with_ids
from icewright.adapters.engines.arrow.types import DECIMAL
from icewright.adapters.engines.service.footers import parquet_footer
from icewright.adapters.engines.spark.pool import StepResult, Work
from icewright.core.branches import on_branch
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable, Refused
from icewright.core.runs import FileAction
from icewright.core.steps import ExpireRows, RewriteDataFiles
from icewright.core.table import TableMetadata, columns
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
    mapping = base.properties.get("schema.name-mapping.default")

    def unit(footer: _Footer) -> str | None:
        return next(_units(*footer, mapping, step.field_id), None)

    for path, found in _found(files, files.aged(base, step), unit, check):
        mend = f"icewright run {in_shell(base.ref)} --op compact --set compact.engine=arrow"
        raise Refused(
            f"{base.ref}: {path} has {step.column} in {found}, which Spark reads as microseconds: young "
            f"rows would go as old ones. Nothing was deleted; first let Arrow rewrite the files: {mend} "
            "--set compact.rewrite_all=true",
            "misread_times",
        )


def require_true_values(
    files: TableFiles, table: TableMetadata, step: RewriteDataFiles, check: Callable[[], None]
) -> None:
    """Raise `Refused` when Spark would write other values than those of the files that the step rewrites."""
    expected, candidates = _Columns(table), files.candidates(on_branch(table, step.branch), step)
    for path, found in _found(files, candidates, lambda footer: expected.misread(*footer), check):
        raise Refused(
            f"{table.ref}: {path} has {found}, and Spark would write that for good. It rewrites nothing: Arrow keeps "
            "values (compact.engine=arrow); those that the column's type cannot hold have to be written anew",
            "misread_values",
        )


def of_true_values(
    work: Work, files: TableFiles, catalog: Catalog, request: StepRequest, step: RewriteDataFiles
) -> Work:
    """Return the work, which fails as `require_true_values` does on the table as it is by then."""

    def checked(session: SparkSession) -> StepResult:
        require_true_values(files, catalog.load(request.base.ref), step, request.check)
        return work(session)

    return checked


@dataclass(frozen=True)
class _Columns:
    """The columns of a table, as Spark reads them."""

    base: TableMetadata

    @cached_property
    def _by_id(self) -> Mapping[int, tuple[str, Any]]:
        return {number: (".".join(path), kind) for number, path, kind in columns(self.base.schema)}

    @cached_property
    def _required(self) -> frozenset[int]:
        """Return the ids of the required columns that are in no struct."""
        return frozenset(int(field["id"]) for field in self.base.schema["fields"] if field["required"])

    def misread(self, footer: pq.FileMetaData, schema: pa.Schema) -> str | None:
        """Return how Spark misreads a column of the file; None when it does not, as far as the footer tells."""
        numbers = self._numbers(schema)
        for place in range(footer.num_columns):
            leaf = footer.schema.column(place)
            number = numbers.get(leaf.path)
            if number is not None and number in self._by_id:
                name, kind = self._by_id[number]
                how = self._type(leaf, str(kind), footer, place)
                if how is None and number in self._required and _nulls(footer, place):
                    how = "nulls, which it reads as zeroes, and the column is required"
                if how is not None:
                    return f"in {name} {how}"
        return None

    def _numbers(self, schema: pa.Schema) -> Mapping[str, int | None]:
        """Return the ids of columns by path; without ids and mapping Spark counts the topmost columns from one."""
        try:
            named = with_ids(schema, self.base.properties.get("schema.name-mapping.default"))
        except UnsupportedByArrow:
            return {field.name: place for place, field in enumerate(schema, 1)}
        return {path: number for number, path in _paths(named)}

    def _type(self, leaf: pq.ColumnSchema, kind: str, footer: pq.FileMetaData, place: int) -> str | None:
        stored = json.loads(leaf.logical_type.to_json())
        if (decimal := DECIMAL.fullmatch(kind)) and stored["Type"] == "Decimal":
            precision, scale = int(stored["precision"]), int(stored["scale"])
            if scale != int(decimal[2]) or precision > int(decimal[1]):
                return f"decimal({precision}, {scale}), whose digits it reads as {kind}"
        unit, moments = stored.get("timeUnit"), kind in ("timestamp", "timestamptz")
        if (
            moments
            and leaf.physical_type == "INT64"
            and (unit == "nanoseconds" or (unit in _UNITS and _codes(footer, place)))
        ):
            return f"{unit}, which it reads as microseconds"
        return None


def _nulls(footer: pq.FileMetaData, place: int) -> bool:
    chunks = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    return any(chunk.statistics.null_count for chunk in chunks if chunk.statistics and chunk.statistics.has_null_count)


def _codes(footer: pq.FileMetaData, place: int) -> bool:
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
        paths = {path for own, path in _paths(with_ids(schema, mapping)) if own == number}
    except UnsupportedByArrow:
        paths = {path for _, path in _paths(schema)}
    for place in range(footer.num_columns):
        leaf = footer.schema.column(place)
        unit = json.loads(leaf.logical_type.to_json()).get("timeUnit")
        if leaf.path in paths and leaf.physical_type == "INT64" and unit in _UNITS:
            yield unit


def _paths(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[int | None, str]]:
    for field in fields:
        yield field_id(field), above + field.name
        if pa.types.is_struct(field.type):
            yield from _paths(list(field.type), f"{above}{field.name}.")
