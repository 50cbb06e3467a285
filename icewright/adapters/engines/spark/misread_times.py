"""Files whose moments Spark misreads: it takes the milliseconds and nanoseconds of other writers for microseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, with_ids
from icewright.adapters.engines.service.footers import parquet_footer
from icewright.core.errors import MetadataTooLarge, MetadataUnreadable, Refused
from icewright.core.runs import FileAction
from icewright.core.steps import ExpireRows
from icewright.core.table import TableMetadata, columns
from icewright.core.words import in_shell
from icewright.ports import TableFiles
from icewright.ports.work import WorkerThreads

_READERS = 8


def require_true_ages(files: TableFiles, base: TableMetadata, step: ExpireRows, check: Callable[[], None]) -> None:
    """Raise `Refused` when Spark would misread the ages of rows in the files that the step is about."""
    kinds = {number: kind for number, _, kind in columns(base.schema)}
    if not kinds[step.field_id].startswith("timestamp"):
        return
    mapping = base.properties.get("schema.name-mapping.default")

    def unit(action: FileAction) -> str | None:
        check()
        try:
            footer, schema, _ = parquet_footer(files, action.path, action.bytes or 0)
        except MetadataTooLarge:
            raise
        except MetadataUnreadable:  # of another format, in which Spark heeds units; or nobody reads it
            return None
        return next(_units(footer, schema, mapping, step.field_id), None)

    aged = files.aged(base, step)
    with WorkerThreads(_READERS) as pool:
        for action, found in zip(aged, pool.map(unit, aged), strict=True):
            if found is not None:
                mend = f"icewright run {in_shell(base.ref)} --op compact --set compact.engine=arrow"
                raise Refused(
                    f"{base.ref}: {action.path} has {step.column} in {found}, which Spark reads as microseconds: young "
                    f"rows would go as old ones. Nothing was deleted; first let Arrow rewrite the files: {mend} "
                    "--set compact.rewrite_all=true",
                    "misread_times",
                )


def _units(footer: pq.FileMetaData, schema: pa.Schema, mapping: str | None, number: int) -> Iterator[str]:
    """Yield the unit of a column, unless it is microseconds; those of all columns where Spark finds them by place."""
    try:
        paths = {path for own, path in _paths(with_ids(schema, mapping)) if own == number}
    except UnsupportedByArrow:
        paths = {path for _, path in _paths(schema)}
    for place in range(footer.num_columns):
        leaf = footer.schema.column(place)
        unit = json.loads(leaf.logical_type.to_json()).get("timeUnit")
        if leaf.path in paths and leaf.physical_type == "INT64" and unit in ("milliseconds", "nanoseconds"):
            yield unit


def _paths(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[int | None, str]]:
    for field in fields:
        yield field_id(field), above + field.name
        if pa.types.is_struct(field.type):
            yield from _paths(list(field.type), f"{above}{field.name}.")
