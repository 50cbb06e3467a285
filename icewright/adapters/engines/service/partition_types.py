"""Types of partition tuples in manifests, of which older ones have those from before a column was promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icewright.adapters.engines.arrow.types import DECIMAL
from icewright.adapters.engines.service.avro_records import field_type, with_field_type
from icewright.adapters.engines.service.partition_bounds import partition_fields
from icewright.core import field_ids as ids
from icewright.core.avro_values import Schema
from icewright.core.schemas import columns
from icewright.core.table import TableMetadata

_WIDER = {"int": "long", "float": "double"}
_BYTES = {"int": 4, "long": 8, "float": 4, "double": 8}


def source_types(metadata: TableMetadata, spec_id: int) -> dict[int, str]:
    """Return the types of a spec's columns by partition field id, where its values are of the column's type."""
    kinds = {number: kind for number, _, kind in columns(metadata.schema)}
    return {
        field.field_id: str(kinds[field.source_id])
        for spec in metadata.specs
        for field in spec.fields
        if spec.spec_id == spec_id and field.transform.startswith(("identity", "truncate")) and field.source_id in kinds
    }


def partition_bytes(data_file: Schema) -> int:
    """Return the bytes of the numbers in a manifest's partition tuples, which promotions of their columns add to."""
    kinds = (field["type"] for field in partition_fields(field_type(data_file, ids.PARTITION)))
    return sum(kind.get("size") or _BYTES.get(kind["type"], 0) for kind in kinds)


def promoted(schema: Schema, types: Mapping[int, str]) -> Schema:
    """Return the schema of a manifest whose partition tuples hold values of these types; itself where they do."""
    data_file = field_type(schema, ids.DATA_FILE)
    partition = field_type(data_file, ids.PARTITION)
    fields, wider = _promoted_fields(partition, types)
    if not wider:
        return schema
    changed = with_field_type(data_file, ids.PARTITION, {**partition, "fields": fields})
    return with_field_type(schema, ids.DATA_FILE, changed)


def _promoted_fields(partition: Schema, types: Mapping[int, str]) -> tuple[list[Schema], bool]:
    """Return the fields of partition tuples, each named type defined once, and whether any has become wider."""
    fields, wider, defined = list[Schema](), False, set[str]()
    for field, resolved in zip(partition["fields"], partition_fields(partition), strict=True):
        kind = _promoted(resolved["type"], types.get(field.get("field-id"), ""))
        wider = wider or kind != resolved["type"]
        name = kind.get("name")
        written = name if name in defined else kind["type"] if kind.keys() == {"type"} else kind
        defined |= {name} if name else set()
        nullable = isinstance(field["type"], list)
        fields.append(
            {**field, "type": [b if b == "null" else written for b in field["type"]] if nullable else written}
        )
    return fields, wider


def _promoted(kind: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    """Return the Avro type of a partition value for a column of an Iceberg type, which may be a wider one."""
    if kind == {"type": kind["type"]} and _WIDER.get(kind["type"]) == column:
        return {"type": column}
    decimal = DECIMAL.fullmatch(column)
    if decimal is None or kind["type"] != "fixed" or kind.get("precision", 0) >= (precision := int(decimal[1])):
        return kind
    size = (10**precision - 1).bit_length() // 8 + 1
    return {**kind, "name": f"decimal_{precision}_{decimal[2]}", "size": size, "precision": precision}
