"""The tables of namespace `web`: a stream of small files, scattered manifests, and a table without writers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from icewright.app.demo import rows
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake, Rot

_BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"))
_CLICKS = Schema(
    NestedField(1, "click_id", LongType(), required=True),
    NestedField(2, "ts", TimestamptzType(), required=True),
    NestedField(3, "user", StringType()),
    NestedField(4, "page", StringType()),
    NestedField(5, "millis", IntegerType()),
)
_TAGS = ListType(element_id=7, element_type=StringType(), element_required=False)
_CONTEXT = StructType(NestedField(5, "os", StringType()), NestedField(6, "tags", _TAGS))
_EVENTS = Schema(
    NestedField(1, "event_id", StringType(), required=True),
    NestedField(2, "ts", TimestamptzType(), required=True),
    NestedField(3, "kind", StringType()),
    NestedField(4, "context", _CONTEXT),
)
_FLAGS = MapType(key_id=5, key_type=StringType(), value_id=6, value_type=StringType(), value_required=False)
_SESSIONS = Schema(
    NestedField(1, "session_id", StringType(), required=True),
    NestedField(2, "started", TimestamptzType(), required=True),
    NestedField(3, "seconds", DoubleType()),
    NestedField(4, "flags", _FLAGS),
)


def _day(at: datetime) -> int:
    return (at.astimezone(UTC).date() - date(1970, 1, 1)).days


def clicks(lake: Lake, name: str = "web.clicks", commits: int = 300, rows_per_file: int = 300) -> Rot:
    """Make a streaming table: a small file and a snapshot every 48 minutes for ten days, the last minutes ago."""
    craft = Craft(lake, name, _CLICKS, _BY_DAY)
    times = rows.spread(lake.now - timedelta(days=10), lake.now - timedelta(minutes=4), commits, craft.random)
    for at in times:
        file = craft.data(rows.clicks(craft.random, rows_per_file, at), ts_day=_day(at))
        craft.commit(at, [file])
    craft.publish()
    return lake.rot(
        name, f"A stream wrote {commits} tiny files in ten days, each with a snapshot, and goes on writing."
    )


def events(lake: Lake, name: str = "web.events", manifests: int = 120, rows_per_file: int = 500) -> Rot:
    """Make a table of well-sized files with a manifest for each; old snapshots are expired."""
    craft = Craft(lake, name, _EVENTS, _BY_DAY, {"commit.manifest-merge.enabled": "false"})
    unexpired = 4
    times = rows.spread(lake.now - timedelta(days=20), lake.now - timedelta(hours=5), manifests, craft.random)
    for number, at in enumerate(times):
        file = craft.data(rows.events(craft.random, rows_per_file, at), ts_day=_day(at))
        craft.commit(at, [file], expired=number < manifests - unexpired)
    craft.fit_target()
    craft.publish()
    return lake.rot(
        name, f"Its files are fine, but to plan a query one must open {manifests} manifests of one file each."
    )


def sessions(lake: Lake, name: str = "web.sessions", rows_per_file: int = 2000) -> Rot:
    """Make a healthy table of one file that was last written 60 days ago."""
    craft = Craft(lake, name, _SESSIONS)
    at = lake.now - timedelta(days=60)
    craft.commit(at, [craft.data(rows.sessions(craft.random, rows_per_file, at))])
    craft.fit_target()
    craft.publish()
    return lake.rot(name, "Nothing is wrong: one good file, and nobody has written for 60 days.")
