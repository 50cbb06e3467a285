"""Data and delete files as readers take them: slices, deletes, values of partitions and the layout of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icewright.adapters.engines.arrow.tasks import FileSlice, Layout
from icewright.adapters.engines.arrow.types import Field, single_value
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.core.table import TableMetadata

_MEMORY_BYTES = 2 << 30  # of the pages of one file


def slice_of(file: ContentFile) -> FileSlice:
    """Return a whole data or delete file as a reader takes it."""
    return FileSlice(file.path, file.bytes, file.bytes, file.records, file.sequence, None)


def constants_of(file: ContentFile, metadata: TableMetadata, types: Mapping[int, Any]) -> Mapping[int, Any]:
    """Return the identity partition values of a data file, which may lack the columns, of those that a schema has."""
    values = identity_values(file, metadata) if file.content == DATA else {}
    return {number: single_value(types[number], value) for number, value in values.items() if number in types}


def identity_values(file: ContentFile, metadata: TableMetadata) -> Mapping[int, Any]:
    """Return the values by which a file is partitioned as they are, by column id, as its manifest stores them."""
    spec = metadata.specs_by_id.get(file.spec_id)
    pairs = zip(spec.fields, file.partition, strict=False) if spec is not None else ()
    return {field.source_id: value for field, value in pairs if field.transform == "identity"}


def reading_layout(fields: Sequence[Field], schemas: Sequence[Mapping[str, Any]], metadata: TableMetadata) -> Layout:
    """Return the layout that reads some top-level fields; deletes may name all others that the schemas have."""
    current = {field["id"] for field in fields}
    older = {f["id"]: f for schema in reversed(schemas) for f in schema["fields"] if f["id"] not in current}
    schema = {"type": "struct", "fields": fields}
    return Layout.for_reading(schema, older, metadata.properties, _MEMORY_BYTES)
