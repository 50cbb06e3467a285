"""The demo's lakehouse: real Iceberg tables, each neglected in its own way, and two healthy ones."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
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
from icewright.app.demo.craft import Craft, CraftedManifest
from icewright.app.demo.files import backdate, millis, set_modified
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
PAYMENT_BACK = 17  # deleted by one checkpoint, written again by a later one: its row is live
PAYMENT_GONE = 18  # deleted and never written again
PAYMENTS_GONE_BY_ORDER = (23, 32)  # deleted by their order and method
# What a checkpoint of `payments` does to those, by its number.
_DELETES = {3: [PAYMENT_BACK, PAYMENT_GONE]}
_DELETES_BY_ORDER = {4: [PAYMENTS_GONE_BY_ORDER[0]], 8: [PAYMENTS_GONE_BY_ORDER[1]]}
_REWRITTEN = {6: [PAYMENT_BACK]}
_MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
_ORDERS = Schema(
    NestedField(1, "order_id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=True),
    NestedField(3, "customer_id", LongType()),
    NestedField(4, "status", StringType()),
    NestedField(5, "amount", DecimalType(10, 2)),
    NestedField(6, "ordered", TimestamptzType()),
)
_BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
_PAYMENTS = Schema(
    NestedField(1, "payment_id", LongType(), required=True),
    NestedField(2, "order_id", LongType(), required=True),
    NestedField(3, "method", StringType(), required=True),
    NestedField(4, "amount", DecimalType(10, 2)),
    NestedField(5, "paid", TimestamptzType()),
    identifier_field_ids=[1],
)
_CUSTOMERS = Schema(
    NestedField(1, "customer_id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "country", StringType()),
    NestedField(4, "since", DateType()),
)
_PRODUCTS = Schema(
    NestedField(1, "product_id", LongType(), required=True),
    NestedField(2, "title", StringType()),
    NestedField(3, "price", DecimalType(10, 2)),
    NestedField(4, "listed", DateType()),
)
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


def orders(lake: Lake, name: str = "shop.orders", commits: int = 6, rows_per_file: int = 500) -> Rot:
    """Make a merge-on-read table, partitioned by region, with position deletes that Spark wrote."""
    craft = Craft(lake, name, _ORDERS, _BY_REGION, _MERGE_ON_READ)
    first = 0
    for at in rows.spread(lake.now - timedelta(days=9), lake.now - timedelta(days=2), commits, craft.random):
        files = []
        for region in rows.REGIONS:
            files.append(craft.data(rows.orders(craft.random, rows_per_file, at, region, first), region=region))
            first += rows_per_file
        craft.commit(at, files)
    craft.fit_target()
    craft.publish()
    spark, table = lake.spark(), lake.quoted(name)
    spark.sql(f"DELETE FROM {table} WHERE `order_id` % 17 = 0")  # noqa: S608 - a quoted name
    spark.sql(
        f"MERGE INTO {table} AS `old` USING (SELECT `id` * 23 AS `order_id` FROM range({first // 20})) AS `new` "  # noqa: S608
        "ON `old`.`order_id` = `new`.`order_id` WHEN MATCHED THEN UPDATE SET `status` = 'refunded' WHEN NOT MATCHED "
        "THEN INSERT (`order_id`, `region`, `status`) VALUES (`new`.`order_id`, 'emea', 'late')"
    )
    spark.sql(f"DELETE FROM {table} WHERE `region` = 'latam' AND `order_id` % 5 < 2")  # noqa: S608
    backdate(lake, name, [lake.now - timedelta(hours=hours) for hours in (30, 20, 6)])
    return lake.rot(
        name, "Every reader must merge position deletes into it; in one region nearly half of the rows are dead."
    )


def returns(lake: Lake, name: str = "shop.returns", size: int = 4000) -> Rot:
    """Make a format v3 table with deletion vectors that Spark wrote."""
    spark, table = lake.spark(), lake.quoted(name)
    lake.identifier(name)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in ({"format-version": "3"} | _MERGE_ON_READ).items())
    spark.sql(
        f"CREATE TABLE {table} (`return_id` bigint NOT NULL, `reason` string, `amount` decimal(10, 2), `day` date) "
        f"USING iceberg PARTITIONED BY (`reason`) LOCATION 'file://{lake.folder(name)}' TBLPROPERTIES ({properties})"
    )
    for part in range(2):
        spark.sql(
            f"INSERT INTO {table} SELECT `id`, element_at(array('broken', 'late', 'wrong'), int(`id` % 3) + 1), "  # noqa: S608
            "cast(`id` % 9973 / 7 AS decimal(10, 2)), date_add(date'2026-01-01', int(`id` % 200)) "
            f"FROM range({part * size // 2}, {(part + 1) * size // 2}, 1, 1)"
        )
    spark.sql(f"DELETE FROM {table} WHERE `return_id` % 4 = 1")  # noqa: S608
    spark.sql(f"DELETE FROM {table} WHERE `return_id` % 10 = 3")  # noqa: S608
    backdate(lake, name, [lake.now - timedelta(hours=hours) for hours in (80, 60, 24, 8)])
    return lake.rot(name, "A third of its rows are dead: deletion vectors of format v3 hide them from readers.")


def payments(lake: Lake, name: str = "shop.payments", checkpoints: int = 12, rows_per_file: int = 40) -> Rot:
    """Make an upsert table as Flink writes it: with each data file an equality-delete file for the same keys.

    Two checkpoints delete by order and method too. There must be 9 checkpoints and 40 rows in a file at least.
    """
    craft = Craft(lake, name, _PAYMENTS, properties={"write.upsert.enabled": "true"})
    reserved = {PAYMENT_BACK, PAYMENT_GONE, *PAYMENTS_GONE_BY_ORDER}
    times = rows.spread(lake.now - timedelta(days=6), lake.now - timedelta(hours=3), checkpoints, craft.random)
    for number, at in enumerate(times):
        first = number * rows_per_file
        older = [payment for payment in range(first) if payment not in reserved]
        changed = sorted(craft.random.sample(older, min(len(older), rows_per_file // 4)))
        written = [*range(first, first + rows_per_file), *changed, *_REWRITTEN.get(number, [])]
        deletes = [craft.equality_deletes({"payment_id": written + _DELETES.get(number, [])})]
        if number in _DELETES_BY_ORDER:
            deletes.append(craft.equality_deletes(rows.payment_orders(_DELETES_BY_ORDER[number])))
        craft.commit(at, [craft.data(rows.payments(craft.random, written, at))], deletes=deletes)
    craft.publish()
    return lake.rot(
        name, "Flink upserts: every reader must compare each row with the keys of all later equality deletes."
    )


def customers(lake: Lake, name: str = "shop.customers", commits: int = 10, rows_per_file: int = 60) -> Rot:
    """Make a table that was partitioned and got other columns half-way; small files lie under both specs."""
    craft = Craft(lake, name, _CUSTOMERS)
    first = 0
    for at in rows.spread(lake.now - timedelta(days=12), lake.now - timedelta(days=5), commits, craft.random):
        craft.commit(at, [craft.data(rows.customers(craft.random, rows_per_file, at, first))])
        first += rows_per_file
    craft.publish()
    table = lake.catalog.load_table(lake.identifier(name))
    with table.update_spec() as spec:
        spec.add_identity("country")
    with table.update_schema() as schema:
        schema.rename_column("name", "full_name")
        schema.add_column("email", StringType())
    arrow = schema_to_pyarrow(table.schema())
    times = rows.spread(lake.now - timedelta(days=4), lake.now - timedelta(hours=7), (commits + 1) // 2, craft.random)
    for at in times:
        columns = dict(rows.customers(craft.random, rows_per_file, at, first))
        columns["full_name"] = columns.pop("name")
        columns["email"] = [f"{number}@example.com" for number in columns["customer_id"]]
        table.append(pa.Table.from_pydict(columns, schema=arrow))
        first += rows_per_file
    backdate(lake, name, times)
    return lake.rot(name, "Its small files lie under two partition specs, and columns were renamed and added between.")


def products(lake: Lake, name: str = "shop.products", commits: int = 3, rows_per_file: int = 2000) -> Rot:
    """Make a healthy table: a few good files, written in the last hours."""
    craft = Craft(lake, name, _PRODUCTS)
    times = rows.spread(lake.now - timedelta(hours=5), lake.now - timedelta(hours=2), commits, craft.random)
    for number, at in enumerate(times):
        craft.commit(at, [craft.data(rows.products(craft.random, rows_per_file, number * rows_per_file))])
    craft.fit_target()
    craft.publish()
    return lake.rot(name, "Nothing is wrong: a few good files, written in the last hours.")


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


def _small_history(lake: Lake, name: str, salt: str = "", *, register: bool = True) -> Path:
    """Commit four times in 14 days eight files of a good size; the place of the metadata file."""
    craft = Craft(lake, name, _UPLOADS, salt=salt)
    for at in rows.spread(lake.now - timedelta(days=14), lake.now - timedelta(days=1), 4, craft.random):
        craft.commit(at, [craft.data(rows.uploads(craft.random, 200, at)) for _ in range(8)])
    craft.fit_target()
    return craft.publish(register=register)


def _copy_as_orphan(lake: Lake, like: Path, name: str, since: timedelta) -> None:
    """Leave a copy of a file beside it, as a write that failed `since` ago would have."""
    orphan = shutil.copyfile(like, like.with_name(name))
    set_modified(orphan, millis(lake.now - since))


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


# tables that need Spark come last, so that Spark can start meanwhile
TABLES: tuple[Callable[[Lake], Rot], ...] = (
    clicks, events, sessions, payments, customers, products, metrics, uploads, shared, ledger, orders, returns,
)  # fmt: skip


def build(lake: Lake, print_line: Callable[[str], None]) -> tuple[Rot, ...]:
    """Create every table of the namespaces web, shop and ops, and report each one."""
    rots = []
    for make in TABLES:
        rot = make(lake)
        print_line(f"{rot.name}: {rot.story}")
        rots.append(rot)
    return tuple(rots)
