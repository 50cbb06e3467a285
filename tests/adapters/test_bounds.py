"""How old the rows of files are, by bounds, by counts and by partitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import types as t

from icewright.adapters.files.bounds import aged, measured
from icewright.adapters.files.manifests import ManifestReader
from icewright.core.steps import ExpireRows
from icewright.core.table import PartitionField, PartitionSpec, Thresholds
from tests.adapters.writing import Partitioned, metadata, ours, record

CUTOFF = date(2026, 1, 1)
OLD, YOUNG, SENTINEL = CUTOFF - timedelta(days=1), CUTOFF, date(9999, 12, 31)
DAYS = (CUTOFF - date(1970, 1, 1)).days
BARE: dict[str, Any] = {"lower_bounds": None, "upper_bounds": None, "null_value_counts": None}
NULLS = {**BARE, "null_value_counts": [{"key": 1, "value": 10}]}
BOUNDED = {
    "lower_bounds": [{"key": 1, "value": DAYS.to_bytes(4, "little")}],
    "upper_bounds": [{"key": 1, "value": (DAYS + 1).to_bytes(4, "little")}],
}


@pytest.mark.parametrize(
    ("transform", "kind", "value", "entry", "fate"),
    [
        ("identity", "date", OLD, BARE, "data"),
        ("identity", "date", YOUNG, BARE, None),
        ("identity", "date", None, BARE, None),
        ("day", "timestamptz", OLD, BARE, "data"),
        ("day", "timestamp_ns", OLD, BARE, "data"),
        ("day", "timestamp", YOUNG, BARE, None),
        ("day", "timestamp", SENTINEL, BARE, None),
        ("void", "timestamp", None, BARE, "data, in part"),  # nobody knows
        ("bucket[4]", "date", None, BARE, None),
        ("void", "date", None, NULLS, None),
        ("void", "date", None, BOUNDED, None),
        ("identity", "string", None, BARE, None),
    ],
)
def test_files_without_bounds_are_as_old_as_their_partition_says(
    transform: str,
    kind: str,
    value: date | None,
    entry: dict[str, Any],
    fate: str | None,
    tmp_path: Path,
    reader: ManifestReader,
) -> None:
    """Metrics lack INT96, what Hive keeps in folders and columns after the first hundred: their rows grow old too."""
    written = Partitioned(tmp_path, (t.DateType(),)).crafted(2, [record("file:///f", (value,), **entry)])
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p1", transform),))
    schema = {"schema-id": 0, "fields": [{"id": 1, "name": "seen", "required": False, "type": kind}]}
    table = replace(metadata((spec,), ()), schema=schema)
    found = measured(reader, table, [ours(written)], Thresholds(1, 1, 1, 1, age="seen"))
    lowest = next((one.lowest for one in found.values()), None)
    ticks = DAYS * {"date": 1, "timestamp_ns": 86_400 * 10**9}.get(kind, 86_400 * 10**6)
    assert (lowest is not None and lowest < ticks) is (fate is not None)
    if kind != "string":
        step = ExpireRows("seen < x", "seen", CUTOFF, 1, ticks, ())
        assert [f.kind for f in aged(reader, table, [ours(written)], step)] == [fate] * (fate is not None)
