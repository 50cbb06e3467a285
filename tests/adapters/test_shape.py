"""Metadata files that Iceberg's library does not load, for a field that is not there or is of another type."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from icewright.adapters.metadata.shape import malformed

FIELD = {"id": 1, "name": "id", "required": True, "type": "long"}
TAGS = {"type": "list", "element-id": 4, "element": "decimal(9, 2)", "element-required": False}
KEYS = {"type": "map", "key-id": 5, "key": "fixed[16]", "value-id": 6, "value": TAGS, "value-required": True}
INNER = {"type": "struct", "fields": [{**FIELD, "id": 7, "type": KEYS}, {**FIELD, "id": 8, "type": "timestamp_ns"}]}
SCHEMA = {"type": "struct", "fields": [FIELD, {"id": 2, "name": "inner", "required": False, "type": INNER, "doc": "?"}]}
V1 = {
    "format-version": 1,
    "location": "s3://lake/t",
    "last-updated-ms": 1,
    "last-column-id": 8,
    "schema": SCHEMA,
    "partition-spec": [],
    "current-snapshot-id": -1,
}
V2 = {
    **{key: value for key, value in V1.items() if key not in ("schema", "partition-spec")},
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "last-sequence-number": 1,
    "schemas": [{**SCHEMA, "schema-id": 0, "identifier-field-ids": [1]}],
    "current-schema-id": 0,
    "partition-specs": [
        {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"}]}
    ],
    "default-spec-id": 0,
    "last-partition-id": 1000,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "default-sort-order-id": 0,
    "snapshots": [{"snapshot-id": 3, "timestamp-ms": 1, "manifest-list": "s3://lake/t/l.avro"}],
    "snapshot-log": [{"snapshot-id": 3, "timestamp-ms": 1}],
    "unheard-of": {},
}


DAY = "2026-11-29"
DEFAULTS = {  # a value of each type, and what is none
    "boolean": (True, 0),
    "int": (5, 2**31),
    "long": (2**31, "5"),
    "float": (1.0, 1),
    "date": (DAY, "2026-02-30"),
    "time": ("10:00:00.5", 36_000),
    "timestamp": (f"{DAY}T10:00", f"{DAY}T24:00"),
    "timestamptz_ns": (f"{DAY}T10:00:00.123456789+00:00", f"{DAY}T10:00:00"),
    "string": ("", None),
    "uuid": (V2["table-uuid"], "x"),
    "fixed[2]": ("0aFF", "0a f"),
    "decimal(5, 2)": ("-1.25", 1.25),
    "unknown": (None, None),
}


@pytest.mark.parametrize(("kind", "right", "wrong"), [(kind, *values) for kind, values in DEFAULTS.items()])
def test_a_default_is_a_value_of_its_type(kind: str, right: Any, wrong: Any) -> None:
    """Readers that know defaults do not load the schema otherwise."""

    def with_default(value: Any) -> str | None:
        field = {"id": 9, "name": "more", "required": False, "type": kind, "write-default": value}
        return malformed({**V2, "schemas": [{**SCHEMA, "fields": [field]}]})

    assert (with_default(right) is None) is (kind != "unknown")
    assert f"more has the default {wrong!r}, which is no {kind}" in (with_default(wrong) or "")


@pytest.mark.parametrize(
    "document", [V1, {**V1, **V2, "format-version": 1}, V2, {**V2, "format-version": 3, "next-row-id": 0}]
)
def test_what_the_spec_allows(document: Any) -> None:
    """Nothing is wrong with each format version, nested types and fields of later versions."""
    assert malformed(document) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("table-uuid"), "format v2 needs table-uuid"),
        (lambda d: d.update({"format-version": 3}), "format v3 needs next-row-id"),
        (lambda d: d.update({"last-column-id": None}), "Expected `int`, got `null` - at `$.last-column-id`"),
        (lambda d: d.update({"default-spec-id": 2**31}), "$.default-spec-id"),
        (lambda d: d["schemas"][0]["fields"][0].pop("required"), "`required` - at `$.schemas[0].fields[0]`"),
        (lambda d: d["schemas"][0]["fields"][1]["type"].pop("fields"), "`fields`"),
        (lambda d: d["schemas"][0]["fields"][0].update(type="text"), "no type is called 'text'"),
        (lambda d: d["schemas"][0]["fields"][0].update(type={"type": "set"}), "'set'"),
        (lambda d: d["partition-specs"][0]["fields"][0].pop("transform"), "`transform`"),
        (lambda d: d["sort-orders"][0]["fields"].append({"source-id": 1}), "$.sort-orders[0].fields[0]"),
        (lambda d: d["schemas"][0].pop("type"), "`type` - at `$.schemas[0]`"),
        (lambda d: d["schemas"].clear(), "$.schemas"),
        (lambda d: d["partition-specs"][0]["fields"][0].pop("source-id"), "it is of no column"),
        (lambda d: d["sort-orders"][0].update({"order-id": 1}), "0 is the `order-id` of no order"),
        (lambda d: d.update(refs=None), "$.refs"),
        (lambda d: d.update({"table-uuid": "orders"}), "'orders' is no `table-uuid`"),
        (lambda d: d["partition-specs"][0]["fields"][0].pop("field-id"), "the `field-id` of each partition field"),
        (lambda d: d["snapshots"][0].update({"first-row-id": 0}), "`first-row-id`, and no `added-rows`"),
        (lambda d: d["snapshots"][0].update(summary={"total-records": 7}), "$.snapshots[0].summary"),
        (lambda d: d["schemas"][0]["fields"][0].update(type={**TAGS, "element": "set"}), "no type is called 'set'"),
        (lambda d: d["schemas"][0]["fields"][0].update(type={**KEYS, "key": "decimal(39, 2)"}), "more digits than 38"),
        (lambda d: d["schemas"][0]["fields"][0].update(type="decimal(4, 9)"), "behind the point than in all"),
        (lambda d: d["schemas"][0]["fields"][0].update(type="unknown"), "id is required and of type unknown"),
        (lambda d: d["snapshots"][0].update({"timestamp-ms": "now"}), "$.snapshots[0].timestamp-ms"),
        (lambda d: d.update(statistics=[{"snapshot-id": 3}]), "$.statistics[0]"),
    ],
)
def test_what_iceberg_does_not_load(change: Callable[[Any], object], words: str) -> None:
    """The field is named with its place."""
    document = json.loads(json.dumps(V2))
    change(document)
    assert words in (malformed(document) or "")


def test_a_table_has_a_schema() -> None:
    """Format v1 has one or several."""
    assert malformed({key: value for key, value in V1.items() if key != "schema"}) == "it has no schema"
