"""The tables of namespace `ops`: long histories, and files that nobody references."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icewright.app.demo import rows
from icewright.app.demo.craft import Craft, CraftedManifest
from icewright.app.demo.files import age
from icewright.app.demo.lake import Lake, Rot

METRICS_TAG = "quarter-end"
METRICS_BRANCH = "backtest"
METRICS_BRANCH_KEEPS = 3

_OLD = timedelta(days=10)
_YOUNG = timedelta(hours=1)
_LIVE = 3  # commits whose files a table with a long history still has; more manifests would be a fault too

_METRICS = Schema(
    NestedField(1, "host", StringType(), required=True),
    NestedField(2, "ts", TimestamptzType(), required=True),
    NestedField(3, "load", DoubleType()),
)
_LEDGER = Schema(
    NestedField(1, "entry_id", LongType(), required=True),
    NestedField(2, "booked", TimestamptzType(), required=True),
    NestedField(3, "account", IntegerType()),
    NestedField(4, "amount", DecimalType(12, 2)),
)
_UPLOADS = Schema(
    NestedField(1, "upload_id", LongType(), required=True),
    NestedField(2, "ts", TimestamptzType(), required=True),
    NestedField(3, "digest", BinaryType()),
    NestedField(4, "bytes", LongType()),
)


def _replacing(craft: Craft, source: rows.Source, times: list[datetime], rows_per_file: int) -> None:
    """Commit at each time one new file, which takes the place of the one from `_LIVE` commits before."""
    window: deque[CraftedManifest] = deque()
    for at in times:
        old = window.popleft() if len(window) == _LIVE else None
        window.append(craft.commit(at, [craft.data(source(craft.random, rows_per_file, at))], replaced=old))


def metrics(lake: Lake, name: str = "ops.metrics", commits: int = 400, rows_per_file: int = 100) -> Rot:
    """Make a table with a month of snapshots, one of them tagged and one the head of a branch."""
    craft = Craft(lake, name, _METRICS)
    times = rows.spread(lake.now - timedelta(days=30), lake.now - timedelta(hours=1), commits, craft.random)
    _replacing(craft, rows.samples, times, rows_per_file)
    craft.fit_target()
    tagged, branched = craft.snapshots[commits // 8], craft.snapshots[commits // 3]
    craft.refs[METRICS_TAG] = {"snapshot-id": tagged["snapshot-id"], "type": "tag"}
    craft.refs[METRICS_BRANCH] = {
        "snapshot-id": branched["snapshot-id"],
        "type": "branch",
        "min-snapshots-to-keep": METRICS_BRANCH_KEEPS,
    }
    craft.publish()
    return lake.rot(name, f"It keeps {commits} snapshots of 30 days; a tag and a branch still need a few old ones.")


def ledger(lake: Lake, name: str = "ops.ledger", commits: int = 120, rows_per_file: int = 100) -> Rot:
    """Make a table with a long history whose owner forbids any deletion of files."""
    craft = Craft(lake, name, _LEDGER, properties={"gc.enabled": "false"})
    times = rows.spread(lake.now - timedelta(days=60), lake.now - timedelta(hours=2), commits, craft.random)
    _replacing(craft, rows.entries, times, rows_per_file)
    craft.fit_target()
    craft.publish()
    return lake.rot(name, f"It keeps {commits} snapshots of 60 days, and must: its owner set gc.enabled=false.")


def _small_history(
    lake: Lake, name: str, properties: Mapping[str, str] | None = None, salt: str = "", *, register: bool = True
) -> Path:
    """Commit four times in 14 days eight files of a good size; the place of the metadata file."""
    craft = Craft(lake, name, _UPLOADS, properties=properties, salt=salt)
    for at in rows.spread(lake.now - timedelta(days=14), lake.now - timedelta(days=1), 4, craft.random):
        craft.commit(at, [craft.data(rows.uploads(craft.random, 200, at)) for _ in range(8)])
    craft.fit_target()
    return craft.publish(register=register)


def _copy_as_orphan(lake: Lake, like: Path, name: str, since: timedelta) -> None:
    """Leave a copy of a file beside it, as a write that failed `since` ago would have."""
    orphan = shutil.copyfile(like, like.with_name(name))
    age(orphan, lake.now - since)


def _copy_data_as_orphans(lake: Lake, folder: Path, count: int, since: timedelta, mark: str) -> None:
    files = sorted((folder / "data").iterdir())
    for number, like in enumerate(files[:count]):
        _copy_as_orphan(lake, like, f"{number:05d}-0-{mark}.parquet", since)


def uploads(lake: Lake, name: str = "ops.uploads", old: int = 9, young: int = 2) -> Rot:
    """Make a table with orphans: `old` data files and a file of each metadata kind, and `young` data files."""
    metadata = _small_history(lake, name)
    folder = lake.folder(name)
    mark = lake.random(f"{name} orphans").randbytes(8).hex()
    _copy_data_as_orphans(lake, folder, old, _OLD, f"aborted-{mark}")
    _copy_data_as_orphans(lake, folder, young, _YOUNG, f"running-{mark}")
    manifest = next(iter(sorted(metadata.parent.glob("*-m0.avro"))))
    manifest_list = next(iter(sorted(metadata.parent.glob("snap-*.avro"))))
    _copy_as_orphan(lake, manifest, f"{mark}-m0.avro", _OLD)
    _copy_as_orphan(lake, manifest_list, f"snap-{int(mark, 16) >> 1}-1-{mark}.avro", _OLD)
    _copy_as_orphan(lake, metadata, f"00003-{mark}.metadata.json", _OLD)
    _copy_as_orphan(lake, manifest, f"{mark}-m1.avro", _YOUNG)
    return lake.rot(name, f"Failed writes left {old + 3} files that no snapshot knows; {young + 1} more may be in use.")


def shared(lake: Lake, name: str = "ops.shared", old: int = 6) -> Rot:
    """Make a table with old orphans in whose folder a table of another catalog lives too."""
    _small_history(lake, name)
    mark = lake.random(f"{name} orphans").randbytes(8).hex()
    _copy_data_as_orphans(lake, lake.folder(name), old, _OLD, f"aborted-{mark}")
    _small_history(lake, name, salt=" of another catalog", register=False)
    return lake.rot(
        name, "It has orphans, but another catalog's table lives in the same folder: nothing may be deleted."
    )
